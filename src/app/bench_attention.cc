// `untied bench attention`: a block of the last query rows against all keys before and beside them, as the engine calls it,
// and a whole sequence. Shapes are query heads x query rows x keys x head size; the query heads share one key/value head.
#include <cmath>

#include "app/bench.h"

namespace untied {
namespace {

struct Sizes {
  dim_t rows;               // of a block
  std::vector<dim_t> keys;  // it is measured against
  dim_t whole;              // the longest sequence that is also measured at once
};
Sizes sizes_of(const BenchSetup& setup) {
  constexpr dim_t kKi = 1024;
  Sizes sizes =
      // fp32 on cuda is the plain kernel: right, and not for such lengths.
      setup.on_cpu() || setup.dtype == DType::kF32 ? Sizes{128, {kKi, 2 * kKi}, kKi}
                                                   : Sizes{32 * kKi, {128 * kKi, 512 * kKi, 1024 * kKi}, 128 * kKi};
  if (setup.context) sizes.keys = {setup.context};
  return sizes;
}

// Rows [S - R, S) of h query heads, one key/value head.
void measure(BenchRank& rank, dim_t h, dim_t R, dim_t S) {
  const BenchSetup& setup = rank.setup();
  const dim_t D = setup.model.head_dim;
  const auto normal = [&](const char* name, const Shape& shape) { return rank.normal(name, setup.dtype, shape); };
  const Held q = normal("q", {h, R, D}), o = rank.blank("o", setup.dtype, {h, R, D});
  const Held k = normal("k", {S, D}), v = normal("v", {S, D}), lse = rank.blank("lse", DType::kF32, {h, R});
  const std::vector<KeyValue> kv(static_cast<std::size_t>(h), {k.tensor, v.tensor});
  const AttentionRows rows{.first_row = S - R, .scale = 1 / std::sqrt(static_cast<double>(D))};
  Measured what{.shape = by({h, R, S, D}), .work = &Trace::flops};
  if (setup.dtype == DType::kBF16) what.limit = setup.limit(&HardwareLimits::bf16_tflops);

  what.name = format("attention {}", name_of(setup.dtype));
  rank.measure(what, [&] { attention_forward(rank.ctx(), o.tensor, lse.tensor, q.tensor, kv, rows); });

  const Held dk = rank.normal("dk", DType::kF32, {S, D}), dv = rank.normal("dv", DType::kF32, {S, D});
  const std::vector<KeyValue> dkv(static_cast<std::size_t>(h), {dk.tensor, dv.tensor});
  const Held d_o = normal("do", {h, R, D}), dq = rank.blank("dq", setup.dtype, {h, R, D});
  what.name = format("attention backward {}", name_of(setup.dtype));
  rank.measure(what, [&] {
    attention_backward(rank.ctx(), dq.tensor, dkv, d_o.tensor, q.tensor, o.tensor, lse.tensor, kv, rows);
  });
}

}  // namespace

void bench_attention(BenchRank& rank) {
  const Sizes sizes = sizes_of(rank.setup());
  const dim_t group = rank.setup().model.heads / rank.setup().model.kv_heads;
  std::vector<dim_t> heads{1};  // of a stage: at the least, and all that share a key/value head
  if (group > 1) heads.push_back(group);
  for (const dim_t keys : sizes.keys) {
    for (const dim_t h : heads) measure(rank, h, std::min(sizes.rows, keys), keys);
    if (sizes.rows < keys && keys <= sizes.whole)
      for (const dim_t h : heads) measure(rank, h, keys, keys);
  }
}

}  // namespace untied
