// The small ones on cuda, bound by memory. cast and add take views of up to four dimensions: neighbours that both views step
// over without a gap are one, which leaves rows and columns nearly always; other views pay for a division per element.
//
// sum_of_squares: each block sums its own stretch of x in double, then one block sums the blocks. Both orders follow from the size
// of x (and from whether packs fit its address), not from timing.
// Sustained: add 4,143, cast 4,053, sum of squares 4,517 (reads only) GB/s beside a device copy of 4,173 (H200) (`untied bench ops`).
#include <array>

#include "ops/elementwise.h"
#include "ops/kernel_cuda.cuh"

namespace untied::cuda {
namespace {

// Two equally shaped views as [count[0], count[1], rows, columns], neighbouring dimensions merged where both allow it.
struct Walked {
  std::array<dim_t, kMaxDims> count{1, 1, 1, 1}, dst{}, src{};  // strides in elements; those of the columns are 1

  Walked(const Tensor& dst_tensor, const Tensor& src_tensor) {
    int at = kMaxDims - 1;
    count[at] = dst_tensor.dim(dst_tensor.rank() - 1), dst[at] = src[at] = 1;
    for (int i = dst_tensor.rank() - 2; i >= 0; --i) {
      const dim_t n = dst_tensor.dim(i), d = dst_tensor.stride(i), s = src_tensor.stride(i);
      if (n == 1) continue;
      if (d == count[at] * dst[at] && s == count[at] * src[at]) {
        count[at] *= n;
      } else {
        --at;
        count[at] = n, dst[at] = d, src[at] = s;
      }
    }
  }
  dim_t rows() const { return count[0] * count[1] * count[2]; }
  dim_t columns() const { return count[3]; }
};

// Where a row begins.
struct RowStarts {
  dim_t middle, rows;  // count[1], count[2]
  dim_t outer_stride, middle_stride, row_stride;

  RowStarts(const Walked& w, const std::array<dim_t, kMaxDims>& stride)
      : middle(w.count[1]), rows(w.count[2]), outer_stride(stride[0]), middle_stride(stride[1]), row_stride(stride[2]) {
  }
  __device__ dim_t operator()(dim_t row, bool is_matrix) const {
    if (is_matrix) return row * row_stride;
    const dim_t plane = row / rows;
    return plane / middle * outer_stride + plane % middle * middle_stride + row % rows * row_stride;
  }
};

template <class D, class S, bool kAdd>
struct Combine {
  D* dst;
  const S* src;
  RowStarts dst_rows, src_rows;
  bool is_matrix;  // no more than rows and columns

  template <int N>
  __device__ void run(dim_t r, dim_t c) const {
    D* const to = dst + dst_rows(r, is_matrix) + c;
    Floats<N> x = load<N>(src + src_rows(r, is_matrix) + c);
    if constexpr (kAdd) {
      const Floats<N> old = load<N>(to);
#pragma unroll
      for (int i = 0; i < N; ++i) x.at[i] = old.at[i] + x.at[i];
    }
    store(to, x);
  }
};

template <bool kAdd>
void combine(Ctx& ctx, const char* name, const Tensor& dst, const Tensor& src) {
  with_activation(dst.dtype(), [&]<class D>(std::type_identity<D>) {
    with_activation(src.dtype(), [&]<class S>(std::type_identity<S>) {
      constexpr int kPack = kPackOf<D, S>;
      const Walked walked(dst, src);
      const auto starts_aligned = [&](const Tensor& t, const std::array<dim_t, kMaxDims>& stride) {
        bool aligned = std::bit_cast<std::uintptr_t>(t.raw()) % (kPack * size_of(t.dtype())) == 0;
        for (int d = 0; d < kMaxDims - 1; ++d) aligned &= walked.count[d] <= 1 || stride[d] % kPack == 0;
        return aligned;
      };
      const bool is_matrix = walked.count[0] == 1 && walked.count[1] == 1;
      walk<kPack>(ctx, name, walked.rows(), walked.columns(),
                  starts_aligned(dst, walked.dst) && starts_aligned(src, walked.src),
                  Combine<D, S, kAdd>{dst.as<D>(), src.as<S>(), {walked, walked.dst}, {walked, walked.src}, is_matrix});
    });
  });
}

constexpr int kSquareThreads = 512;

// partial[block] = the sum over [block * length, (block + 1) * length) of x.
template <int N>
__global__ void __launch_bounds__(kSquareThreads)
    square_kernel(double* partial, const float* x, dim_t size, dim_t length) {
  const dim_t begin = blockIdx.x * length, end = min(begin + length, size);
  constexpr int kBatch = 4;  // packs in flight
  double sum[1] = {0};
  dim_t i = begin + threadIdx.x * N;
  for (; i + (kBatch - 1) * kSquareThreads * N + N <= end; i += kBatch * kSquareThreads * N) {
    Floats<N> batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) batch[b] = load<N>(x + i + b * kSquareThreads * N);
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
#pragma unroll
      for (int j = 0; j < N; ++j) sum[0] += static_cast<double>(batch[b].at[j]) * static_cast<double>(batch[b].at[j]);
  }
  for (; i < end; i += kSquareThreads * N)
    for (int j = 0; j < N && i + j < end; ++j) sum[0] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  __shared__ double scratch[kWarp][1];
  block_sum(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum[0];
}

__global__ void __launch_bounds__(kTotalThreads) total_kernel(double* total, const double* partial, dim_t n) {
  add_total(total, partial, n);
}

}  // namespace

void cast(Ctx& ctx, const Tensor& dst, const Tensor& src) { combine<false>(ctx, "cast", dst, src); }

void add(Ctx& ctx, const Tensor& dst, const Tensor& src) { combine<true>(ctx, "add", dst, src); }

void sum_of_squares(Ctx& ctx, const Tensor& sum, const Tensor& x, const Tensor& partial_B) {
  constexpr int kPack = kPackOf<float>;
  const cudaStream_t stream = stream_of(ctx);
  const dim_t blocks = partial_B.size(), length = round_up(ceil_div(x.size(), blocks), kPack);
  double* const partial = partial_B.as<double>();
  const auto grid = static_cast<unsigned>(blocks);  // at most 1024: the front half's
  if (takes_packs(x.flat(), kPack))
    square_kernel<kPack><<<grid, kSquareThreads, 0, stream>>>(partial, x.f32(), x.size(), length);
  else square_kernel<1><<<grid, kSquareThreads, 0, stream>>>(partial, x.f32(), x.size(), length);
  CHECK_LAUNCH("sum_of_squares");
  total_kernel<<<1, kTotalThreads, 0, stream>>>(sum.as<double>(), partial, blocks);
  CHECK_LAUNCH("sum_of_squares, total");
}

}  // namespace untied::cuda
