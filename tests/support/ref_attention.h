// Attention as the formulas say it, one head, in double: what every backend is compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "base/size.h"

namespace untied::test::ref {

struct AttentionHead {
  dim_t R, D, first_row;
  double scale;
  std::vector<double> q, k, v;  // [R, D], [first_row + R, D] twice
};

// Row i attends keys [start of its document, first_row + i].
inline Range attended_keys(dim_t row, std::span<const dim_t> documents) {
  dim_t start = 0;
  for (dim_t s : documents)
    if (s <= row) start = s;
  return {start, row + 1};
}

inline double dot(const double* a, const double* b, dim_t n) {
  double part[4] = {};
  dim_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int j = 0; j < 4; ++j) part[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) part[0] += a[i] * b[i];
  return part[0] + part[1] + part[2] + part[3];
}

// o [R, D] and lse [R].
inline void attention_forward(std::vector<double>& o, std::vector<double>& lse, const AttentionHead& h,
                              std::span<const dim_t> documents) {
  o.assign(static_cast<std::size_t>(h.R * h.D), 0.0);
  lse.assign(static_cast<std::size_t>(h.R), 0.0);
  for (dim_t i = 0; i < h.R; ++i) {
    const Range keys = attended_keys(h.first_row + i, documents);
    std::vector<double> score;
    for (dim_t j = keys.begin; j < keys.end; ++j) score.push_back(h.scale * dot(&h.q[i * h.D], &h.k[j * h.D], h.D));
    const double top = *std::max_element(score.begin(), score.end());
    double total = 0;
    for (double s : score) total += std::exp(s - top);
    lse[i] = top + std::log(total);
    for (dim_t j = keys.begin; j < keys.end; ++j) {
      const double p = std::exp(score[j - keys.begin] - lse[i]);
      for (dim_t d = 0; d < h.D; ++d) o[i * h.D + d] += p * h.v[j * h.D + d];
    }
  }
}

// dq [R, D] written; dk, dv [first_row + R, D] added to. d_o [R, D]. Forms o and lse itself.
inline void attention_backward(std::vector<double>& dq, std::vector<double>& dk, std::vector<double>& dv,
                               const std::vector<double>& d_o, const AttentionHead& h,
                               std::span<const dim_t> documents) {
  std::vector<double> o, lse;
  attention_forward(o, lse, h, documents);
  dq.assign(o.size(), 0.0);
  for (dim_t i = 0; i < h.R; ++i) {
    const Range keys = attended_keys(h.first_row + i, documents);
    const double delta = dot(&d_o[i * h.D], &o[i * h.D], h.D);
    for (dim_t j = keys.begin; j < keys.end; ++j) {
      const double p = std::exp(h.scale * dot(&h.q[i * h.D], &h.k[j * h.D], h.D) - lse[i]);
      const double ds = h.scale * p * (dot(&d_o[i * h.D], &h.v[j * h.D], h.D) - delta);
      for (dim_t d = 0; d < h.D; ++d) {
        dq[i * h.D + d] += ds * h.k[j * h.D + d];
        dk[j * h.D + d] += ds * h.q[i * h.D + d];
        dv[j * h.D + d] += p * d_o[i * h.D + d];
      }
    }
  }
}

}  // namespace untied::test::ref
