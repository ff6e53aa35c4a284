#include "ops/attention.h"

#include <sys/mman.h>

#include <cstring>
#include <limits>

#include "ops/attention_backends.h"
#include "ops/attention_cpu_micro.h"
#include "support/attention_case.h"

namespace untied::test {
namespace {

// fp32 sums of a few hundred N(0, 1) terms against double: measured 4e-7 to 2e-6 of the largest element.
constexpr double kTolerance = 5e-6;

void expect_same_bits(const AttentionCase& a, const AttentionCase& b) {
  const char* const names[] = {"o", "lse", "dq", "dk", "dv"};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(a.results()[i], b.results()[i]) << names[i] << " of " << a.shape.str();
}

// ------------------------------------------------------------------------------------------------------ pairs, tiles, kernels

TEST(AttendedPairs, EqualsEnumeration) {
  const std::vector<std::vector<dim_t>> all_documents = {{}, {0}, {0, 3, 4, 11, 13}, {0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 16, 1000}};
  for (const auto& documents : all_documents)
    for (dim_t first = 0; first < 20; ++first)
      for (dim_t count = 0; count < 20; ++count) {
        double pairs = 0;
        for (dim_t row = first; row < first + count; ++row) pairs += static_cast<double>(ref::attended_keys(row, documents).size());
        EXPECT_EQ(attended_pairs(first, count, documents), pairs) << first << " " << count << " of " << documents.size();
      }
}

TEST(AttendedPairs, TenMillionRows) {
  const dim_t S = 10'000'000;
  EXPECT_EQ(attended_pairs(0, S, {}), 0.5e7 * (1e7 + 1));
  EXPECT_EQ(attended_pairs(S - 1, 1, {}), 1e7);
  std::vector<dim_t> documents;
  for (dim_t start = 0; start < S; start += 1000) documents.push_back(start);
  EXPECT_EQ(attended_pairs(0, S, documents), 1e4 * 500 * 1001);
}

TEST(AttendedPairs, RefusesDocumentsThatAreNotAscendingFromZero) {
  const std::vector<dim_t> late = {1, 5}, twice = {0, 5, 5};
  EXPECT_THROW(attended_pairs(0, 8, late), InternalError);
  EXPECT_THROW(attended_pairs(0, 8, twice), InternalError);
}

TEST(AttentionTiles, DivideAsTheKernelsNeedAndStaySmall) {
  for (dim_t D : {1, 8, 16, 32, 64, 80, 96, 128, 256})
    for (bool backward : {false, true}) {
      const AttentionTiles tiles = attention_tiles_cpu(D, backward);
      EXPECT_EQ(tiles.rows % attention_cpu::kStripRows, 0);
      EXPECT_EQ(tiles.keys % attention_cpu::kKeysPerStep, 0);
      EXPECT_LE(attention_scratch_cpu(D, backward), (dim_t{1} << 19) * (D <= 128 ? 1 : 2)) << D << backward;
      // Any number of rows and keys takes the same.
      for (int threads : {1, 7}) {
        const auto device = make_meta_device(Backend::kCpu, threads);
        for (dim_t rows : {dim_t{1}, dim_t{10'000'000}})
          EXPECT_EQ(attention_workspace(*device, 4, rows, 10'000'000, D, backward), threads * attention_scratch_cpu(D, backward));
      }
    }
}

TEST(AttentionKernels, Exp2) {
  using namespace attention_cpu;
  const auto exp2_of = [](float x) {
    Lanes all[3] = {splat(x), splat(x), splat(x)};
    exp2_or_zero(all);
    return all[2][3];
  };
  double worst = 0;
  for (float x = -126; x <= 20; x += 0.00137f) worst = std::max(worst, std::abs(exp2_of(x) / std::exp2(static_cast<double>(x)) - 1));
  EXPECT_LT(worst, 1.8e-7);
  EXPECT_EQ(exp2_of(0), 1.0f);
  for (float x : {-126.6f, -127.0f, -128.0f, -1000.0f, -1e30f, -2e30f, -std::numeric_limits<float>::infinity()}) EXPECT_EQ(exp2_of(x), 0.0f) << x;
  EXPECT_TRUE(std::isnan(exp2_of(std::nanf(""))));
}

TEST(AttentionKernels, TransposeAndPanels) {
  using namespace attention_cpu;
  for (dim_t rows : {1, 7, 8, 9, 16, 23, 24})
    for (dim_t D : {1, 8, 15, 16, 17, 40}) {
      const dim_t stride = D + 3, width = round_up(D, kPanel);
      std::vector<float> src(static_cast<std::size_t>(rows * stride));
      for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<float>(i + 1);
      std::vector<float> transposed(static_cast<std::size_t>(kStripRows * D), -1), panels(static_cast<std::size_t>(kStripRows * width), -1);
      transpose_strip(transposed.data(), src.data(), stride, rows, D, 2.0f);
      pack_panels(panels.data(), src.data(), stride, rows, kStripRows, D);
      for (dim_t r = 0; r < kStripRows; ++r)
        for (dim_t d = 0; d < width; ++d) {
          const float value = r < rows && d < D ? src[r * stride + d] : 0.0f;
          if (d < D) {
            EXPECT_EQ(transposed[d * kStripRows + r], 2 * value) << rows << " " << D;
          }
          EXPECT_EQ(panels[d / kPanel * kStripRows * kPanel + r * kPanel + d % kPanel], value) << rows << " " << D;
        }
    }
}

// ----------------------------------------------------------------------------------------------------- against the reference

TEST(Attention, LengthsAndHeadSizes) {
  for (dim_t D : {16, 32, 64, 80, 128})
    for (dim_t R : {1, 63, 64, 65, 97, 127, 128, 192, 704}) {
      AttentionCase c({.R = R, .D = D, .kv_head = R < 704 ? std::vector{0, 0} : std::vector{0}});
      c.run();
      expect_matches_reference(c, kTolerance);
    }
}

TEST(Attention, OddHeadSizes) {
  for (dim_t D : {1, 2, 5, 8, 24, 31, 72, 100, 200})
    for (bool strided : {false, true}) {
      AttentionCase c({.R = 50, .D = D, .first_row = 80, .kv_head = {0, 1}, .strided = strided});
      c.run();
      expect_matches_reference(c, kTolerance);
    }
}

TEST(Attention, GroupedHeadsAnyMapAnyStrides) {
  for (const std::vector<int>& map : std::vector<std::vector<int>>{{0, 1, 2}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {2, 0, 1, 2, 2}, {0, 0, 0, 0, 0, 0}})
    for (bool strided : {false, true}) {
      AttentionCase c({.R = 75, .D = 32, .first_row = 70, .kv_head = map, .strided = strided});
      c.run(2);
      expect_matches_reference(c, kTolerance);
    }
}

TEST(Attention, BlocksOfRowsAgainstAPrefixOfKeys) {
  for (dim_t first : {0, 1, 23, 24, 119, 120, 121, 300})
    for (dim_t R : {1, 5, 24, 50, 130}) {
      AttentionCase c({.R = R, .D = 32, .first_row = first});
      c.run();
      expect_matches_reference(c, kTolerance);
    }
}

const std::vector<std::vector<dim_t>> kDocuments = {
    {0, 3, 4, 11, 13},                        // lengths 3, 1, 7, 2, 3
    {0, 24, 48, 96, 120, 240},                // at the edges of strips and tiles
    {0, 23, 25, 119, 121, 239, 241},          // beside them
    {0, 100, 101, 102, 103, 104, 105, 150},   // short ones inside a strip
    {0, 260, 500},                            // a row far from its document's start; one that begins behind the rows
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27},
};

TEST(Attention, Documents) {
  for (const auto& documents : kDocuments)
    for (dim_t first : {0, 2, 90, 121})
      for (dim_t R : {16, 180}) {
        AttentionCase c({.R = R, .D = 32, .first_row = first, .kv_head = {0, 0}, .documents = documents});
        c.run(2);
        expect_matches_reference(c, kTolerance);
      }
}

TEST(Attention, OneDocumentDoesNotTouchTheOthersByABit) {
  for (const auto& documents : kDocuments) {
    const AttentionShape shape{.R = 300, .D = 32, .kv_head = {0, 0}, .documents = documents};
    AttentionCase before(shape);
    before.run();
    for (std::size_t changed : {std::size_t{0}, std::size_t{1}}) {
      const Range rows{documents[changed], std::min(changed + 1 < documents.size() ? documents[changed + 1] : shape.R, shape.R)};
      AttentionCase after(shape);
      for (Heads* t : {&after.q, &after.k, &after.v, &after.d_o})
        for (dim_t h = 0; h < 2 && h < (t == &after.q || t == &after.d_o ? 2 : 1); ++h)
          for (dim_t r = rows.begin; r < rows.end; ++r)
            for (dim_t d = 0; d < shape.D; ++d) t->at(h, r)[d] = 3 * t->at(h, r)[d] + 1;
      after.run();
      for (const Range& others : {Range{0, rows.begin}, Range{rows.end, shape.R}}) {
        for (dim_t h = 0; h < 2; ++h) {
          EXPECT_EQ(before.o.rows(h, others), after.o.rows(h, others));
          EXPECT_EQ(before.dq.rows(h, others), after.dq.rows(h, others));
          const auto lse = [&](const AttentionCase& c) { return std::vector<float>(c.lse.begin() + h * shape.R + others.begin, c.lse.begin() + h * shape.R + others.end); };
          EXPECT_EQ(lse(before), lse(after));
        }
        EXPECT_EQ(before.dk.rows(0, others), after.dk.rows(0, others));
        EXPECT_EQ(before.dv.rows(0, others), after.dv.rows(0, others));
      }
      EXPECT_NE(before.o.rows(0, rows), after.o.rows(0, rows));
    }
  }
}

TEST(Attention, CentralDifferences) {
  const AttentionShape shape{.R = 5, .D = 4, .first_row = 4, .documents = {0, 6}};
  AttentionCase c(shape);
  c.run();
  ref::AttentionHead head{shape.R, shape.D, shape.first_row, c.scale, c.q.wide(0), c.k.wide(0), c.v.wide(0)};
  const std::vector<double> d_o = c.d_o.wide(0);
  const auto loss = [&] {
    std::vector<double> o, lse;
    ref::attention_forward(o, lse, head, shape.documents);
    return ref::dot(o.data(), d_o.data(), static_cast<dim_t>(o.size()));
  };
  const auto check = [&](const char* name, std::vector<double>& input, const std::vector<float>& gradient, bool added) {
    for (std::size_t i = 0; i < input.size(); ++i) {
      const double at = input[i], step = 1e-5;
      input[i] = at + step;
      const double above = loss();
      input[i] = at - step;
      const double below = loss();
      input[i] = at;
      const dim_t row = static_cast<dim_t>(i) / shape.D, d = static_cast<dim_t>(i) % shape.D;
      const double start = added ? AttentionCase::gradient_start(0, row, d) : 0.0;
      EXPECT_NEAR(gradient[i] - start, (above - below) / (2 * step), 1e-6) << name << "[" << i << "]";
    }
  };
  check("dq", head.q, c.dq.rows(0, {0, shape.R}), false);
  check("dk", head.k, c.dk.rows(0, {0, shape.keys()}), true);
  check("dv", head.v, c.dv.rows(0, {0, shape.keys()}), true);
}

// -------------------------------------------------------------------------------------------------------------------- numbers

TEST(Attention, ScoresNearPlusAndMinus120) {
  for (double target : {-120.0, 120.0})
    for (dim_t R : {1, 63, 64, 65, 97, 127, 128, 192, 704}) {
      AttentionCase c({.R = R, .D = 64});
      // q.k * scale is about `target` for every pair, and differs by about 1 between keys.
      const float size = static_cast<float>(std::sqrt(std::abs(target) / std::sqrt(64.0)));
      c.q.fill([&](dim_t, dim_t r, dim_t d) { return size + 0.01f * static_cast<float>((r * 7 + d * 3) % 11); });
      c.k.fill([&](dim_t, dim_t r, dim_t d) { return (target < 0 ? -1.0f : 1.0f) * (size + 0.02f * static_cast<float>((r * 5 + d) % 13 - 6)); });
      c.run();
      for (float lse : c.lse) EXPECT_LT(std::abs(lse - target), 12) << R;
      // A score of 120 is known to 120 * 2^-24 = 7e-6 at best, as is lse; their difference is P's relative error.
      expect_matches_reference(c, 6e-5);
    }
}

TEST(Attention, ScoresFarApart) {
  AttentionCase c({.R = 300, .D = 32});
  c.q.fill([&](dim_t, dim_t r, dim_t d) { return d == 0 ? 1.0f : 0.01f * static_cast<float>((r + d) % 5); });
  c.k.fill([&](dim_t, dim_t r, dim_t d) { return d == 0 ? static_cast<float>((r * 37) % 101 - 50) * 10.0f : 0.1f * static_cast<float>((r + 2 * d) % 7); });
  c.run();
  expect_matches_reference(c, 5e-4);  // dq = dS k: dS is known to 1e-7, k is up to 500
}

TEST(Attention, OneKeyOnlyCopiesItsValue) {
  AttentionCase c({.R = 40, .D = 32, .documents = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}});
  c.run();
  EXPECT_EQ(c.o.rows(0, {0, 20}), c.v.rows(0, {0, 20}));
}

TEST(Attention, ANumberThatIsNoneIsNotHidden) {
  AttentionCase c({.R = 130, .D = 16});
  c.k.at(0, 5)[3] = std::nanf("");
  c.run();
  for (dim_t row = 5; row < 130; ++row) EXPECT_TRUE(std::isnan(c.o.at(0, row)[0])) << row;
  EXPECT_TRUE(std::isnan(c.dv.at(0, 5)[0]));
}

TEST(Attention, AMillionKeysDoNotMakeTheOutputDrift) {
  // All outputs are near 1: a sum that stalls or loses its small terms is off by 1e-3 and more.
  const dim_t S = 1 << 20, R = 2, D = 8;
  AttentionCase c({.R = R, .D = D, .first_row = S - R});
  c.v.fill([](dim_t, dim_t r, dim_t d) { return 1.0f + 0.125f * static_cast<float>((r + d) % 9 - 4); });
  c.run();
  expect_matches_reference(c, kTolerance);
}

TEST(Attention, RowsBeyondTwoToThe31Elements) {
  const dim_t rows = 1100, stride = dim_t{1} << 21, D = 16, bytes = rows * stride * 4;
  float* base[4];
  for (float*& b : base) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) GTEST_SKIP() << "no address space";
    b = static_cast<float*>(memory);
  }
  AttentionCase c({.R = 30, .D = D, .first_row = rows - 30});
  const auto wide = [&](int i) { return Tensor(base[i], DType::kF32, {rows, stride}).slice(1, {0, D}); };
  std::vector<KeyValue> kv = {{wide(0), wide(1)}}, dkv = {{wide(2), wide(3)}};
  for (dim_t r = 0; r < rows; ++r) {
    std::memcpy(base[0] + r * stride, c.k.at(0, r), D * 4);
    std::memcpy(base[1] + r * stride, c.v.at(0, r), D * 4);
  }
  RankMemory memory(make_cpu_device({.threads = 2}), dim_t{8} << 20, 0);
  const Tensor lse(c.lse.data(), DType::kF32, {1, 30});
  const AttentionRows where{rows - 30, c.scale, {}};
  attention_forward(memory.ctx(), c.o.tensor(), lse, c.q.tensor(), kv, where);
  attention_backward(memory.ctx(), c.dq.tensor(), dkv, c.d_o.tensor(), c.q.tensor(), c.o.tensor(), lse, kv, where);
  for (dim_t r = 0; r < rows; ++r)
    for (dim_t d = 0; d < D; ++d) {
      c.dk.at(0, r)[d] = base[2][r * stride + d] + AttentionCase::gradient_start(0, r, d);
      c.dv.at(0, r)[d] = base[3][r * stride + d] + AttentionCase::gradient_start(0, r, d);
    }
  expect_matches_reference(c, kTolerance);
  for (float* b : base) munmap(b, bytes);
}

// ------------------------------------------------------------------------------------------------------- splits and threads

TEST(Attention, RowsSplitOverCalls) {
  for (const auto& documents : {std::vector<dim_t>{}, std::vector<dim_t>{0, 50, 130, 350}}) {
    const AttentionShape shape{.R = 400, .D = 64, .first_row = 37, .kv_head = {0, 0, 1}, .documents = documents};
    AttentionCase whole(shape);
    whole.run();
    for (const std::vector<dim_t>& cuts : {std::vector<dim_t>{0, 1, 24, 25, 200, 400}, std::vector<dim_t>{0, 96, 192, 288, 384, 400}}) {
      AttentionCase split(shape);
      split.run(2, cuts);
      EXPECT_EQ(whole.o.all(), split.o.all());
      EXPECT_EQ(whole.lse, split.lse);
      EXPECT_EQ(whole.dq.all(), split.dq.all());
      for (auto [name, t] : {std::pair{"dk", &AttentionCase::dk}, std::pair{"dv", &AttentionCase::dv}}) {
        const std::vector<float> sum = (whole.*t).all();
        EXPECT_TRUE(near(name, (split.*t).all(), {sum.begin(), sum.end()}, 1e-6));
      }
    }
  }
}

TEST(Attention, ThreadsDoNotChangeABit) {
  const std::vector<AttentionShape> shapes = {
      {.R = 1000, .D = 32},                                       // one head: a pipeline of key tiles
      {.R = 500, .D = 32, .first_row = 300, .kv_head = {0, 0, 0}},  // one group
      {.R = 400, .D = 64, .kv_head = {0, 1, 0, 1, 2}},            // groups in turn
      {.R = 900, .D = 32, .kv_head = {0, 1}, .documents = {0, 100, 101, 240, 700}},
      {.R = 30, .D = 128},
  };
  for (const AttentionShape& shape : shapes) {
    AttentionCase one(shape);
    one.run(1);
    for (int threads : {2, 3, 3, 3, 8}) {
      AttentionCase more(shape);
      more.run(threads);
      expect_same_bits(one, more);
    }
  }
}

// -------------------------------------------------------------------------------------------------------------- the front half

TEST(Attention, MetaTakesAndCountsWhatTheCpuDoes) {
  const AttentionShape shape{.R = 100, .D = 64, .first_row = 60, .kv_head = {0, 0, 1}, .documents = {0, 70}};
  for (int threads : {1, 3}) {
    AttentionCase c(shape);
    RankMemory cpu(make_cpu_device({.threads = threads}), dim_t{16} << 20, 0), meta(make_meta_device(Backend::kCpu, threads), -1, -1);
    c.run(cpu.ctx());
    AttentionCase untouched(shape);
    untouched.run(meta.ctx());
    EXPECT_EQ(cpu.ctx().memory.peak(), meta.ctx().memory.peak());
    EXPECT_EQ(cpu.ctx().memory.peak(), attention_workspace(cpu.ctx().device, 3, 100, 160, 64, /*backward=*/true));
    EXPECT_EQ(meta.ctx().memory.usage().total(), 0);
    EXPECT_EQ(cpu.ctx().trace.flops, meta.ctx().trace.flops);
    EXPECT_EQ(cpu.ctx().trace.flops, 14.0 * 64 * 3 * attended_pairs(60, 100, shape.documents));
    EXPECT_EQ(cpu.ctx().trace.bytes_moved, meta.ctx().trace.bytes_moved);
    EXPECT_EQ(meta.ctx().trace.ops, 2);
    EXPECT_TRUE(std::isnan(untouched.lse[0]));  // no kernel ran
  }
  RankMemory cuda(make_meta_device(Backend::kCuda, 1), -1, -1);
  AttentionCase c(shape);
  c.run(cuda.ctx());
  EXPECT_EQ(cuda.ctx().memory.peak(), attention_workspace(cuda.ctx().device, 3, 100, 160, 64, true));
}

TEST(Attention, NothingToDo) {
  RankMemory memory(make_cpu_device({}), 0, 0);  // takes no memory either
  const Tensor none(nullptr, DType::kF32, {0, 5, 16}), no_lse(nullptr, DType::kF32, {0, 5});
  attention_forward(memory.ctx(), none, no_lse, none, {}, {});
  attention_backward(memory.ctx(), none, {}, none, none, none, no_lse, {}, {});
  AttentionCase c({.R = 4, .D = 16});
  const std::vector<KeyValue> kv = c.key_values(c.k, c.v), dkv = c.key_values(c.dk, c.dv);
  const auto empty = [](Heads& t) { return t.tensor().slice(1, {2, 2}); };
  const Tensor lse = Tensor(c.lse.data(), DType::kF32, {1, 4}).slice(1, {2, 2});
  attention_forward(memory.ctx(), empty(c.o), lse, empty(c.q), kv, {.first_row = 4});
  attention_backward(memory.ctx(), empty(c.dq), dkv, empty(c.d_o), empty(c.q), empty(c.o), lse, kv, {.first_row = 4});
  EXPECT_EQ(memory.ctx().trace.ops, 0);
}

// One wrong argument at a time; the message names it.
class AttentionChecks : public testing::TestWithParam<Backend> {
 protected:
  AttentionChecks()
      : memory_(GetParam() == Backend::kCpu ? make_cpu_device({}) : make_meta_device(Backend::kCpu, 1),
                GetParam() == Backend::kCpu ? dim_t{4} << 20 : dim_t{-1}, 0),
        c_({.R = 4, .D = 16, .first_row = 3, .kv_head = {0, 0}}), kv_(c_.key_values(c_.k, c_.v)), dkv_(c_.key_values(c_.dk, c_.dv)),
        q_(c_.q.tensor()), o_(c_.o.tensor()), dq_(c_.dq.tensor()), do_(c_.d_o.tensor()), lse_(c_.lse.data(), DType::kF32, {2, 4}),
        rows_{.first_row = 3, .scale = 0.25} {}

  void forward() { attention_forward(memory_.ctx(), o_, lse_, q_, kv_, rows_); }
  void backward() { attention_backward(memory_.ctx(), dq_, dkv_, do_, q_, o_, lse_, kv_, rows_); }
  template <class Call>
  void expect_refusal(Call&& call, const std::string& words) {
    try {
      call();
      ADD_FAILURE() << "accepted, not refused with '" << words << "'";
    } catch (const InternalError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
  void expect_both_refuse(const std::string& words) {
    expect_refusal([&] { forward(); }, words);
    expect_refusal([&] { backward(); }, words);
  }

  RankMemory memory_;
  AttentionCase c_;
  std::vector<KeyValue> kv_, dkv_;
  Tensor q_, o_, dq_, do_, lse_;
  AttentionRows rows_;
};

TEST_P(AttentionChecks, AcceptsWhatIsRight) {
  forward();
  backward();
}
TEST_P(AttentionChecks, Rank) {
  q_ = q_.reshape({8, 16});
  expect_both_refuse("q is fp32[8, 16]");
}
TEST_P(AttentionChecks, TypeOfQ) {
  q_ = Tensor(q_.raw(), DType::kI32, q_.shape());
  expect_both_refuse("q is int32");
}
TEST_P(AttentionChecks, TheCpuTakesFp32) {
  q_ = Tensor(q_.raw(), DType::kBF16, q_.shape());
  expect_both_refuse("fp32, q is bf16");
}
TEST_P(AttentionChecks, ShapeOfO) {
  o_ = o_.slice(1, {0, 3});
  expect_both_refuse("o is fp32[2, 3, 16], q is fp32[2, 4, 16]");
}
TEST_P(AttentionChecks, ShapeAndTypeOfLse) {
  lse_ = Tensor(c_.lse.data(), DType::kF32, {4, 2});
  expect_both_refuse("lse is fp32[4, 2]");
  lse_ = Tensor(c_.lse.data(), DType::kBF16, {2, 4});
  expect_both_refuse("lse is bf16[2, 4]");
}
TEST_P(AttentionChecks, NumberOfKeyValueHeads) {
  kv_.pop_back();
  expect_both_refuse("1 kv heads for 2 query heads");
}
TEST_P(AttentionChecks, ShapeOfKeyValues) {
  kv_[1].v_SD = kv_[1].v_SD.slice(1, {0, 8});
  expect_both_refuse("kv is fp32[7, 8], not fp32[S, 16]");
}
TEST_P(AttentionChecks, TooFewKeys) {
  kv_[1].k_SD = kv_[1].k_SD.rows(0, 6);
  expect_both_refuse("kv is fp32[6, 16], but rows up to 7");
}
TEST_P(AttentionChecks, FirstRowAndScale) {
  rows_.first_row = -1;
  expect_both_refuse("first row -1");
  rows_ = {.first_row = 3, .scale = std::nan("")};
  expect_both_refuse("scale nan");
}
TEST_P(AttentionChecks, Documents) {
  const std::vector<dim_t> late = {2, 5};
  rows_.documents = late;
  expect_both_refuse("first document starts at 2");
}
TEST_P(AttentionChecks, OutputsThatAreInputs) {
  const Tensor o = o_;
  o_ = q_;
  expect_refusal([&] { forward(); }, "is q");
  o_ = o;
  dq_ = do_;
  expect_refusal([&] { backward(); }, "is an input");
}
TEST_P(AttentionChecks, GradientsOfBackward) {
  dkv_[0].k_SD = Tensor(dkv_[0].k_SD.raw(), DType::kBF16, dkv_[0].k_SD.shape());
  expect_refusal([&] { backward(); }, "dkv is bf16[7, 16], not fp32");
  dkv_ = c_.key_values(c_.dk, c_.dv);
  dkv_.pop_back();
  expect_refusal([&] { backward(); }, "1 dkv heads");
  dkv_ = c_.key_values(c_.dk, c_.dv);
  kv_[1] = {c_.v.tensor().index(0), c_.k.tensor().index(0)};
  expect_refusal([&] { backward(); }, "query heads 0 and 1 share dkv but not kv");
  kv_ = c_.key_values(c_.k, c_.v);
  do_ = do_.slice(1, {0, 3});
  expect_refusal([&] { backward(); }, "do is fp32[2, 3, 16]");
}
INSTANTIATE_TEST_SUITE_P(Backends, AttentionChecks, testing::Values(Backend::kMeta, Backend::kCpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace untied::test
