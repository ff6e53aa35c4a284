// The ops as scalar double references: the formulas of src/ops/*.h, as plainly as they can be written. And central differences,
// which check that a reference's backward is the derivative of its forward.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/size.h"

namespace untied::ref {

using Values = std::vector<double>;

// c (+)= op(a) op(b); a is [M, K] or, transposed, [K, M]; b is [K, N] or [N, K].
inline void matmul(Values& c, const Values& a, const Values& b, dim_t M, dim_t N, dim_t K, bool transpose_a,
                   bool transpose_b, bool add) {
  for (dim_t m = 0; m < M; ++m)
    for (dim_t n = 0; n < N; ++n) {
      double sum = add ? c[m * N + n] : 0;
      for (dim_t k = 0; k < K; ++k)
        sum += a[transpose_a ? k * M + m : m * K + k] * b[transpose_b ? n * K + k : k * N + n];
      c[m * N + n] = sum;
    }
}

inline Values column_sums(const Values& x, dim_t R, dim_t N) {
  Values sums(N);
  for (dim_t i = 0; i < R * N; ++i) sums[i % N] += x[i];
  return sums;
}

inline double inverse_rms(const double* x, dim_t E, double eps) {
  double sum = 0;
  for (dim_t e = 0; e < E; ++e) sum += x[e] * x[e];
  return 1 / std::sqrt(sum / static_cast<double>(E) + eps);
}
inline Values rmsnorm(const Values& x, const Values& w, dim_t R, double eps) {
  const dim_t E = static_cast<dim_t>(w.size());
  Values y(x.size());
  for (dim_t r = 0; r < R; ++r) {
    const double inverse = inverse_rms(&x[r * E], E, eps);
    for (dim_t e = 0; e < E; ++e) y[r * E + e] = x[r * E + e] * inverse * w[e];
  }
  return y;
}
inline void rmsnorm_backward(Values& dx, Values& dw, const Values& dy, const Values& x, const Values& w, dim_t R,
                             double eps) {
  const dim_t E = static_cast<dim_t>(w.size());
  for (dim_t r = 0; r < R; ++r) {
    const double inverse = inverse_rms(&x[r * E], E, eps);
    double mean = 0;
    for (dim_t e = 0; e < E; ++e) mean += w[e] * dy[r * E + e] * x[r * E + e] * inverse / static_cast<double>(E);
    for (dim_t e = 0; e < E; ++e) {
      const double n = x[r * E + e] * inverse;
      dx[r * E + e] += inverse * (w[e] * dy[r * E + e] - n * mean);
      dw[e] += dy[r * E + e] * n;
    }
  }
}

inline double sigmoid(double g) { return 1 / (1 + std::exp(-g)); }
inline double swiglu(double gate, double up) { return gate * sigmoid(gate) * up; }
inline double swiglu_dgate(double gate, double up, double dy) {
  return dy * up * sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)));
}
inline double swiglu_dup(double gate, double dy) { return dy * gate * sigmoid(gate); }

// One head of D elements, turned by angles (cos, sin) of D/2 pairs.
inline Values rotate(const Values& x, const Values& cos, const Values& sin, double direction) {
  const dim_t F = static_cast<dim_t>(x.size()) / 2;
  Values y(x.size());
  for (dim_t f = 0; f < F; ++f) {
    y[f] = x[f] * cos[f] - direction * x[F + f] * sin[f];
    y[F + f] = x[F + f] * cos[f] + direction * x[f] * sin[f];
  }
  return y;
}

// log sum exp of row r, less its target.
inline double row_loss(const double* logits, dim_t V, dim_t target) {
  const double maximum = *std::max_element(logits, logits + V);
  double sum = 0;
  for (dim_t v = 0; v < V; ++v) sum += std::exp(logits[v] - maximum);
  return maximum + std::log(sum) - logits[target];
}
inline double cross_entropy(const Values& logits, const Values& targets, dim_t V) {
  double loss = 0;
  for (dim_t r = 0; r < static_cast<dim_t>(targets.size()); ++r)
    if (targets[r] >= 0) loss += row_loss(&logits[r * V], V, static_cast<dim_t>(targets[r]));
  return loss;
}
inline Values cross_entropy_backward(const Values& logits, const Values& targets, dim_t V, double scale) {
  Values d(logits.size());
  for (dim_t r = 0; r < static_cast<dim_t>(targets.size()); ++r) {
    if (targets[r] < 0) continue;
    const double* const row = &logits[r * V];
    const double most = *std::max_element(row, row + V);
    double sum = 0;
    for (dim_t v = 0; v < V; ++v) sum += std::exp(row[v] - most);
    for (dim_t v = 0; v < V; ++v)
      d[r * V + v] = scale * (std::exp(row[v] - most) / sum - (v == static_cast<dim_t>(targets[r])));
  }
  return d;
}

struct AdamW {
  double lr, beta1, beta2, eps, weight_decay;
};
inline void adamw(double& w, double& m, double& v, double g, const AdamW& o, int step) {
  m = o.beta1 * m + (1 - o.beta1) * g;
  v = o.beta2 * v + (1 - o.beta2) * g * g;
  w -= o.lr * o.weight_decay * w;
  w -= o.lr * (m / (1 - std::pow(o.beta1, step))) / (std::sqrt(v / (1 - std::pow(o.beta2, step))) + o.eps);
}

// d f / d x[i] of a scalar function of x.
template <class F>
double central_difference(Values& x, std::size_t i, F&& f) {
  const double at = x[i], h = 1e-5 * std::max(1.0, std::abs(at));
  x[i] = at + h;
  const double above = f();
  x[i] = at - h;
  const double below = f();
  x[i] = at;
  return (above - below) / (2 * h);
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace untied::ref
