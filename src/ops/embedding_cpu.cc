// Embedding on the cpu. Forward copies rows, tokens in parallel. Backward gives each thread a strip of columns and lets it walk
// all tokens in order: equal ids then add up in one order for any number of threads, with no sorting and no atomics.
#include "ops/cpu_kernel.h"
#include "ops/embedding.h"

namespace untied::cpu {
namespace {

// The loader checks ids too; here a bad one would be a stray read.
void check_ids(const Tensor& ids_T, dim_t V) {
  const std::int32_t* ids = ids_T.as<std::int32_t>();
  for (dim_t t = 0; t < ids_T.size(); ++t)
    if (ids[t] < 0 || ids[t] >= V) throw InputError("token {} has id {}, the vocabulary has {} rows", t, ids[t], V);
}

}  // namespace

void embedding_forward(Ctx& ctx, const Tensor& x_TE, const Tensor& ids_T, const Tensor& table_VE) {
  require_f32("embedding_forward", {&x_TE, &table_VE});
  check_ids(ids_T, table_VE.dim(0));
  const std::int32_t* ids = ids_T.as<std::int32_t>();
  const dim_t E = x_TE.dim(1);
  parallel_for(ctx, x_TE.dim(0), E, [&](dim_t t) { std::copy_n(row_of(table_VE, ids[t]), E, row_of(x_TE, t)); });
}

void embedding_backward(Ctx& ctx, const Tensor& dtable_VE, const Tensor& ids_T, const Tensor& dx_TE) {
  require_f32("embedding_backward", {&dtable_VE, &dx_TE});
  check_ids(ids_T, dtable_VE.dim(0));
  const std::int32_t* ids = ids_T.as<std::int32_t>();
  constexpr dim_t kStrip = 256;
  const dim_t T = dx_TE.dim(0), E = dx_TE.dim(1);
  parallel_for(ctx, ceil_div(E, kStrip), T * kStrip, [&](dim_t strip) {
    const dim_t begin = strip * kStrip, columns = std::min(kStrip, E - begin);
    for (dim_t t = 0; t < T; ++t)
      Array(row_of(dtable_VE, ids[t]) + begin, columns) += ConstArray(row_of(dx_TE, t) + begin, columns);
  });
}

}  // namespace untied::cpu
