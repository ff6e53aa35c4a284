// One attention call with its data: made from a seed, run on a backend, computed by the reference.
#pragma once

#include <string>
#include <vector>

#include "ops/attention.h"
#include "support/backends.h"
#include "support/ref_attention.h"
#include "support/tolerances.h"

namespace untied::test {

struct AttentionShape {
  dim_t R = 1, D = 16, first_row = 0;
  std::vector<int> kv_head = {0};     // key/value head of each query head
  std::vector<dim_t> documents = {};  // starts
  dim_t gap = 0;                      // elements between the rows of every tensor, at odd addresses when odd

  dim_t heads() const { return static_cast<dim_t>(kv_head.size()); }
  dim_t kv_heads() const { return 1 + *std::max_element(kv_head.begin(), kv_head.end()); }
  dim_t keys() const { return first_row + R; }
  std::string str() const {
    std::string text = format("R {} D {} first {} gap {} kv", R, D, first_row, gap);
    for (int k : kv_head) text += format(" {}", k);
    for (std::size_t i = 0; i < documents.size() && i < 8; ++i)
      text += format("{} {}", i ? "" : " documents", documents[i]);
    return text;
  }
};

struct AttentionResults {
  std::vector<double> o, lse, dq, dk, dv;  // [heads, R, D], [heads, R], [heads, R, D], [kv_heads, keys, D] twice
  bool operator==(const AttentionResults&) const = default;
};

// Tensors of one case on a rank.
struct AttentionTensors {
  Tensor q, k, v, d_o, o, lse, dq, dk, dv;
  std::vector<KeyValue> kv, dkv;
};

// Rows [range) of head h of [heads, rows, D] values.
inline std::vector<double> rows_of(const std::vector<double>& values, dim_t rows, dim_t D, dim_t h, Range range) {
  const auto at = [&](dim_t r) { return values.begin() + (h * rows + r) * D; };
  return {at(range.begin), at(range.end)};
}

struct AttentionCase {
  AttentionShape shape;
  double scale;
  std::vector<double> q, d_o, k, v;    // [heads, R, D] twice, [kv_heads, keys, D] twice; exact in fp32
  std::vector<double> gradient_start;  // what dk and dv hold before backward adds to them

  explicit AttentionCase(const AttentionShape& s, unsigned seed = 1)
      : shape(s), scale(1 / std::sqrt(static_cast<double>(s.D))), q(draw(s.heads() * s.R * s.D, seed)),
        d_o(draw(s.heads() * s.R * s.D, seed + 1)), k(draw(s.kv_heads() * s.keys() * s.D, seed + 2)),
        v(draw(s.kv_heads() * s.keys() * s.D, seed + 3)), gradient_start(k.size()) {
    for (std::size_t i = 0; i < k.size(); ++i) gradient_start[i] = 0.25 * static_cast<double>(i % 7);
  }

  // values[head, row, d] = value(row, d).
  template <class Value>
  void fill(std::vector<double>& values, Value&& value) const {
    const dim_t rows = static_cast<dim_t>(values.size()) / shape.D /
                       (&values == &q || &values == &d_o ? shape.heads() : shape.kv_heads());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(value(static_cast<dim_t>(i) / shape.D % rows, static_cast<dim_t>(i) % shape.D));
  }

  AttentionTensors put(Rank& rank) const {
    const Shape rows{shape.heads(), shape.R, shape.D}, keys{shape.kv_heads(), shape.keys(), shape.D};
    const std::vector<double> untouched;
    return with_heads({rank.put(q, rows, shape.gap),
                       rank.put(k, keys, shape.gap),
                       rank.put(v, keys, shape.gap),
                       rank.put(d_o, rows, shape.gap),
                       rank.put(untouched, rows, shape.gap),
                       rank.put(untouched, {shape.heads(), shape.R}),
                       rank.put(untouched, rows, shape.gap),
                       rank.put(gradient_start, keys, shape.gap),
                       rank.put(gradient_start, keys, shape.gap),
                       {},
                       {}});
  }
  // Memory alone: on meta there is nothing to put.
  AttentionTensors make(Rank& rank) const {
    const auto rows = [&] { return rank.make(DType::kF32, {shape.heads(), shape.R, shape.D}); };
    const auto keys = [&] { return rank.make(DType::kF32, {shape.kv_heads(), shape.keys(), shape.D}); };
    const Tensor lse = rank.make(DType::kF32, {shape.heads(), shape.R});
    return with_heads({rows(), keys(), keys(), rows(), rows(), lse, rows(), keys(), keys(), {}, {}});
  }
  AttentionTensors with_heads(AttentionTensors t) const {
    t.kv.clear();
    t.dkv.clear();
    for (int head : shape.kv_head) {
      t.kv.push_back({t.k.index(head), t.v.index(head)});
      t.dkv.push_back({t.dk.index(head), t.dv.index(head)});
    }
    return t;
  }

  // Forward and backward of the rows, in one call or in calls of rows [cuts[i], cuts[i + 1]).
  void run_on(Ctx& ctx, const AttentionTensors& t, std::vector<dim_t> cuts = {}) const {
    if (cuts.empty()) cuts = {0, shape.R};
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto of = [&](const Tensor& tensor) { return tensor.slice(1, {cuts[i], cuts[i + 1]}); };
      const AttentionRows where{shape.first_row + cuts[i], scale, shape.documents};
      attention_forward(ctx, of(t.o), of(t.lse), of(t.q), t.kv, where);
      attention_backward(ctx, of(t.dq), t.dkv, of(t.d_o), of(t.q), of(t.o), of(t.lse), t.kv, where);
    }
  }

  AttentionResults run(const OnBackend& on = backends()[0], const std::vector<dim_t>& cuts = {}) const {
    Rank rank(on);
    const AttentionTensors t = put(rank);
    run_on(rank.ctx(), t, cuts);
    EXPECT_TRUE(rank.gaps_untouched()) << shape.str();
    return {rank.get(t.o), rank.get(t.lse), rank.get(t.dq), rank.get(t.dk), rank.get(t.dv)};
  }

  ref::AttentionHead reference_head(dim_t h) const {
    const int g = shape.kv_head[h];
    const Range keys{0, shape.keys()};
    return {shape.R,
            shape.D,
            shape.first_row,
            scale,
            rows_of(q, shape.R, shape.D, h, {0, shape.R}),
            rows_of(k, shape.keys(), shape.D, g, keys),
            rows_of(v, shape.keys(), shape.D, g, keys)};
  }

  AttentionResults reference() const {
    AttentionResults r;
    std::vector<std::vector<double>> dk, dv;
    for (dim_t g = 0; g < shape.kv_heads(); ++g) {
      dk.push_back(rows_of(gradient_start, shape.keys(), shape.D, g, {0, shape.keys()}));
      dv.push_back(dk.back());
    }
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (dim_t h = 0; h < shape.heads(); ++h) {
      const ref::AttentionHead head = reference_head(h);
      std::vector<double> o, lse, dq;
      ref::attention_forward(o, lse, head, shape.documents);
      ref::attention_backward(dq, dk[shape.kv_head[h]], dv[shape.kv_head[h]],
                              rows_of(d_o, shape.R, shape.D, h, {0, shape.R}), head, shape.documents);
      append(r.o, o);
      append(r.lse, lse);
      append(r.dq, dq);
    }
    for (dim_t g = 0; g < shape.kv_heads(); ++g) append(r.dk, dk[g]), append(r.dv, dv[g]);
    return r;
  }
};

inline void expect_near(const AttentionResults& got, const AttentionResults& want, double tolerance,
                        const std::string& what) {
  EXPECT_TRUE(near_all(got.o, want.o, tolerance)) << "o of " << what;
  EXPECT_TRUE(near_all(got.lse, want.lse, tolerance)) << "lse of " << what;
  EXPECT_TRUE(near_all(got.dq, want.dq, tolerance)) << "dq of " << what;
  EXPECT_TRUE(near_all(got.dk, want.dk, tolerance)) << "dk of " << what;
  EXPECT_TRUE(near_all(got.dv, want.dv, tolerance)) << "dv of " << what;
}

}  // namespace untied::test
