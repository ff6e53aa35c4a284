#include "ops/embedding.h"

#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/ref_ops.h"
#include "support/tolerances.h"

namespace untied::test {
namespace {

std::vector<double> some_ids(dim_t T, dim_t V) {
  std::vector<double> ids(static_cast<std::size_t>(T));
  for (dim_t t = 0; t < T; ++t) ids[t] = static_cast<double>(t * t % V);  // many of them several times
  return ids;
}

TEST(Embedding, ForwardAndBackward) {
  for (const OnBackend& on : backends())
    for (const auto [T, V, E, gap] :
         {std::array<dim_t, 4>{1, 1, 1, 0}, {3, 5, 113, 4}, {113, 40, 1025, 0}, {1023, 11, 3, 1}, {0, 4, 4, 0}}) {
      Rank rank(on);
      const auto table = draw(V * E, 1), dx = draw(T * E, 2), dtable_before = draw(V * E, 3), ids = some_ids(T, V);
      const Tensor x_TE = rank.put({}, on.activations, {T, E}, gap), ids_T = rank.put(ids, DType::kI32, {T});
      embedding_forward(rank.ctx(), x_TE, ids_T, rank.put(table, on.activations, {V, E}, gap));
      const Tensor dtable_VE = rank.put(dtable_before, {V, E}, gap);
      embedding_backward(rank.ctx(), dtable_VE, ids_T, rank.put(dx, on.activations, {T, E}, gap));

      ref::Values x(T * E), dtable = dtable_before;
      for (dim_t i = 0; i < T * E; ++i) {
        const dim_t at = static_cast<dim_t>(ids[i / E]) * E + i % E;
        x[i] = table[at];
        dtable[at] += dx[i];
      }
      EXPECT_TRUE(near_all(rank.get(x_TE), x, tolerance("copy")));
      EXPECT_TRUE(near_all(rank.get(dtable_VE), dtable, tolerance("sum")));
      EXPECT_TRUE(rank.gaps_untouched());
    }
}

// 1e9, -1e9 and 1, again and again: in this order every partial sum of three is 1, in others the small one is lost.
TEST(Embedding, TokensAreAddedInOrder) {
  const dim_t T = 120, E = 700;  // enough for several threads
  ref::Values dx(T * E);
  for (dim_t i = 0; i < T * E; ++i) dx[i] = i / E % 3 == 0 ? 1e9 : i / E % 3 == 1 ? -1e9 : 1;
  for (int threads : {1, 2, 5}) {
    Rank rank({"", Backend::kCpu, DType::kF32, threads});
    const Tensor dtable = rank.put(ref::Values(E), {1, E});
    embedding_backward(rank.ctx(), dtable, rank.put(ref::Values(T), DType::kI32, {T}), rank.put(dx, {T, E}));
    EXPECT_EQ(rank.get(dtable), ref::Values(E, 1.0)) << threads;
  }
}

TEST(Embedding, Errors) {
  Rank rank;
  const Tensor table = rank.put(draw(12, 1), {3, 4}), x = rank.put({}, {2, 4});
  const auto with_ids = [&](ref::Values ids) {
    return message_of<InputError>([&] { embedding_forward(rank.ctx(), x, rank.put(ids, DType::kI32, {2}), table); });
  };
  EXPECT_EQ(with_ids({1, 3}), "token 1 has id 3, the vocabulary has 3 rows");
  EXPECT_EQ(with_ids({-100, 3}), "token 0 has id -100, the vocabulary has 3 rows");
  EXPECT_EQ(with_ids({0, 2}), "");
  const Tensor ids = rank.put({0, 1, 2}, DType::kI32, {3});
  const std::string text = message_of<InternalError>([&] { embedding_forward(rank.ctx(), x, ids, table); });
  EXPECT_NE(text.find("fp32[2, 4] is not a row of fp32[3, 4] for each of int32[3]"), std::string::npos) << text;
}

}  // namespace
}  // namespace untied::test
