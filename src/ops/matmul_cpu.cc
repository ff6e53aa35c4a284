// Matrix product on the cpu, fp32: panels of both operands are packed, and a kernel of 6 rows x 16 columns keeps its result in
// 12 vector registers (the scheme of GotoBLAS and BLIS, Goto and van de Geijn 2008; Van Zee and van de Geijn 2015).
//
// Why not a library's: every element of C here is the same chain of operations, fused multiply-adds in order of k within
// kBlockK, then the blocks in order, wherever it lies and however C is cut. So a product of some rows (a tile) or of some
// columns (the heads of a stage) equals that part of the whole product by the bit, for any number of threads; the libraries
// change the order of sums at the edges. It is faster as well.
// MEASURED
#include <memory>

#include "ops/cpu_kernel.h"
#include "ops/matmul.h"

namespace untied::cpu {
namespace {

constexpr dim_t kRows = 6, kColumns = 16;  // of the kernel: 12 of AVX2's 16 registers hold sums
constexpr dim_t kBlockK = 256;             // a panel of B, 16 KiB, stays in L1
constexpr dim_t kBlockM = 32 * kRows;      // the block of A, 192 KiB, stays in L2
constexpr dim_t kBlockN = 64 * kColumns;   // the block of B, 1 MiB, stays in L3

constexpr int kLanes = 8;
typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));  // at any address

// A matrix that is read through op(): element (i, k) of op(A), or (j, k) of op(B) transposed.
struct Operand {
  const float* data;
  dim_t step;   // from one row of op(A), column of op(B), to the next
  dim_t step_k; // from one k to the next; one of the two steps is 1
};

Lanes load(const float* p) { return *reinterpret_cast<const Lanes*>(p); }
void store(float* p, Lanes v) { *reinterpret_cast<Lanes*>(p) = v; }

// x as a matrix of 8 x 8: pairs of rows, pairs of pairs, halves.
inline void transpose(Lanes x[8]) {
  Lanes y[8];
  for (int i = 0; i < 8; i += 2) {
    y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    x[i] = __builtin_shufflevector(y[i], y[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    x[i + 1] = __builtin_shufflevector(y[i], y[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    x[i + 2] = __builtin_shufflevector(y[i + 1], y[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    x[i + 3] = __builtin_shufflevector(y[i + 1], y[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 4; ++i) {
    const Lanes low = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    x[i + 4] = __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    x[i] = low;
  }
}

// panel[k][kWidth] from kWidth rows that are contiguous along k. A store of 8 runs over the last columns of a panel 6 wide;
// what it spoils is written next, or is the slack behind the last panel.
template <dim_t kWidth>
void pack_transposed(float* panel, const float* source, dim_t step, dim_t depth) {
  dim_t k = 0;
  for (; k + kLanes <= depth; k += kLanes)
    for (dim_t w = 0; w < kWidth; w += kLanes) {
      Lanes x[kLanes];
      for (dim_t i = 0; i < kLanes; ++i) x[i] = w + i < kWidth ? load(source + (w + i) * step + k) : Lanes{};
      transpose(x);
      for (dim_t i = 0; i < kLanes; ++i) store(panel + (k + i) * kWidth + w, x[i]);
    }
  for (; k < depth; ++k)
    for (dim_t w = 0; w < kWidth; ++w) panel[k * kWidth + w] = source[w * step + k];
}

// panels[p][k][kWidth] = rows (columns) p * kWidth ... of the operand, for k in [0, depth); zero beyond `count`.
template <dim_t kWidth>
void pack(float* panels, const Operand& from, dim_t count, dim_t depth) {
  const dim_t whole = count / kWidth * kWidth;
  if (from.step == 1) {
    constexpr dim_t kChunk = 16;  // rows at a time: a line of each is still in L1 when the next panel reads on
    for (dim_t chunk = 0; chunk < depth; chunk += kChunk)
      for (dim_t i = 0; i < whole; i += kWidth)
        for (dim_t k = chunk; k < std::min(chunk + kChunk, depth); ++k)
          std::copy_n(from.data + i + k * from.step_k, kWidth, panels + i * depth + k * kWidth);
  } else {
    for (dim_t i = 0; i < whole; i += kWidth)
      pack_transposed<kWidth>(panels + i * depth, from.data + i * from.step, from.step, depth);
  }
  if (whole == count) return;
  for (dim_t k = 0; k < depth; ++k)
    for (dim_t w = 0; w < kWidth; ++w)
      panels[whole * depth + k * kWidth + w] = whole + w < count ? from.data[(whole + w) * from.step + k * from.step_k] : 0.0f;
}

// c[6][16] (+)= sum over k of a[k][6] b[k][16].
inline void kernel(float* c, dim_t stride, const float* a, const float* b, dim_t depth, bool add) {
  Lanes sum[kRows][2] = {};
  for (dim_t k = 0; k < depth; ++k, a += kRows, b += kColumns) {
    const Lanes b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      sum[i][0] += a[i] * b0;
      sum[i][1] += a[i] * b1;
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i)
    for (int v = 0; v < 2; ++v) {
      float* const at = c + i * stride + v * kLanes;
      store(at, add ? load(at) + sum[i][v] : sum[i][v]);
    }
}

// The kernel where C ends inside its 6 x 16.
void kernel_at_edge(float* c, dim_t stride, dim_t rows, dim_t columns, const float* a, const float* b, dim_t depth, bool add) {
  float whole[kRows * kColumns];
  kernel(whole, kColumns, a, b, depth, /*add=*/false);
  for (dim_t i = 0; i < rows; ++i)
    for (dim_t j = 0; j < columns; ++j) {
      float& out = c[i * stride + j];
      out = add ? out + whole[i * kColumns + j] : whole[i * kColumns + j];
    }
}

std::unique_ptr<float[]> panels(dim_t block, dim_t count, dim_t K) {
  return std::make_unique_for_overwrite<float[]>(std::min(block, count) * std::min(kBlockK, K) + kLanes);
}

// One thread's part of C.
void product(float* c, dim_t stride, Operand a, Operand b, dim_t M, dim_t N, dim_t K, bool add) {
  const auto a_panels = panels(kBlockM, round_up(M, kRows), K), b_panels = panels(kBlockN, round_up(N, kColumns), K);
  for (dim_t n = 0; n < N; n += kBlockN) {
    const dim_t columns = std::min(kBlockN, N - n);
    for (dim_t k = 0; k < K; k += kBlockK) {
      const dim_t depth = std::min(kBlockK, K - k);
      pack<kColumns>(b_panels.get(), {b.data + n * b.step + k * b.step_k, b.step, b.step_k}, columns, depth);
      for (dim_t m = 0; m < M; m += kBlockM) {
        const dim_t rows = std::min(kBlockM, M - m);
        pack<kRows>(a_panels.get(), {a.data + m * a.step + k * a.step_k, a.step, a.step_k}, rows, depth);
        for (dim_t j = 0; j < columns; j += kColumns)
          for (dim_t i = 0; i < rows; i += kRows) {
            float* const at = c + (m + i) * stride + n + j;
            const float* const ap = a_panels.get() + i * depth;
            const float* const bp = b_panels.get() + j * depth;
            if (rows - i >= kRows && columns - j >= kColumns) kernel(at, stride, ap, bp, depth, add || k > 0);
            else kernel_at_edge(at, stride, std::min(kRows, rows - i), std::min(kColumns, columns - j), ap, bp, depth, add || k > 0);
          }
      }
    }
  }
}

// How many pieces to cut the rows of C into, the columns into the rest: what packs least.
dim_t row_pieces(dim_t M, dim_t N, dim_t threads) {
  dim_t best = 1;
  const auto packed = [&](dim_t pieces) { return ceil_div(M, pieces) + ceil_div(N, threads / pieces); };
  for (dim_t pieces = 2; pieces <= threads; ++pieces)
    if (threads % pieces == 0 && packed(pieces) <= packed(best)) best = pieces;
  return best;
}

// Piece i of [0, size) cut into `pieces` of whole units.
Range piece(dim_t size, dim_t pieces, dim_t i, dim_t unit) {
  const dim_t units = ceil_div(size, unit);
  return {std::min(units * i / pieces * unit, size), std::min(units * (i + 1) / pieces * unit, size)};
}

}  // namespace

void matmul(Ctx& ctx, const Tensor& c_MN, const Tensor& a, const Tensor& b, MatmulOptions options, const Tensor&) {
  require_f32("matmul", {&c_MN, &a, &b});
  const dim_t M = c_MN.dim(0), N = c_MN.dim(1), K = a.dim(options.transpose_a ? 0 : 1);
  const bool add = options.accumulate == Accumulate::kAdd;
  if (K == 0 && !add)
    for (dim_t r = 0; r < M; ++r) row(c_MN, r).setZero();
  if (K == 0 || M == 0 || N == 0) return;
  Operand op_a{a.f32(), a.stride(0), 1}, op_b{b.f32(), 1, b.stride(0)};
  if (options.transpose_a) std::swap(op_a.step, op_a.step_k);
  if (options.transpose_b) std::swap(op_b.step, op_b.step_k);

  const dim_t threads = std::clamp<dim_t>(M * N * K / (64 * kElementsPerThread), 1, ctx.device.threads());
  const dim_t pieces_m = row_pieces(M, N, threads), pieces_n = threads / pieces_m;
  parallel_for(ctx, threads, kElementsPerThread, [&](dim_t i) {
    const Range m = piece(M, pieces_m, i / pieces_n, kRows), n = piece(N, pieces_n, i % pieces_n, kColumns);
    if (m.empty() || n.empty()) return;
    product(row_of(c_MN, m.begin) + n.begin, c_MN.stride(0), {op_a.data + m.begin * op_a.step, op_a.step, op_a.step_k},
            {op_b.data + n.begin * op_b.step, op_b.step, op_b.step_k}, m.size(), n.size(), K, add);
  });
}

void add_bias(Ctx& ctx, const Tensor& y_RN, const Tensor& bias_N) {
  require_f32("add_bias", {&y_RN, &bias_N});
  parallel_for(ctx, y_RN.dim(0), y_RN.dim(1), [&](dim_t r) { row(y_RN, r) += flat(bias_N); });
}

// A strip of columns per thread, all rows in order. In double: a bias may see a million rows in one call.
void bias_backward(Ctx& ctx, const Tensor& dbias_N, const Tensor& dy_RN, Accumulate accumulate) {
  require_f32("bias_backward", {&dy_RN});
  constexpr dim_t kStrip = 256;
  const dim_t R = dy_RN.dim(0), N = dy_RN.dim(1);
  parallel_for(ctx, ceil_div(N, kStrip), R * kStrip, [&](dim_t strip) {
    const dim_t begin = strip * kStrip, columns = std::min(kStrip, N - begin);
    Array dbias(dbias_N.f32() + begin, columns);
    Eigen::Array<double, Eigen::Dynamic, 1, Eigen::ColMajor, kStrip, 1> sum(columns);
    if (accumulate == Accumulate::kAdd) sum = dbias.cast<double>();
    else sum.setZero();
    for (dim_t r = 0; r < R; ++r) sum += ConstArray(row_of(dy_RN, r) + begin, columns).cast<double>();
    dbias = sum.cast<float>();
  });
}

}  // namespace untied::cpu
