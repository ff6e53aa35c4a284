// Cross entropy on the cpu: rows in parallel, each read three times while it is in L2 (maximum; exp in place and its sum; scale).
// A row of 128K logits is summed in pieces, fp32 inside a piece and fp64 over pieces: a single fp32 sum would lose four digits.
// Only the losses of rows are kept, and added in order at the end, so the loss has the same bits for any number of threads.
#include <cmath>

#include "ops/cpu_kernel.h"
#include "ops/cross_entropy.h"

namespace untied::cpu {
namespace {

// x = exp(x - maximum) in place; the sum of it.
double exp_and_sum(Array x, float maximum) {
  constexpr dim_t kPiece = 1024;
  double sum = 0;
  for (dim_t begin = 0; begin < x.size(); begin += kPiece) {
    auto piece = x.segment(begin, std::min(kPiece, x.size() - begin));
    piece = (piece - maximum).exp();
    sum += (piece + 0.0f).sum();  // of an expression: its order of lanes does not depend on the address
  }
  return sum;
}

void check_targets(const Tensor& targets_R, dim_t V) {
  const std::int32_t* targets = targets_R.as<std::int32_t>();
  for (dim_t r = 0; r < targets_R.size(); ++r)
    if (targets[r] >= V) throw InputError("the target of row {} is {}, the vocabulary has {} rows", r, targets[r], V);
}

}  // namespace

void cross_entropy(Ctx& ctx, const Tensor& loss, const Tensor& logits_RV, const Tensor& targets_R, double scale,
                   const Tensor& loss_R) {
  require_f32("cross_entropy", {&logits_RV});
  const dim_t R = logits_RV.dim(0), V = logits_RV.dim(1);
  check_targets(targets_R, V);
  double* const losses = loss_R.as<double>();
  parallel_for(ctx, R, V, [&](dim_t r) {
    Array x = row(logits_RV, r);
    const dim_t target = targets_R.as<std::int32_t>()[r];
    losses[r] = 0;
    if (target < 0) {
      if (scale != 0) x.setZero();
      return;
    }
    const float maximum = x.maxCoeff();
    const double shifted_target = static_cast<double>(x[target]) - static_cast<double>(maximum);
    const double sum = exp_and_sum(x, maximum);
    losses[r] = std::log(sum) - shifted_target;
    if (scale == 0) return;
    x *= static_cast<float>(scale / sum);
    x[target] -= static_cast<float>(scale);
  });
  for (dim_t r = 0; r < R; ++r) *loss.as<double>() += losses[r];
}

}  // namespace untied::cpu
