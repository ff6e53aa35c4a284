// What the cuda kernels share: fp32 values of either activation type, packs of 16 bytes, sums over a block, and a walk over
// rows and columns for whatever is done element by element.
//
// A kernel computes in fp32. It is compiled twice for each type: for packs of elements, and for single ones where an address or
// a distance between rows is not a multiple of what a pack needs. Indices are 64-bit; where one is not, the launch checks.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "device/cuda/check.h"
#include "device/cuda/stream.h"
#include "ops/op.h"

namespace untied::cuda {

using bf16 = __nv_bfloat16;

// body(std::type_identity<T>) with the element type of an activation.
template <class Body>
void with_activation(DType dtype, Body&& body) {
  if (dtype == DType::kBF16) body(std::type_identity<bf16>());
  else body(std::type_identity<float>());
}

// ------------------------------------------------------------------------------------------------------- elements and packs

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __bfloat162float(x); }

// To the nearest, ties to even.
template <class T>
__device__ T narrow(float x) {
  if constexpr (std::is_same_v<T, bf16>) return __float2bfloat16_rn(x);
  else return x;
}

// N elements that one access moves, as they lie in memory: words, because two bf16 apart would take two registers.
template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  static_assert(N * sizeof(T) <= 16);
  using Word = std::conditional_t<N * sizeof(T) == 2, std::uint16_t, std::uint32_t>;
  Word words[N * sizeof(T) / sizeof(Word)];
};

// Elements of a pack when all of Ts are read or written side by side: 16 bytes of the widest.
template <class... Ts>
inline constexpr int kPackOf = 16 / static_cast<int>(std::max({sizeof(Ts)...}));

template <int N>
struct Floats {
  float at[N];
};

template <int N, class T>
__device__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <class T, int N>
__device__ void store_pack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}
template <class T, int N>
__device__ Floats<N> widen(const Pack<T, N>& pack) {
  Floats<N> x;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (std::is_same_v<T, float>) x.at[i] = __uint_as_float(pack.words[i]);
    else if constexpr (N == 1) x.at[i] = __uint_as_float(std::uint32_t{pack.words[i]} << 16);
    else x.at[i] = __uint_as_float(i % 2 == 0 ? pack.words[i / 2] << 16 : pack.words[i / 2] & 0xffff0000u);
  }
  return x;
}
// To the nearest, ties to even.
template <class T, int N>
__device__ Pack<T, N> narrow(const Floats<N>& x) {
  Pack<T, N> pack;
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < N; ++i) pack.words[i] = __float_as_uint(x.at[i]);
  } else if constexpr (N == 1) {
    pack.words[0] = __bfloat16_as_ushort(__float2bfloat16_rn(x.at[0]));
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x.at[i], x.at[i + 1]);
      pack.words[i / 2] = reinterpret_cast<const std::uint32_t&>(pair);
    }
  }
  return pack;
}
// Any N: as many accesses as it takes.
template <int N, class T>
__device__ Floats<N> load(const T* from) {
  if constexpr (N * sizeof(T) <= 16) {
    return widen(load_pack<N>(from));
  } else {
    constexpr int kPart = 16 / sizeof(T);
    Floats<N> x;
#pragma unroll
    for (int part = 0; part < N / kPart; ++part) {
      const Floats<kPart> piece = load<kPart>(from + part * kPart);
#pragma unroll
      for (int i = 0; i < kPart; ++i) x.at[part * kPart + i] = piece.at[i];
    }
    return x;
  }
}
template <class T, int N>
__device__ void store(T* to, const Floats<N>& x) {
  store_pack(to, narrow<T>(x));
}

// A view as kernels take it: rows of adjacent elements.
template <class T>
struct Rows {
  T* data;
  dim_t stride;
  __device__ T* at(dim_t row, dim_t column) const { return data + row * stride + column; }
};
template <class T>
Rows<T> rows_of(const Tensor& t) {
  return {t.as<T>(), t.rank() > 1 ? t.stride(0) : 0};
}

// Whether packs of n elements can be moved in every row of t, from its first element on.
inline bool takes_packs(const Tensor& t, int n) {
  const dim_t element = static_cast<dim_t>(size_of(t.dtype())), bytes = std::min<dim_t>(16, n * element);
  bool aligned = std::bit_cast<std::uintptr_t>(t.raw()) % static_cast<std::uintptr_t>(bytes) == 0;
  for (int d = 0; d + 1 < t.rank(); ++d) aligned &= t.dim(d) <= 1 || t.stride(d) * element % bytes == 0;
  return aligned;
}
inline bool all_take_packs(std::initializer_list<const Tensor*> tensors, int n) {
  return std::all_of(tensors.begin(), tensors.end(), [n](const Tensor* t) { return takes_packs(*t, n); });
}

// For kernels that count the columns of a row in 32 bits.
inline int narrow_columns(const char* op, dim_t columns) {
  CHECK(columns <= std::numeric_limits<int>::max() / 2, "{}: rows of {} elements", op, columns);
  return static_cast<int>(columns);
}

// ------------------------------------------------------------------------------------------------------------------- blocks

inline constexpr int kWarp = 32;

// Blocks of a grid that covers `wanted` pieces of work: all of them, or as many as keep every multiprocessor busy, which then
// take the pieces in turn. Several times what runs at once, so that the last ones to finish leave little idle.
inline unsigned bounded_blocks(const CudaDevice& device, dim_t wanted, int per_multiprocessor) {
  const dim_t most = dim_t{device.multiprocessors()} * per_multiprocessor;
  return static_cast<unsigned>(std::clamp<dim_t>(wanted, 1, most));
}

// The sum over a warp, the same bits in every lane.
template <class V>
__device__ V warp_sum(V v) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;
}

// The sums of kValues values over a block, the same bits in every thread. Its order is that of the threads' numbers, whatever
// the timing. One barrier: sums that follow each other alternate between two scratches (a thread may still read the last one).
template <class V, int kValues>
__device__ void block_sum(V (&v)[kValues], V (&scratch)[kWarp][kValues]) {
  const int warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kValues; ++i) v[i] = warp_sum(v[i]);
  if (warps == 1) return;
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) scratch[warp][i] = v[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kValues; ++i) v[i] = warp_sum(lane < warps ? scratch[lane][i] : V{0});
}

// *total += the sum of n values, by one block, in an order that n alone decides.
inline constexpr int kTotalThreads = 1024;
__device__ inline void add_total(double* total, const double* values, dim_t n) {
  __shared__ double scratch[kWarp][1];
  double sum[1] = {0};
  for (dim_t i = threadIdx.x; i < n; i += kTotalThreads) sum[0] += values[i];
  block_sum(sum, scratch);
  if (threadIdx.x == 0) *total += sum[0];
}

// --------------------------------------------------------------------------------------------------------------- rows, columns

inline constexpr int kWalkThreads = 256;

// op.run<N>(row, column) for every pack of N columns, op.run<1> for the columns that are left over. A block is as wide as the
// rows are, up to 256 packs, and has several rows if that leaves threads.
template <int N, class Op>
__global__ void __launch_bounds__(kWalkThreads) walk_kernel(const __grid_constant__ Op op, dim_t rows, dim_t columns) {
  const dim_t packs = columns / N, first = dim_t{blockIdx.y} * blockDim.x + threadIdx.x,
              step = dim_t{gridDim.y} * blockDim.x;
  for (dim_t r = dim_t{blockIdx.x} * blockDim.y + threadIdx.y; r < rows; r += dim_t{gridDim.x} * blockDim.y) {
    for (dim_t p = first; p < packs; p += step) op.template run<N>(r, p * N);
    if constexpr (N > 1)
      for (dim_t c = packs * N + first; c < columns; c += step) op.template run<1>(r, c);
  }
}

// The block for rows of `packs` packs: x over the packs, y over rows.
inline dim3 walk_block(dim_t packs) {
  const unsigned across = std::bit_ceil(static_cast<unsigned>(std::clamp<dim_t>(packs, 1, kWalkThreads)));
  return dim3(across, kWalkThreads / across);
}

// Over [rows, columns]; `aligned`: packs of N may be used.
template <int N, class Op>
void walk(Ctx& ctx, const char* name, dim_t rows, dim_t columns, bool aligned, const Op& op) {
  const cudaStream_t stream = stream_of(ctx);
  const dim_t packs = aligned ? ceil_div(columns, N) : columns;
  const dim3 block = walk_block(packs);
  constexpr int kBlocks = 32;  // per multiprocessor, eight of which run at once
  const unsigned down = bounded_blocks(cuda_device(ctx.device), ceil_div(rows, block.y), kBlocks);
  const unsigned most = bounded_blocks(cuda_device(ctx.device), std::numeric_limits<dim_t>::max(), kBlocks);
  const unsigned across =
      static_cast<unsigned>(std::clamp<dim_t>(ceil_div(packs, block.x), 1, std::max(1u, most / down)));
  if (aligned) walk_kernel<N, Op><<<dim3(down, across), block, 0, stream>>>(op, rows, columns);
  else walk_kernel<1, Op><<<dim3(down, across), block, 0, stream>>>(op, rows, columns);
  CHECK_LAUNCH(name);
}

// The same over tensors of one shape with plain rows; all contiguous ones are one long row.
template <int N, class Op>
void walk(Ctx& ctx, const char* name, std::initializer_list<const Tensor*> tensors, const Op& op) {
  const Tensor& t = **tensors.begin();
  const bool flat =
      t.rank() == 1 || std::all_of(tensors.begin(), tensors.end(), [](const Tensor* x) { return x->is_contiguous(); });
  const bool aligned =
      flat ? std::all_of(tensors.begin(), tensors.end(), [](const Tensor* x) { return takes_packs(x->flat(), N); })
           : all_take_packs(tensors, N);
  walk<N>(ctx, name, flat ? 1 : t.dim(0), flat ? t.size() : t.dim(1), aligned, op);
}

}  // namespace untied::cuda
