// Bias on cuda. The backward sum needs no scratch: a block owns 32 columns and all rows. Groups of threads take rows in turn,
// each sums its own in order, then the groups are added in order: timing decides nothing.
#include "ops/kernel_cuda.cuh"
#include "ops/matmul.h"

namespace untied::cuda {
namespace {

template <class T>
struct AddBias {
  Rows<T> y;
  const T* bias;

  template <int N>
  __device__ void run(dim_t r, dim_t c) const {
    Floats<N> x = load<N>(y.at(r, c));
    const Floats<N> b = load<N>(bias + c);
#pragma unroll
    for (int i = 0; i < N; ++i) x.at[i] += b.at[i];
    store(y.at(r, c), x);
  }
};

constexpr int kColumns = 32, kThreads = 1024;

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    bias_backward_kernel(float* dbias, Rows<const T> dy, dim_t rows, dim_t columns, bool adds) {
  constexpr int kLanes = kColumns / N;  // threads that share a row
  constexpr int kGroups = kThreads / kLanes;
  constexpr int kParts = kThreads / kColumns;  // of the groups, each added up by one thread per column
  constexpr int kBatch = 4;                    // rows in flight
  static_assert(kGroups % kParts == 0);
  __shared__ float of_groups[kGroups][kColumns], of_parts[kParts][kColumns];

  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const dim_t column = dim_t{blockIdx.x} * kColumns + lane * N;
  Floats<N> sum{};
  if (column < columns) {  // then so is the whole pack: packs are used where they divide the columns
    for (dim_t r = group; r < rows; r += kBatch * kGroups) {
      Floats<N> batch[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const dim_t row = r + b * kGroups;
        batch[b] = row < rows ? load<N>(dy.at(row, column)) : Floats<N>{};
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int i = 0; i < N; ++i) sum.at[i] += batch[b].at[i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) of_groups[group][lane * N + i] = sum.at[i];
  __syncthreads();

  const int c = threadIdx.x % kColumns, part = threadIdx.x / kColumns;
  float total = 0;
  for (int g = part * (kGroups / kParts); g < (part + 1) * (kGroups / kParts); ++g) total += of_groups[g][c];
  of_parts[part][c] = total;
  __syncthreads();

  const dim_t mine = dim_t{blockIdx.x} * kColumns + threadIdx.x;
  if (threadIdx.x >= kColumns || mine >= columns) return;
  total = 0;
  for (int p = 0; p < kParts; ++p) total += of_parts[p][threadIdx.x];
  dbias[mine] = adds ? dbias[mine] + total : total;
}

}  // namespace

void add_bias(Ctx& ctx, const Tensor& y_RN, const Tensor& bias_N) {
  with_activation(y_RN.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int kPack = kPackOf<T>;
    walk<kPack>(ctx, "add_bias", y_RN.dim(0), y_RN.dim(1), all_take_packs({&y_RN, &bias_N}, kPack),
                AddBias<T>{rows_of<T>(y_RN), bias_N.as<T>()});
  });
}

void bias_backward(Ctx& ctx, const Tensor& dbias_N, const Tensor& dy_RN, Accumulate accumulate) {
  const dim_t R = dy_RN.dim(0), N = dy_RN.dim(1);
  const bool adds = accumulate == Accumulate::kAdd;
  const cudaStream_t stream = stream_of(ctx);
  const auto blocks = static_cast<unsigned>(ceil_div(narrow_columns("bias_backward", N), kColumns));
  with_activation(dy_RN.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int kPack = kPackOf<T>;
    const Rows<const T> dy = rows_of<const T>(dy_RN);
    if (N % kPack == 0 && takes_packs(dy_RN, kPack))
      bias_backward_kernel<T, kPack><<<blocks, kThreads, 0, stream>>>(dbias_N.f32(), dy, R, N, adds);
    else bias_backward_kernel<T, 1><<<blocks, kThreads, 0, stream>>>(dbias_N.f32(), dy, R, N, adds);
  });
  CHECK_LAUNCH("bias_backward");
}

}  // namespace untied::cuda
