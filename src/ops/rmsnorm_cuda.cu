// RMSNorm on cuda, bound by memory.
//
// Forward: a block per row, as wide as it takes for the row to stay in registers (four packs of 16 bytes a thread) between the
// sum and the write. Blocks walk over rows and keep w.
//
// Backward: a block per block of rows of the front half's partition, thread by thread the same columns of all its rows, so dw
// sums in registers, rows in order; a second kernel adds the blocks' sums, in an order that is fixed too. Both sums of a row
// share one barrier, and dx and the next row's x and dy are on their way while a block waits at it.
//
// Rows too long for the registers are read again instead, and dw sums in the partial sums' memory.
// Sustained: 3,874 GB/s, 93 % of a device copy, backward 4,063, 97 % (H200, 64 Ki rows of 4096, bf16) (`untied bench ops`).
#include "ops/kernel_cuda.cuh"
#include "ops/rmsnorm.h"

namespace untied::cuda {
namespace {

constexpr int kMostThreads = 1024;

__device__ float inverse_rms(float sum_of_squares, int E, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(E) + eps);
}

// A thread's packs of a row: p, p + threads, ..., kPacks of them at most.
template <class T, int N, int kPacks>
struct Slice {
  Pack<T, N> pack[kPacks];

  __device__ void load(const T* row, int packs) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (const int p = threadIdx.x + k * blockDim.x; p < packs) pack[k] = load_pack<N>(row + p * N);
  }
  __device__ Floats<N> at(int k) const { return widen(pack[k]); }
};

// each(k, p) for the thread's packs.
template <int kPacks, class Each>
__device__ void for_packs(int packs, Each&& each) {
#pragma unroll
  for (int k = 0; k < kPacks; ++k)
    if (const int p = threadIdx.x + k * blockDim.x; p < packs) each(k, p);
}

template <class T>
struct ForwardCall {
  Rows<T> y;
  Rows<const T> x;
  const T* w;
  dim_t rows;
  int E;
  float eps;
};

template <class T, int N, int kPacks>
__global__ void __launch_bounds__(kMostThreads) forward_kernel(const ForwardCall<T> call) {
  __shared__ float scratch[2][kWarp][1];
  const int packs = call.E / N;
  Slice<T, N, kPacks> w;
  w.load(call.w, packs);
  int turn = 0;
  for (dim_t r = blockIdx.x; r < call.rows; r += gridDim.x) {
    Slice<T, N, kPacks> x;
    x.load(call.x.at(r, 0), packs);
    float sum[1] = {0};
    for_packs<kPacks>(packs, [&](int k, int) {
      const Floats<N> v = x.at(k);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[0] += v.at[i] * v.at[i];
    });
    block_sum(sum, scratch[turn ^= 1]);
    const float inverse = inverse_rms(sum[0], call.E, call.eps);
    for_packs<kPacks>(packs, [&](int k, int p) {
      Floats<N> v = x.at(k);
      const Floats<N> weight = w.at(k);
#pragma unroll
      for (int i = 0; i < N; ++i) v.at[i] = v.at[i] * inverse * weight.at[i];
      store(call.y.at(r, p * N), v);
    });
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kMostThreads) forward_long_kernel(const ForwardCall<T> call) {
  __shared__ float scratch[2][kWarp][1];
  const int packs = call.E / N;
  int turn = 0;
  for (dim_t r = blockIdx.x; r < call.rows; r += gridDim.x) {
    float sum[1] = {0};
    for (int p = threadIdx.x; p < packs; p += blockDim.x) {
      const Floats<N> v = load<N>(call.x.at(r, p * N));
#pragma unroll
      for (int i = 0; i < N; ++i) sum[0] += v.at[i] * v.at[i];
    }
    block_sum(sum, scratch[turn ^= 1]);
    const float inverse = inverse_rms(sum[0], call.E, call.eps);
    for (int p = threadIdx.x; p < packs; p += blockDim.x) {
      Floats<N> v = load<N>(call.x.at(r, p * N));
      const Floats<N> weight = load<N>(call.w + p * N);
#pragma unroll
      for (int i = 0; i < N; ++i) v.at[i] = v.at[i] * inverse * weight.at[i];
      store(call.y.at(r, p * N), v);
    }
  }
}

template <class T>
struct BackwardCall {
  Rows<T> dx;
  Rows<const T> dy, x;
  const T* w;
  float* partial;  // [blocks of rows, E]
  dim_t rows, blocks;
  int E;
  float eps;

  // Of this block.
  __device__ dim_t begin() const { return rows * blockIdx.x / blocks; }
  __device__ dim_t end() const { return rows * (blockIdx.x + 1) / blocks; }
};

// The two factors of a row: dx += scale w dy - shift x, and n = scale x.
struct RowFactors {
  float scale, shift;

  // From the sums of x^2 and of w dy x.
  __device__ RowFactors(const float (&sum)[2], int E, float eps) : scale(inverse_rms(sum[0], E, eps)) {
    const float mean = sum[1] / static_cast<float>(E) * scale;  // of w dy n
    shift = scale * (scale * mean);
  }
};

template <int N>
__device__ void add_to_sums(float (&sum)[2], const Floats<N>& x, const Floats<N>& dy, const Floats<N>& w) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sum[0] += x.at[i] * x.at[i];
    sum[1] += w.at[i] * dy.at[i] * x.at[i];
  }
}
template <int N>
__device__ void add_gradients(Floats<N>& dx, Floats<N>& dw, const Floats<N>& x, const Floats<N>& dy, const Floats<N>& w,
                              RowFactors row) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    dx.at[i] += row.scale * (w.at[i] * dy.at[i]) - row.shift * x.at[i];
    dw.at[i] += dy.at[i] * (x.at[i] * row.scale);
  }
}

template <class T, int N, int kPacks, int kThreads>
__global__ void __launch_bounds__(kThreads) backward_kernel(const BackwardCall<T> call) {
  constexpr bool kAhead = kPacks == 1;  // with more, there are no registers for a second row, nor for w
  __shared__ float scratch[2][kWarp][2];
  const int packs = call.E / N;
  Slice<T, N, kPacks> w, x, dy;
  Floats<N> dw[kPacks] = {};
  if constexpr (kAhead) w.load(call.w, packs);
  const auto weights = [&](int k, int p) {
    if constexpr (kAhead) return w.at(k);
    else return load<N>(call.w + p * N);
  };
  const dim_t begin = call.begin(), end = call.end();
  if (kAhead && begin < end) x.load(call.x.at(begin, 0), packs), dy.load(call.dy.at(begin, 0), packs);
  int turn = 0;
  for (dim_t r = begin; r < end; ++r) {
    if constexpr (!kAhead) x.load(call.x.at(r, 0), packs), dy.load(call.dy.at(r, 0), packs);
    Slice<T, N, kPacks> dx, next_x, next_dy;
    dx.load(call.dx.at(r, 0), packs);
    if (kAhead && r + 1 < end) next_x.load(call.x.at(r + 1, 0), packs), next_dy.load(call.dy.at(r + 1, 0), packs);
    float sum[2] = {0, 0};
    for_packs<kPacks>(packs, [&](int k, int p) { add_to_sums(sum, x.at(k), dy.at(k), weights(k, p)); });
    block_sum(sum, scratch[turn ^= 1]);
    const RowFactors row(sum, call.E, call.eps);
    for_packs<kPacks>(packs, [&](int k, int p) {
      Floats<N> d = dx.at(k);
      add_gradients(d, dw[k], x.at(k), dy.at(k), weights(k, p), row);
      store(call.dx.at(r, p * N), d);
    });
    if constexpr (kAhead) x = next_x, dy = next_dy;
  }
  for_packs<kPacks>(packs, [&](int k, int p) {
#pragma unroll
    for (int i = 0; i < N; ++i) call.partial[dim_t{blockIdx.x} * call.E + p * N + i] = dw[k].at[i];
  });
}

template <class T, int N>
__global__ void __launch_bounds__(kMostThreads) backward_long_kernel(const BackwardCall<T> call) {
  __shared__ float scratch[2][kWarp][2];
  const int packs = call.E / N;
  float* const partial = call.partial + dim_t{blockIdx.x} * call.E;
  for (int p = threadIdx.x; p < packs; p += blockDim.x)
    for (int i = 0; i < N; ++i) partial[p * N + i] = 0;
  int turn = 0;
  for (dim_t r = call.begin(), end = call.end(); r < end; ++r) {
    float sum[2] = {0, 0};
    for (int p = threadIdx.x; p < packs; p += blockDim.x)
      add_to_sums(sum, load<N>(call.x.at(r, p * N)), load<N>(call.dy.at(r, p * N)), load<N>(call.w + p * N));
    block_sum(sum, scratch[turn ^= 1]);
    const RowFactors row(sum, call.E, call.eps);
    for (int p = threadIdx.x; p < packs; p += blockDim.x) {
      Floats<N> dx = load<N>(call.dx.at(r, p * N)), dw;
#pragma unroll
      for (int i = 0; i < N; ++i) dw.at[i] = partial[p * N + i];
      add_gradients(dx, dw, load<N>(call.x.at(r, p * N)), load<N>(call.dy.at(r, p * N)), load<N>(call.w + p * N), row);
      store(call.dx.at(r, p * N), dx);
#pragma unroll
      for (int i = 0; i < N; ++i) partial[p * N + i] = dw.at[i];
    }
  }
}

// dw (+)= the sum of the blocks' partial sums: eight stretches of blocks, each in order, then the stretches in order.
constexpr int kStretches = 8;
static_assert(kStretches * kWarp == 256);
__global__ void __launch_bounds__(256) dw_kernel(float* dw, const float* partial, int blocks, int E, bool adds) {
  __shared__ float of_stretches[kStretches][kWarp];
  const int column = blockIdx.x * kWarp + threadIdx.x, length = (blocks + kStretches - 1) / kStretches;
  const int begin = threadIdx.y * length, end = min(begin + length, blocks);
  float sum = 0;
  if (column < E) {
#pragma unroll 8
    for (int b = begin; b < end; ++b) sum += partial[dim_t{b} * E + column];
  }
  of_stretches[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= E) return;
  sum = 0;
  for (int s = 0; s < kStretches; ++s) sum += of_stretches[s][threadIdx.x];
  dw[column] = adds ? dw[column] + sum : sum;
}

// Threads for a row of `packs` packs, `each` of them a thread.
int threads_for(int packs, int each) {
  return std::clamp(static_cast<int>(round_up(ceil_div(packs, each), kWarp)), kWarp, kMostThreads);
}

}  // namespace

void rmsnorm_forward(Ctx& ctx, const Tensor& y_RE, const Tensor& x_RE, const Tensor& w_E, double eps) {
  const cudaStream_t stream = stream_of(ctx);
  const int E = narrow_columns("rmsnorm_forward", x_RE.dim(1));
  constexpr int kEach = 4;
  with_activation(x_RE.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int kPack = kPackOf<T>;
    const ForwardCall<T> call{rows_of<T>(y_RE),       rows_of<const T>(x_RE), w_E.as<T>(), x_RE.dim(0), E,
                              static_cast<float>(eps)};
    const bool packs = E % kPack == 0 && all_take_packs({&y_RE, &x_RE, &w_E}, kPack);
    const int threads = threads_for(packs ? E / kPack : E, kEach);
    constexpr int kThreadsAtOnce = 2048;  // of a multiprocessor; each row is one block's work, so two rounds of blocks
    const unsigned blocks =
        bounded_blocks(cuda_device(ctx.device), call.rows, 2 * std::min(32, kThreadsAtOnce / threads));
    if (!packs) forward_long_kernel<T, 1><<<blocks, threads, 0, stream>>>(call);
    else if (E <= kEach * kPack * threads) forward_kernel<T, kPack, kEach><<<blocks, threads, 0, stream>>>(call);
    else forward_long_kernel<T, kPack><<<blocks, threads, 0, stream>>>(call);
  });
  CHECK_LAUNCH("rmsnorm_forward");
}

void rmsnorm_backward(Ctx& ctx, const Tensor& dx_RE, const Tensor& dw_E, const Tensor& dy_RE, const Tensor& x_RE,
                      const Tensor& w_E, double eps, Accumulate accumulate_dw, const Tensor& partial_BE) {
  const cudaStream_t stream = stream_of(ctx);
  const int E = narrow_columns("rmsnorm_backward", x_RE.dim(1));
  const auto blocks = static_cast<unsigned>(partial_BE.dim(0));  // at most 256: the front half's
  with_activation(x_RE.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int kPack = kPackOf<T>;
    const BackwardCall<T> call{.dx = rows_of<T>(dx_RE),
                               .dy = rows_of<const T>(dy_RE),
                               .x = rows_of<const T>(x_RE),
                               .w = w_E.as<T>(),
                               .partial = partial_BE.f32(),
                               .rows = x_RE.dim(0),
                               .blocks = partial_BE.dim(0),
                               .E = E,
                               .eps = static_cast<float>(eps)};
    constexpr int kFewThreads = 512;  // with the registers for four packs of every row
    const bool packs = E % kPack == 0 && all_take_packs({&dx_RE, &dy_RE, &x_RE, &w_E}, kPack);
    const int count = packs ? E / kPack : E;
    if (!packs) backward_long_kernel<T, 1><<<blocks, threads_for(count, 1), 0, stream>>>(call);
    else if (count <= kMostThreads)
      backward_kernel<T, kPack, 1, kMostThreads><<<blocks, threads_for(count, 1), 0, stream>>>(call);
    else if (count <= 4 * kFewThreads)
      backward_kernel<T, kPack, 4, kFewThreads><<<blocks, threads_for(count, 4), 0, stream>>>(call);
    else backward_long_kernel<T, kPack><<<blocks, kMostThreads, 0, stream>>>(call);
  });
  CHECK_LAUNCH("rmsnorm_backward");
  dw_kernel<<<static_cast<unsigned>(ceil_div(E, kWarp)), dim3(kWarp, kStretches), 0, stream>>>(
      dw_E.f32(), partial_BE.f32(), static_cast<int>(blocks), E, accumulate_dw == Accumulate::kAdd);
  CHECK_LAUNCH("rmsnorm_backward, dw");
}

}  // namespace untied::cuda
