// SwiGLU on the cpu: exp by Eigen's packets, in pieces of a row that stay in L1 together with sigmoid(gate).
#include "ops/cpu_kernel.h"
#include "ops/swiglu.h"

namespace untied::cpu {
namespace {

constexpr dim_t kPiece = 512;
using Piece = Eigen::Array<float, Eigen::Dynamic, 1, Eigen::ColMajor, kPiece, 1>;  // on the stack

// body(row, first column, columns) over all of t, row by row.
template <class Body>
void for_pieces(const Ctx& ctx, const Tensor& t, Body&& body) {
  const dim_t F = t.dim(1);
  parallel_for(ctx, t.dim(0), F, [&](dim_t r) {
    for (dim_t f = 0; f < F; f += kPiece) body(r, f, std::min(kPiece, F - f));
  });
}

}  // namespace

void swiglu_forward(Ctx& ctx, const Tensor& y_RF, const Tensor& gate_RF, const Tensor& up_RF) {
  require_f32("swiglu_forward", {&y_RF, &gate_RF, &up_RF});
  for_pieces(ctx, y_RF, [&](dim_t r, dim_t f, dim_t count) {
    const ConstArray gate(row_of(gate_RF, r) + f, count), up(row_of(up_RF, r) + f, count);
    Array(row_of(y_RF, r) + f, count) = gate / (1 + (-gate).exp()) * up;
  });
}

void swiglu_backward(Ctx& ctx, const Tensor& y_RF, const Tensor& gate_RF, const Tensor& up_RF, const Tensor& dy_RF) {
  require_f32("swiglu_backward", {&y_RF, &gate_RF, &up_RF, &dy_RF});
  for_pieces(ctx, y_RF, [&](dim_t r, dim_t f, dim_t count) {
    Array gate(row_of(gate_RF, r) + f, count), up(row_of(up_RF, r) + f, count), y(row_of(y_RF, r) + f, count);
    const Piece dy = ConstArray(row_of(dy_RF, r) + f, count);  // y may be dy
    const Piece sigmoid = 1 / (1 + (-gate).exp());
    y = gate * sigmoid * up;
    const Piece dup = dy * gate * sigmoid;
    gate = dy * up * sigmoid * (1 + gate * (1 - sigmoid));
    up = dup;
  });
}

}  // namespace untied::cpu
