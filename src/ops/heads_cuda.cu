// heads_pack and heads_unpack on cuda, bound by memory. A thread takes one pack of columns of a row (with rotation: one of the
// first half of a head, and its partner in the second half) through four heads: it loads the angles once, and has four or eight
// packs in flight. Which head comes from where travels with the kernel's arguments; longer lists take several launches.
// Sustained: 4,026 GB/s, 96 % of a device copy, unpack 3,959; with rotation 3,402 and 3,327 (H200, 64 Ki rows, 32 heads of 128, bf16) (`untied bench ops`).
#include <vector>

#include "ops/heads.h"
#include "ops/kernel_cuda.cuh"

namespace untied::cuda {
namespace {

constexpr int kTogether = 4;     // heads that a thread takes through
constexpr int kMostHeads = 256;  // of one launch
constexpr int kMostSources = 512;

// Angles of a row, from column c on; sines with their sign turned for the way back.
template <int N>
struct Turn {
  Floats<N> cos, sin;

  __device__ void of(const Rows<const float>& cosines, const Rows<const float>& sines, dim_t r, int c,
                     float direction) {
    cos = load<N>(cosines.at(r, c)), sin = load<N>(sines.at(r, c));
#pragma unroll
    for (int i = 0; i < N; ++i) sin.at[i] *= direction;
  }
  __device__ void apply(Floats<N>& first, Floats<N>& second) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float a = first.at[i], b = second.at[i];
      first.at[i] = a * cos.at[i] - b * sin.at[i];
      second.at[i] = b * cos.at[i] + a * sin.at[i];
    }
  }
};

template <class T>
struct Heads {
  T* data;
  dim_t head_stride, row_stride;
  __device__ T* at(dim_t head, dim_t row, int column) const {
    return data + head * head_stride + row * row_stride + column;
  }
};
template <class T>
Heads<T> heads_of(const Tensor& t) {
  return {t.as<T>(), t.stride(0), t.stride(1)};
}

template <class T>
struct PackCall {
  Heads<T> heads;
  Rows<const T> tokens;
  Rows<const float> cos, sin;
  dim_t rows;
  int D, count;  // heads of this launch
  int source[kMostHeads];
};

// kRotate: columns are those of the first half.
template <class T, int N, bool kRotate>
__global__ void __launch_bounds__(kWalkThreads) pack_kernel(const __grid_constant__ PackCall<T> call) {
  const int columns = kRotate ? call.D / 2 : call.D, first = blockIdx.y * kTogether;
  for (dim_t r = dim_t{blockIdx.x} * blockDim.y + threadIdx.y; r < call.rows; r += dim_t{gridDim.x} * blockDim.y)
    for (int c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
      Pack<T, N> low[kTogether], high[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= call.count) continue;
        const T* const from = call.tokens.at(r, dim_t{call.source[first + k]} * call.D + c);
        low[k] = load_pack<N>(from);
        if constexpr (kRotate) high[k] = load_pack<N>(from + columns);
      }
      Turn<N> turn;
      if constexpr (kRotate) turn.of(call.cos, call.sin, r, c, +1);
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= call.count) continue;
        T* const to = call.heads.at(first + k, r, c);
        if constexpr (kRotate) {
          Floats<N> a = widen(low[k]), b = widen(high[k]);
          turn.apply(a, b);
          store(to, a), store(to + columns, b);
        } else {
          store_pack(to, low[k]);
        }
      }
    }
}

template <class T, class S>
struct UnpackCall {
  Rows<T> tokens;  // from the launch's first head on
  Heads<const S> heads;
  Rows<const float> cos, sin;
  dim_t rows;
  int D, count;  // heads of tokens in this launch
  int begin[kMostHeads + 1];
  int source[kMostSources];  // head h is the sum of heads source[begin[h]], ..., source[begin[h + 1] - 1]
};

template <class T, class S, int N, bool kRotate>
__global__ void __launch_bounds__(kWalkThreads) unpack_kernel(const __grid_constant__ UnpackCall<T, S> call) {
  const int columns = kRotate ? call.D / 2 : call.D, first = blockIdx.y * kTogether;
  const auto add = [](Floats<N>& sum, const Floats<N>& x) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum.at[i] += x.at[i];
  };
  for (dim_t r = dim_t{blockIdx.x} * blockDim.y + threadIdx.y; r < call.rows; r += dim_t{gridDim.x} * blockDim.y)
    for (int c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
      // Most heads come from one place, so the first of each is loaded ahead.
      Pack<S, N> low[kTogether], high[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= call.count) continue;
        const S* const from = call.heads.at(call.source[call.begin[first + k]], r, c);
        low[k] = load_pack<N>(from);
        if constexpr (kRotate) high[k] = load_pack<N>(from + columns);
      }
      Turn<N> turn;
      if constexpr (kRotate) turn.of(call.cos, call.sin, r, c, -1);
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= call.count) continue;
        Floats<N> a = widen(low[k]), b{};
        if constexpr (kRotate) b = widen(high[k]);
        for (int s = call.begin[first + k] + 1; s < call.begin[first + k + 1]; ++s) {
          const S* const from = call.heads.at(call.source[s], r, c);
          add(a, load<N>(from));
          if constexpr (kRotate) add(b, load<N>(from + columns));
        }
        if constexpr (kRotate) turn.apply(a, b);
        T* const to = call.tokens.at(r, dim_t{first + k} * call.D + c);
        store(to, a);
        if constexpr (kRotate) store(to + columns, b);
      }
    }
}

struct Grid {
  dim3 blocks, threads;
};
Grid grid_of(const Ctx& ctx, dim_t rows, int packs, int heads) {
  const dim3 threads = walk_block(packs);
  constexpr int kBlocks = 32;                                             // per multiprocessor
  const auto across = static_cast<unsigned>(ceil_div(heads, kTogether));  // at most 64
  return {dim3(bounded_blocks(cuda_device(ctx.device), ceil_div(rows, threads.y), kBlocks), across), threads};
}

// launch(integral_constant N, bool_constant kRotate, columns of a thread's walk) with what the tensors allow.
template <int kPack, class Launch>
void with_packs(const Tensor& heads_NRD, const Tensor& tokens_RH, const RopeAngles* angles, Launch&& launch) {
  const int D = narrow_columns("heads", heads_NRD.dim(2)), columns = angles ? D / 2 : D;
  bool packs = columns % kPack == 0 && all_take_packs({&heads_NRD, &tokens_RH}, kPack);
  if (angles) packs = packs && all_take_packs({&angles->cos_RF, &angles->sin_RF}, kPack);
  const auto with_rotation = [&](auto n) {
    const int walked = columns / decltype(n)::value;
    if (angles) launch(n, std::true_type(), walked);
    else launch(n, std::false_type(), walked);
  };
  if (packs) with_rotation(std::integral_constant<int, kPack>());
  else with_rotation(std::integral_constant<int, 1>());
}

}  // namespace

void heads_pack(Ctx& ctx, const Tensor& heads_NRD, const Tensor& tokens_RH, std::span<const int> source,
                const RopeAngles* angles) {
  const dim_t N = heads_NRD.dim(0), R = heads_NRD.dim(1);
  const cudaStream_t stream = stream_of(ctx);
  with_activation(heads_NRD.dtype(), [&]<class T>(std::type_identity<T>) {
    for (dim_t begin = 0; begin < N; begin += kMostHeads) {
      const dim_t end = std::min(begin + kMostHeads, N);
      PackCall<T> call{.heads = heads_of<T>(heads_NRD.rows(begin, end)),
                       .tokens = rows_of<const T>(tokens_RH),
                       .rows = R,
                       .D = static_cast<int>(heads_NRD.dim(2)),
                       .count = static_cast<int>(end - begin)};
      if (angles) call.cos = rows_of<const float>(angles->cos_RF), call.sin = rows_of<const float>(angles->sin_RF);
      std::copy(source.begin() + begin, source.begin() + end, call.source);
      with_packs<kPackOf<T>>(heads_NRD, tokens_RH, angles,
                             [&]<int kPack, bool kRotate>(std::integral_constant<int, kPack>,
                                                          std::bool_constant<kRotate>, int packs) {
                               const Grid grid = grid_of(ctx, R, packs, call.count);
                               pack_kernel<T, kPack, kRotate><<<grid.blocks, grid.threads, 0, stream>>>(call);
                             });
      CHECK_LAUNCH("heads_pack");
    }
  });
}

void heads_unpack(Ctx& ctx, const Tensor& tokens_RH, const Tensor& heads_NRD, std::span<const int> source,
                  const RopeAngles* angles) {
  const dim_t R = heads_NRD.dim(1), D = heads_NRD.dim(2), H = tokens_RH.dim(1) / D;
  std::vector<std::vector<int>> sources(static_cast<std::size_t>(H));  // of each head, in order
  for (int n = 0; n < static_cast<int>(source.size()); ++n) sources[source[n]].push_back(n);
  const cudaStream_t stream = stream_of(ctx);

  const auto unpack = [&]<class T, class S>(std::type_identity<T>, std::type_identity<S>) {
    for (dim_t begin = 0; begin < H;) {
      UnpackCall<T, S> call{.heads = heads_of<const S>(heads_NRD), .rows = R, .D = static_cast<int>(D)};
      int used = 0;
      dim_t end = begin;
      for (; end < H && end - begin < kMostHeads; ++end) {
        const std::vector<int>& of_head = sources[end];
        const int more = static_cast<int>(of_head.size());
        CHECK(more <= kMostSources, "heads_unpack: a head of {} sources", more);
        if (used + more > kMostSources) break;
        call.begin[end - begin] = used;
        std::copy(of_head.begin(), of_head.end(), call.source + used);
        used += more;
      }
      call.count = static_cast<int>(end - begin);
      call.begin[call.count] = used;
      call.tokens = rows_of<T>(tokens_RH.slice(1, {begin * D, end * D}));
      if (angles) call.cos = rows_of<const float>(angles->cos_RF), call.sin = rows_of<const float>(angles->sin_RF);
      with_packs<kPackOf<T, S>>(heads_NRD, tokens_RH, angles,
                                [&]<int kPack, bool kRotate>(std::integral_constant<int, kPack>,
                                                             std::bool_constant<kRotate>, int packs) {
                                  const Grid grid = grid_of(ctx, R, packs, call.count);
                                  unpack_kernel<T, S, kPack, kRotate><<<grid.blocks, grid.threads, 0, stream>>>(call);
                                });
      CHECK_LAUNCH("heads_unpack");
      begin = end;
    }
  };
  with_activation(tokens_RH.dtype(), [&]<class T>(std::type_identity<T> t) {
    if (heads_NRD.dtype() == DType::kF32) unpack(t, std::type_identity<float>());
    else unpack(t, std::type_identity<T>());
  });
}

}  // namespace untied::cuda
