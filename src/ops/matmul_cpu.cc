// Matrix product on the cpu: Eigen's, over blocks of C that depend on shapes alone. Every block is one single-threaded product,
// so the result has the same bits for any number of threads.
//
// Eigen and not a BLAS library: header-only, no threads or processor detection of its own that ranks (threads of one process)
// would have to fight, and as fast at the shapes of training (docs/dependencies.md).
#include "ops/cpu_kernel.h"  // first: it turns Eigen's own threads off
#include "ops/matmul.h"

namespace untied::cpu {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

View view(const Tensor& t, Range rows, Range columns) {
  return View(row_of(t, rows.begin) + columns.begin, rows.size(), columns.size(), Eigen::OuterStride<>(t.stride(0)));
}

// Large enough that packing both operands anew for every block costs little, small enough to share out weight gradients.
constexpr dim_t kBlockRows = 256, kBlockColumns = 512;

template <class C, class A, class B>
void product(C&& c, const A& a, const B& b, Accumulate accumulate) {
  if (accumulate == Accumulate::kAdd) c.noalias() += a * b;
  else c.noalias() = a * b;
}

}  // namespace

void matmul(Ctx& ctx, const Tensor& c_MN, const Tensor& a, const Tensor& b, MatmulOptions options, const Tensor&) {
  require_f32("matmul", {&c_MN, &a, &b});
  const dim_t M = c_MN.dim(0), N = c_MN.dim(1), K = a.dim(options.transpose_a ? 0 : 1);
  const dim_t row_blocks = ceil_div(M, kBlockRows), column_blocks = ceil_div(N, kBlockColumns);
  const Range all{0, K};
  parallel_for(ctx, row_blocks * column_blocks, kBlockRows * kBlockColumns, [&](dim_t block) {
    const dim_t row = block / column_blocks * kBlockRows, column = block % column_blocks * kBlockColumns;
    const Range m{row, std::min(row + kBlockRows, M)}, n{column, std::min(column + kBlockColumns, N)};
    View c = view(c_MN, m, n);
    if (options.transpose_a && options.transpose_b)
      product(c, view(a, all, m).transpose(), view(b, n, all).transpose(), options.accumulate);
    else if (options.transpose_a) product(c, view(a, all, m).transpose(), view(b, all, n), options.accumulate);
    else if (options.transpose_b) product(c, view(a, m, all), view(b, n, all).transpose(), options.accumulate);
    else product(c, view(a, m, all), view(b, all, n), options.accumulate);
  });
}

}  // namespace untied::cpu
