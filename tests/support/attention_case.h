// One attention call with its data: made from a seed, run on the cpu, or computed by the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "device/cpu.h"
#include "ops/attention.h"
#include "support/ref_attention.h"

namespace untied::test {

struct AttentionShape {
  dim_t R = 1, D = 16, first_row = 0;
  std::vector<int> kv_head = {0};     // key/value head of each query head
  std::vector<dim_t> documents = {};  // starts
  bool strided = false;               // every matrix is a window of a larger one, at an odd address

  dim_t heads() const { return static_cast<dim_t>(kv_head.size()); }
  dim_t kv_heads() const { return 1 + *std::max_element(kv_head.begin(), kv_head.end()); }
  dim_t keys() const { return first_row + R; }
  std::string str() const {
    std::string text = format("R {} D {} first {}{} kv", R, D, first_row, strided ? " strided" : "");
    for (int k : kv_head) text += format(" {}", k);
    for (std::size_t i = 0; i < documents.size() && i < 8; ++i) text += format("{} {}", i ? "" : " documents", documents[i]);
    return text;
  }
};

// [heads, rows, D] in memory of its own. Around a strided one lies NaN, which nobody may read or write.
class Heads {
 public:
  Heads() = default;
  Heads(dim_t heads, dim_t rows, dim_t D, bool strided) : heads_(heads), rows_(rows), D_(D), pad_(strided ? 3 : 0) {
    data_.assign(static_cast<std::size_t>(heads * (rows + pad_) * (D + pad_)), std::nanf(""));
    for (dim_t h = 0; h < heads; ++h)
      for (dim_t r = 0; r < rows; ++r) std::fill_n(at(h, r), D, 0.0f);
  }
  dim_t rows() const { return rows_; }
  float* at(dim_t h, dim_t r) { return data_.data() + (h * (rows_ + pad_) + r + pad_ / 2) * (D_ + pad_) + pad_ / 2; }
  const float* at(dim_t h, dim_t r) const { return const_cast<Heads*>(this)->at(h, r); }
  Tensor tensor() {
    const dim_t from = pad_ / 2;
    return Tensor(data_.data(), DType::kF32, {heads_, rows_ + pad_, D_ + pad_}).slice(1, {from, from + rows_}).slice(2, {from, from + D_});
  }
  template <class Draw>
  void fill(Draw&& draw) {
    for (dim_t h = 0; h < heads_; ++h)
      for (dim_t r = 0; r < rows_; ++r)
        for (dim_t d = 0; d < D_; ++d) at(h, r)[d] = draw(h, r, d);
  }
  // Rows [range) of one head.
  std::vector<float> rows(dim_t h, Range range) const {
    std::vector<float> out;
    for (dim_t r = range.begin; r < range.end; ++r) out.insert(out.end(), at(h, r), at(h, r) + D_);
    return out;
  }
  std::vector<float> all() const {
    std::vector<float> out;
    for (dim_t h = 0; h < heads_; ++h)
      for (float x : rows(h, {0, rows_})) out.push_back(x);
    return out;
  }
  std::vector<double> wide(dim_t h) const {
    const std::vector<float> narrow = rows(h, {0, rows_});
    return {narrow.begin(), narrow.end()};
  }
  bool surroundings_untouched() const {
    const auto numbers = std::count_if(data_.begin(), data_.end(), [](float x) { return !std::isnan(x); });
    return numbers <= heads_ * rows_ * D_;
  }

 private:
  dim_t heads_ = 0, rows_ = 0, D_ = 0, pad_ = 0;
  std::vector<float> data_;
};

struct AttentionCase {
  AttentionShape shape;
  double scale;
  Heads q, k, v, d_o;                                  // given
  Heads o, dq, dk, dv;                                 // results; dk, dv start at what `gradient_start` says
  std::vector<float> lse;                              // [heads, R]

  static float gradient_start(dim_t h, dim_t r, dim_t d) { return 0.25f * static_cast<float>((h + 3 * r + 5 * d) % 7); }

  explicit AttentionCase(const AttentionShape& s, unsigned seed = 1) : shape(s), scale(1 / std::sqrt(static_cast<double>(s.D))) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    const auto draw = [&](dim_t, dim_t, dim_t) { return normal(engine); };
    for (Heads* t : {&q, &d_o, &o, &dq}) *t = Heads(s.heads(), s.R, s.D, s.strided);
    for (Heads* t : {&k, &v, &dk, &dv}) *t = Heads(s.kv_heads(), s.keys(), s.D, s.strided);
    for (Heads* t : {&q, &k, &v, &d_o}) t->fill(draw);
    lse.assign(static_cast<std::size_t>(s.heads() * s.R), std::nanf(""));
  }

  std::vector<KeyValue> key_values(Heads& keys, Heads& values) {
    std::vector<KeyValue> kv;
    for (int head : shape.kv_head) kv.push_back({keys.tensor().index(head), values.tensor().index(head)});
    return kv;
  }

  // Forward and backward of the rows, in one call or in calls of [cuts[i], cuts[i + 1]).
  void run(Ctx& ctx, std::vector<dim_t> cuts = {}) {
    if (cuts.empty()) cuts = {0, shape.R};
    dk.fill(gradient_start);
    dv.fill(gradient_start);
    const std::vector<KeyValue> kv = key_values(k, v), dkv = key_values(dk, dv);
    const Tensor lse_hR(lse.data(), DType::kF32, {shape.heads(), shape.R});
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const Range rows{cuts[i], cuts[i + 1]};
      const auto of = [&](Heads& t) { return t.tensor().slice(1, rows); };
      const AttentionRows where{shape.first_row + rows.begin, scale, shape.documents};
      attention_forward(ctx, of(o), lse_hR.slice(1, rows), of(q), kv, where);
      attention_backward(ctx, of(dq), dkv, of(d_o), of(q), of(o), lse_hR.slice(1, rows), kv, where);
    }
  }
  void run(int threads = 1, const std::vector<dim_t>& cuts = {}) {
    RankMemory memory(make_cpu_device({.threads = threads}), dim_t{32} << 20, 0);
    run(memory.ctx(), cuts);
  }

  std::vector<std::vector<float>> results() const { return {o.all(), lse, dq.all(), dk.all(), dv.all()}; }
};

// |got - want| <= tolerance * max(1, largest |want|), for every element; the message names the worst.
inline testing::AssertionResult near(const char* name, const std::vector<float>& got, const std::vector<double>& want, double tolerance) {
  if (got.size() != want.size()) return testing::AssertionFailure() << name << ": " << got.size() << " against " << want.size();
  double largest = 1, worst = -1;
  std::size_t where = 0;
  for (double w : want) largest = std::max(largest, std::abs(w));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::isfinite(got[i]) ? std::abs(got[i] - want[i]) : std::numeric_limits<double>::infinity();
    if (error > worst) worst = error, where = i;
  }
  if (worst <= tolerance * largest) return testing::AssertionSuccess();
  return testing::AssertionFailure() << name << "[" << where << "] is " << got[where] << ", not " << want[where] << " (largest "
                                     << largest << ", tolerance " << tolerance << ")";
}

// The results of a case that ran, against the reference.
inline void expect_matches_reference(const AttentionCase& c, double tolerance) {
  const AttentionShape& s = c.shape;
  std::vector<std::vector<double>> dk, dv;
  for (dim_t g = 0; g < s.kv_heads(); ++g) {
    Heads start(s.kv_heads(), s.keys(), s.D, false);
    start.fill(AttentionCase::gradient_start);
    dk.push_back(start.wide(g));
    dv.push_back(start.wide(g));
  }
  for (dim_t h = 0; h < s.heads(); ++h) {
    const int g = s.kv_head[h];
    const ref::AttentionHead head{s.R, s.D, s.first_row, c.scale, c.q.wide(h), c.k.wide(g), c.v.wide(g)};
    std::vector<double> o, lse, dq;
    ref::attention_forward(o, lse, head, s.documents);
    ref::attention_backward(dq, dk[g], dv[g], c.d_o.wide(h), head, s.documents);
    EXPECT_TRUE(near("o", c.o.rows(h, {0, s.R}), o, tolerance)) << s.str();
    EXPECT_TRUE(near("lse", {c.lse.begin() + h * s.R, c.lse.begin() + (h + 1) * s.R}, lse, tolerance)) << s.str();
    EXPECT_TRUE(near("dq", c.dq.rows(h, {0, s.R}), dq, tolerance)) << s.str();
  }
  for (dim_t g = 0; g < s.kv_heads(); ++g) {
    EXPECT_TRUE(near("dk", c.dk.rows(g, {0, s.keys()}), dk[g], tolerance)) << s.str();
    EXPECT_TRUE(near("dv", c.dv.rows(g, {0, s.keys()}), dv[g], tolerance)) << s.str();
  }
  for (const Heads* t : {&c.o, &c.dq, &c.dk, &c.dv}) EXPECT_TRUE(t->surroundings_untouched()) << s.str();
}

}  // namespace untied::test
