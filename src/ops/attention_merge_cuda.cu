// Kernels around the library's attention, and the plain attention for what the library does not take.
//
// Merging reads and writes each element once, a warp a row: some 40 MB for 32 Ki rows of 128, 10 us beside a call of 1 to 15 ms.
//
// The plain kernels are for fp32, odd shapes and very short documents: clear and right, not fast. A block of eight warps has one
// query row (forward, dq) or one key (dk, dv); each warp takes every eighth key (row) of it, with the head size spread over its
// lanes, and the eight partial results are summed in the order of the warps. Nothing depends on timing.
#include "ops/attention_merge_cuda.h"
#include "ops/kernel_cuda.cuh"

namespace untied {
namespace {

using namespace cuda;

constexpr int kWarps = 8;  // of a block
constexpr int kThreads = kWarps * kWarp;
constexpr int kPerLane = kCudaHeadDim / kWarp;
constexpr int kPack = 4;  // elements of a row that a lane merges at a time

// ------------------------------------------------------------------------------------------------------------------- merging

// One warp a row.
template <bool kByLse>
__global__ void __launch_bounds__(kThreads) merge_kernel(SliceMerge s, LseMerge m) {
  const dim_t index = static_cast<dim_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;  // of the row, over all heads
  if (index >= s.heads * s.rows) return;
  const dim_t head = index / s.rows, row = index % s.rows;
  const int lane = threadIdx.x % kWarp;

  float old_weight = s.first ? 0 : 1, new_weight = 1;
  if constexpr (kByLse) {
    float lse = m.lse_part[index];
    if (!s.first) {
      const float old_lse = m.lse_sum[index], top = fmaxf(old_lse, lse);
      const float old_share = expf(old_lse - top), new_share = expf(lse - top), all = old_share + new_share;
      old_weight = old_share / all;
      new_weight = new_share / all;
      lse = top + logf(all);
    }
    __syncwarp();  // all lanes have read
    if (lane == 0) {
      if (s.last) m.lse_to[head * m.lse_stride + row] = lse;
      else m.lse_sum[index] = lse;
    }
  }
  const bf16* const part = static_cast<const bf16*>(s.part) + index * s.head_dim;
  float* const sum = s.sum + index * s.head_dim;
  bf16* const to = static_cast<bf16*>(s.to.data) + head * s.to.head_stride + row * s.to.row_stride;
  for (int d = lane * kPack; d < s.head_dim; d += kWarp * kPack) {
    Floats<kPack> x = load<kPack>(part + d);
    if (!s.first) {
      const Floats<kPack> old = load<kPack>(sum + d);
#pragma unroll
      for (int i = 0; i < kPack; ++i) x.at[i] = old_weight * old.at[i] + new_weight * x.at[i];
    }
    if (s.last) store(to + d, x);
    else store(sum + d, x);
  }
}

unsigned blocks_for(dim_t rows) {
  const dim_t blocks = ceil_div(rows, kWarps);
  CHECK(blocks <= 0x7fffffff, "{} rows in one launch", rows);
  return static_cast<unsigned>(blocks);
}

// One warp a row; blockIdx.y: dk or dv.
__global__ void __launch_bounds__(kThreads) add_kernel(HeadRows dk, HeadRows dv, const bf16* part_k, const bf16* part_v,
                                                       dim_t heads, dim_t keys, int head_dim) {
  const dim_t index = static_cast<dim_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= heads * keys) return;
  const HeadRows& rows = blockIdx.y == 0 ? dk : dv;
  float* const to = static_cast<float*>(rows.data) + index / keys * rows.head_stride + index % keys * rows.row_stride;
  const bf16* const part = (blockIdx.y == 0 ? part_k : part_v) + index * head_dim;
  for (int d = static_cast<int>(threadIdx.x) % kWarp * kPack; d < head_dim; d += kWarp * kPack) {
    Floats<kPack> sum = load<kPack>(to + d);
    const Floats<kPack> x = load<kPack>(part + d);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum.at[i] += x.at[i];
    store(to + d, sum);
  }
}

// ------------------------------------------------------------------------------------------------------------ plain attention

// Element lane + 32 i of a row, for all i: a row over the lanes of a warp.
struct LaneRow {
  float x[kPerLane];
};

template <class T>
__device__ LaneRow load_row(const HeadRows& t, dim_t head, dim_t row, dim_t head_dim, float factor = 1) {
  const T* const from = static_cast<const T*>(t.data) + head * t.head_stride + row * t.row_stride;
  LaneRow r;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const dim_t d = threadIdx.x % kWarp + i * kWarp;
    r.x[i] = d < head_dim ? factor * widen(from[d]) : 0.0f;
  }
  return r;
}
__device__ float dot(const LaneRow& a, const LaneRow& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) sum += a.x[i] * b.x[i];
  return warp_sum(sum);
}
__device__ void add(LaneRow& to, float factor, const LaneRow& from) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) to.x[i] += factor * from.x[i];
}

// The partial rows of the eight warps, in shared memory.
struct Partials {
  float row[kWarps][kCudaHeadDim];
  __device__ void put(const LaneRow& r) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) row[threadIdx.x / kWarp][threadIdx.x % kWarp + i * kWarp] = r.x[i];
  }
  __device__ float sum(int d) const {
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += row[w][d];
    return total;
  }
};

__device__ dim_t keys_of(const PlainAttention& a, dim_t row) { return min(a.keys, a.diagonal + row + 1); }

template <class T>
__global__ void __launch_bounds__(kThreads) plain_forward_kernel(PlainAttention a) {
  __shared__ Partials partials;
  __shared__ float tops[kWarps], sums[kWarps];
  const dim_t row = blockIdx.x, head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
  const int warp = threadIdx.x / kWarp;
  const LaneRow q = load_row<T>(a.q, head, row, a.head_dim, a.scale);
  LaneRow o = {};
  float top = -INFINITY, sum = 0;
  for (dim_t key = warp, end = keys_of(a, row); key < end; key += kWarps) {
    const float score = dot(q, load_row<T>(a.k, kv_head, key, a.head_dim));
    const LaneRow v = load_row<T>(a.v, kv_head, key, a.head_dim);
    const float new_top = fmaxf(top, score), fade = expf(top - new_top), p = expf(score - new_top);
    sum = fade * sum + p;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) o.x[i] = fade * o.x[i] + p * v.x[i];
    top = new_top;
  }
  if (threadIdx.x % kWarp == 0) tops[warp] = top, sums[warp] = sum;
  __syncthreads();
  float all_top = tops[0], all = 0;  // the first warp had a key
  for (int w = 1; w < kWarps; ++w) all_top = fmaxf(all_top, tops[w]);
  for (int w = 0; w < kWarps; ++w) all += expf(tops[w] - all_top) * sums[w];
  const float weight = expf(top - all_top) / all;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) o.x[i] *= weight;
  partials.put(o);
  __syncthreads();
  T* const to = static_cast<T*>(a.o.data) + head * a.o.head_stride + row * a.o.row_stride;
  for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x) to[d] = narrow<T>(partials.sum(d));
  if (threadIdx.x == 0) a.lse[head * a.lse_stride + row] = all_top + logf(all);
}

template <class T>
__global__ void __launch_bounds__(kThreads) plain_dq_kernel(PlainAttention a) {
  __shared__ Partials partials;
  const dim_t row = blockIdx.x, head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
  const LaneRow q = load_row<T>(a.q, head, row, a.head_dim, a.scale), d_o = load_row<T>(a.d_o, head, row, a.head_dim);
  const float delta = dot(d_o, load_row<T>(a.o, head, row, a.head_dim)), lse = a.lse[head * a.lse_stride + row];
  LaneRow dq = {};
  for (dim_t key = threadIdx.x / kWarp, end = keys_of(a, row); key < end; key += kWarps) {
    const LaneRow k = load_row<T>(a.k, kv_head, key, a.head_dim);
    const float p = expf(dot(q, k) - lse), dp = dot(d_o, load_row<T>(a.v, kv_head, key, a.head_dim));
    add(dq, p * (dp - delta), k);
  }
  partials.put(dq);
  __syncthreads();
  T* const to = static_cast<T*>(a.dq.data) + head * a.dq.head_stride + row * a.dq.row_stride;
  for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x) to[d] = narrow<T>(a.scale * partials.sum(d));
}

// dk and dv of a key, over all query heads that share it.
template <class T>
__global__ void __launch_bounds__(kThreads) plain_dkdv_kernel(PlainAttention a) {
  __shared__ Partials partials;
  const dim_t key = blockIdx.x, kv_head = blockIdx.y, shared = a.heads / a.kv_heads;
  const LaneRow k = load_row<T>(a.k, kv_head, key, a.head_dim), v = load_row<T>(a.v, kv_head, key, a.head_dim);
  const dim_t first = max(dim_t{0}, key - a.diagonal);  // the first row that attends the key
  LaneRow dk = {}, dv = {};
  for (dim_t head = kv_head * shared; head < (kv_head + 1) * shared; ++head)
    for (dim_t row = first + threadIdx.x / kWarp; row < a.rows; row += kWarps) {
      const LaneRow q = load_row<T>(a.q, head, row, a.head_dim, a.scale),
                    d_o = load_row<T>(a.d_o, head, row, a.head_dim);
      const float delta = dot(d_o, load_row<T>(a.o, head, row, a.head_dim)), lse = a.lse[head * a.lse_stride + row];
      const float p = expf(dot(q, k) - lse), dp = dot(d_o, v);
      add(dk, p * (dp - delta), q);  // q has the scale in it
      add(dv, p, d_o);
    }
  partials.put(dk);
  __syncthreads();
  float* const to_k = static_cast<float*>(a.dk.data) + kv_head * a.dk.head_stride + key * a.dk.row_stride;
  for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x) to_k[d] += partials.sum(d);
  __syncthreads();
  partials.put(dv);
  __syncthreads();
  float* const to_v = static_cast<float*>(a.dv.data) + kv_head * a.dv.head_stride + key * a.dv.row_stride;
  for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x) to_v[d] += partials.sum(d);
}

void check_plain(const PlainAttention& a) {
  if (a.head_dim > kCudaHeadDim)
    throw ConfigError("attention on cuda takes head sizes up to {}, not {}", kCudaHeadDim, a.head_dim);
  CHECK(a.heads <= 0xffff && a.rows <= 0x7fffffff && a.keys <= 0x7fffffff, "{} heads, {} rows, {} keys in one launch",
        a.heads, a.rows, a.keys);
  CHECK(a.kv_heads >= 1 && a.heads % a.kv_heads == 0 && a.diagonal >= 0, "{} heads, {} key/value heads, diagonal {}",
        a.heads, a.kv_heads, a.diagonal);
}

dim3 grid(dim_t x, dim_t y) { return {static_cast<unsigned>(x), static_cast<unsigned>(y)}; }

template <class T>
void launch_plain_backward(cudaStream_t stream, const PlainAttention& a) {
  plain_dq_kernel<T><<<grid(a.rows, a.heads), kThreads, 0, stream>>>(a);
  plain_dkdv_kernel<T><<<grid(a.keys, a.kv_heads), kThreads, 0, stream>>>(a);
}

}  // namespace

void merge_o(Ctx& ctx, const SliceMerge& slice, const LseMerge& lse) {
  merge_kernel<true><<<blocks_for(slice.heads * slice.rows), kThreads, 0, stream_of(ctx)>>>(slice, lse);
  CHECK_LAUNCH("attention_forward, merging slices");
}

void merge_dq(Ctx& ctx, const SliceMerge& slice) {
  merge_kernel<false><<<blocks_for(slice.heads * slice.rows), kThreads, 0, stream_of(ctx)>>>(slice, {});
  CHECK_LAUNCH("attention_backward, adding dq");
}

void add_key_value_gradients(Ctx& ctx, const HeadRows& dk, const HeadRows& dv, const void* part_k, const void* part_v,
                             dim_t heads, dim_t keys, dim_t head_dim) {
  add_kernel<<<dim3(blocks_for(heads * keys), 2), kThreads, 0, stream_of(ctx)>>>(dk, dv,
                                                                                 static_cast<const bf16*>(part_k),
                                                                                 static_cast<const bf16*>(part_v),
                                                                                 heads, keys,
                                                                                 static_cast<int>(head_dim));
  CHECK_LAUNCH("attention_backward, adding dk and dv");
}

void plain_attention_forward(Ctx& ctx, const PlainAttention& a) {
  check_plain(a);
  const dim3 blocks = grid(a.rows, a.heads);
  if (a.dtype == DType::kF32) plain_forward_kernel<float><<<blocks, kThreads, 0, stream_of(ctx)>>>(a);
  else plain_forward_kernel<bf16><<<blocks, kThreads, 0, stream_of(ctx)>>>(a);
  CHECK_LAUNCH("attention_forward, plain");
}

void plain_attention_backward(Ctx& ctx, const PlainAttention& a) {
  check_plain(a);
  if (a.dtype == DType::kF32) launch_plain_backward<float>(stream_of(ctx), a);
  else launch_plain_backward<bf16>(stream_of(ctx), a);
  CHECK_LAUNCH("attention_backward, plain");
}

}  // namespace untied
