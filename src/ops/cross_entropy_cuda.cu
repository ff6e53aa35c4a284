// Cross entropy on cuda: a block of up to 1024 threads per row, in two passes. The first keeps, per thread, the largest logit so
// far and the sum of exponentials below it (fp32 over some hundred terms; over threads in double); the second writes.
//
// A row of 128 Ki bf16 logits is 256 KiB. As much of it as fits stays in shared memory between the passes, every pack in the
// place of the thread that will use it again, so the traffic is one read and one write; the rest comes from L2.
//
// Losses of rows are added by one block in a fixed order. A target beyond the vocabulary makes the loss NaN, which ends the run.
// Sustained: 2,950 GB/s, 71 % of a device copy (H200, 4096 x 128,256, bf16): the exponentials and the barrier between the passes (`untied bench ops`).
#include <cfloat>
#include <limits>

#include "ops/cross_entropy.h"
#include "ops/kernel_cuda.cuh"

namespace untied::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kBatch = 4;  // packs in flight

// exp(x), x <= 0, to two units in the last place where it counts; 0 below 2^-126.
__device__ float exp_below_zero(float x) {
  constexpr float kLog2e = 1.44269504f;
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2e));
  return y;
}

// A sum of exponentials, relative to the largest exponent.
struct Sum {
  float top = -FLT_MAX, below = 0;

  template <int N>
  __device__ void add(const Floats<N>& x) {
    float most = top;
#pragma unroll
    for (int i = 0; i < N; ++i) most = fmaxf(most, x.at[i]);  // ignores NaN, which the sum then shows
    if (most > top) {
      below *= exp_below_zero(top - most);
      top = most;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) below += exp_below_zero(x.at[i] - top);
  }
};

// The same over the block, in every thread. Two blocks of scratch take turns, as for block_sum.
struct BlockSum {
  float top;
  double below;
};
struct SumScratch {
  float top[kWarp];
  double below[kWarp];
};
__device__ BlockSum over_warp(float top, double below) {
  float most = top;
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
  return {most, warp_sum(below * static_cast<double>(exp_below_zero(top - most)))};
}
__device__ BlockSum over_block(const Sum& sum, SumScratch& scratch) {
  const int warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const BlockSum of_warp = over_warp(sum.top, static_cast<double>(sum.below));
  if (warps == 1) return of_warp;
  if (lane == 0) scratch.top[warp] = of_warp.top, scratch.below[warp] = of_warp.below;
  __syncthreads();
  return lane < warps ? over_warp(scratch.top[lane], scratch.below[lane]) : over_warp(-FLT_MAX, 0.0);
}

template <class T>
struct Call {
  Rows<T> logits;
  const std::int32_t* targets;
  double* losses;
  dim_t rows;
  int V;
  int kept;  // packs of a row that shared memory holds
  double scale;
};

template <class T, int N>
__global__ void __launch_bounds__(kMostThreads) cross_entropy_kernel(const Call<T> call) {
  extern __shared__ uint4 shared[];
  Pack<T, N>* const kept = reinterpret_cast<Pack<T, N>*>(shared);
  __shared__ SumScratch scratch[2];
  const int packs = call.V / N, rest = packs * N, threads = blockDim.x;
  int turn = 0;

  for (dim_t r = blockIdx.x; r < call.rows; r += gridDim.x) {
    T* const row = call.logits.at(r, 0);
    const int target = call.targets[r];
    if (target < 0) {
      if (threadIdx.x == 0) call.losses[r] = 0;
      if (call.scale == 0) continue;
      for (int p = threadIdx.x; p < packs; p += threads) store(row + p * N, Floats<N>{});
      for (int v = rest + threadIdx.x; v < call.V; v += threads) store(row + v, Floats<1>{});
      continue;
    }
    const bool exists = target < call.V;
    const float of_target = exists ? widen(row[target]) : std::numeric_limits<float>::quiet_NaN();

    Sum mine;
    for (int first = threadIdx.x; first < packs; first += kBatch * threads) {
      Pack<T, N> batch[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (const int p = first + b * threads; p < packs) batch[b] = load_pack<N>(row + p * N);
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (const int p = first + b * threads; p < packs) {
          if (p < call.kept) kept[p] = batch[b];
          mine.add(widen(batch[b]));
        }
    }
    for (int v = rest + threadIdx.x; v < call.V; v += threads) mine.add(load<1>(row + v));

    const BlockSum all = over_block(mine, scratch[turn ^= 1]);
    __syncwarp();  // with the barrier of several warps: everybody has the target's logit, and it may change
    if (threadIdx.x == 0)
      call.losses[r] = log(all.below) - (static_cast<double>(of_target) - static_cast<double>(all.top));
    if (call.scale == 0) continue;

    const float factor = static_cast<float>(call.scale / all.below), one = static_cast<float>(call.scale);
    const auto gradient = [&](float x, int v) {
      return factor * exp_below_zero(x - all.top) - (v == target ? one : 0.0f);
    };
    for (int first = threadIdx.x; first < packs; first += kBatch * threads) {
      Pack<T, N> batch[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (const int p = first + b * threads; p < packs)
          batch[b] = p < call.kept ? kept[p] : load_pack<N>(row + p * N);
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (const int p = first + b * threads; p < packs) {
          Floats<N> x = widen(batch[b]);
#pragma unroll
          for (int i = 0; i < N; ++i) x.at[i] = gradient(x.at[i], p * N + i);
          store(row + p * N, x);
        }
    }
    for (int v = rest + threadIdx.x; v < call.V; v += threads) store(row + v, Floats<1>{gradient(widen(row[v]), v)});
  }
}

__global__ void __launch_bounds__(kTotalThreads) total_kernel(double* loss, const double* losses, dim_t rows) {
  add_total(loss, losses, rows);
}

}  // namespace

void cross_entropy(Ctx& ctx, const Tensor& loss, const Tensor& logits_RV, const Tensor& targets_R, double scale,
                   const Tensor& loss_R) {
  const cudaStream_t stream = stream_of(ctx);
  const CudaDevice& device = cuda_device(ctx.device);
  const dim_t R = logits_RV.dim(0);
  const int V = narrow_columns("cross_entropy", logits_RV.dim(1));
  with_activation(logits_RV.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto run = [&]<int N>(std::integral_constant<int, N>) {
      const int packs = static_cast<int>(ceil_div(V, N)), element = N * static_cast<int>(sizeof(T));
      constexpr int kForScratch = 2 * 1024;  // static shared memory, and what a launch keeps for itself
      const int kept = scale == 0 ? 0 : std::min(V / N, (device.shared_memory() - kForScratch) / element);
      const int threads = std::clamp(static_cast<int>(round_up(packs, kWarp)), kWarp, kMostThreads);
      const int bytes = kept * element;
      CUDA_CHECK(cudaFuncSetAttribute(cross_entropy_kernel<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
      const int at_once = bytes > device.shared_memory() / 2 ? 1 : std::min(32, 2 * kMostThreads / threads);
      const unsigned blocks = bounded_blocks(device, R, at_once);
      cross_entropy_kernel<T, N><<<blocks, threads, bytes, stream>>>(
          Call<T>{rows_of<T>(logits_RV), targets_R.as<std::int32_t>(), loss_R.as<double>(), R, V, kept, scale});
    };
    if (takes_packs(logits_RV, kPackOf<T>)) run(std::integral_constant<int, kPackOf<T>>());
    else run(std::integral_constant<int, 1>());
  });
  CHECK_LAUNCH("cross_entropy");
  total_kernel<<<1, kTotalThreads, 0, stream>>>(loss.as<double>(), loss_R.as<double>(), R);
  CHECK_LAUNCH("cross_entropy, loss");
}

}  // namespace untied::cuda
