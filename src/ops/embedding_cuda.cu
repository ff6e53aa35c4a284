// Embedding on cuda. Forward copies rows.
//
// Backward adds the tokens of an id in order, always: no sorting, no scratch, no race. The ids are shared out over 256 warps by
// their last eight bits, for each strip of columns anew. Every warp reads all ids and adds the rows of its own, so a place of
// the table belongs to one thread, and a thread's additions to one address take effect in the order of the program. They are
// reductions in L2 that nobody waits for. Reading all ids 256 times per strip comes from L1 and L2; an id that most tokens have
// (padding) makes its one warp slow: some 0.1 us a token, against minutes of everything else at lengths where that adds up.
//
// The loader checks ids. A bad one would give NaN here, which ends the run, and no stray access.
// Sustained: forward 3,998 GB/s, 96 % of a device copy; backward 1,487, 36 %, with random ids (H200, 64 Ki tokens of 4096) (`untied bench ops`).
#include <limits>

#include "ops/embedding.h"
#include "ops/kernel_cuda.cuh"

namespace untied::cuda {
namespace {

template <class T>
struct LookUp {
  Rows<T> x;
  Rows<const T> table;
  const std::int32_t* ids;
  dim_t vocabulary;

  template <int N>
  __device__ void run(dim_t t, dim_t c) const {
    const dim_t id = ids[t];
    if (0 <= id && id < vocabulary) {
      store_pack(x.at(t, c), load_pack<N>(table.at(id, c)));
      return;
    }
    Floats<N> none;
#pragma unroll
    for (int i = 0; i < N; ++i) none.at[i] = std::numeric_limits<float>::quiet_NaN();
    store(x.at(t, c), none);
  }
};

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kClasses = 256;  // of ids
static_assert(kClasses % kWarps == 0);

__device__ void add_to(float* to, const Floats<4>& x) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "f"(x.at[0]), "f"(x.at[1]), "f"(x.at[2]), "f"(x.at[3])
               : "memory");
}
__device__ void add_to(float* to, const Floats<1>& x) { atomicAdd(to, x.at[0]); }

// grid: strips of 32 N columns, kClasses / kWarps blocks each.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    embedding_backward_kernel(Rows<float> dtable, const std::int32_t* ids, Rows<const T> dx, dim_t tokens,
                              dim_t vocabulary, dim_t columns) {
  constexpr unsigned kBlocksOfClasses = kClasses / kWarps;
  constexpr int kBatch = 8;  // rows in flight
  const int lane = threadIdx.x % kWarp;
  const int mine = static_cast<int>(blockIdx.x % kBlocksOfClasses) * kWarps + threadIdx.x / kWarp;
  const dim_t column = dim_t{blockIdx.x / kBlocksOfClasses} * (kWarp * N) + lane * N;
  const bool has_column = column < columns;  // then it has the whole pack: packs are used where they divide the columns

  int next = lane < tokens ? ids[lane] : -1;
  for (dim_t first = 0; first < tokens; first += kWarp) {
    const int id = next;
    const dim_t ahead = first + kWarp + lane;
    next = ahead < tokens ? ids[ahead] : -1;
    unsigned matches = __ballot_sync(0xffffffffu, 0 <= id && id < vocabulary && id % kClasses == mine);
    while (matches != 0) {
      int token[kBatch];
      Floats<N> row[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        token[b] = __ffs(static_cast<int>(matches)) - 1;  // -1: there are no more
        matches &= matches - 1;
        if (token[b] >= 0 && has_column) row[b] = load<N>(dx.at(first + token[b], column));
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const dim_t row_of_table = __shfl_sync(0xffffffffu, id, max(token[b], 0));
        if (token[b] >= 0 && has_column) add_to(dtable.at(row_of_table, column), row[b]);
      }
    }
  }
}

}  // namespace

void embedding_forward(Ctx& ctx, const Tensor& x_TE, const Tensor& ids_T, const Tensor& table_VE) {
  with_activation(x_TE.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int kPack = kPackOf<T>;
    walk<kPack>(ctx, "embedding_forward", x_TE.dim(0), x_TE.dim(1), all_take_packs({&x_TE, &table_VE}, kPack),
                LookUp<T>{rows_of<T>(x_TE), rows_of<const T>(table_VE), ids_T.as<std::int32_t>(), table_VE.dim(0)});
  });
}

void embedding_backward(Ctx& ctx, const Tensor& dtable_VE, const Tensor& ids_T, const Tensor& dx_TE) {
  const dim_t T = dx_TE.dim(0), E = dx_TE.dim(1), V = dtable_VE.dim(0);
  const cudaStream_t stream = stream_of(ctx);
  const auto blocks_of = [&](int pack) {
    return static_cast<unsigned>(ceil_div(narrow_columns("embedding_backward", E), kWarp * pack) * (kClasses / kWarps));
  };
  constexpr int kPack = kPackOf<float>;
  const bool packs = E % kPack == 0 && all_take_packs({&dtable_VE, &dx_TE}, kPack);
  with_activation(dx_TE.dtype(), [&]<class A>(std::type_identity<A>) {
    const Rows<float> dtable = rows_of<float>(dtable_VE);
    const Rows<const A> dx = rows_of<const A>(dx_TE);
    const std::int32_t* const ids = ids_T.as<std::int32_t>();
    if (packs) embedding_backward_kernel<A, kPack><<<blocks_of(kPack), kThreads, 0, stream>>>(dtable, ids, dx, T, V, E);
    else embedding_backward_kernel<A, 1><<<blocks_of(1), kThreads, 0, stream>>>(dtable, ids, dx, T, V, E);
  });
  CHECK_LAUNCH("embedding_backward");
}

}  // namespace untied::cuda
