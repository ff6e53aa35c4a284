#include "ops/attention.h"

#include <sys/mman.h>

#include <limits>
#include <tuple>

#include "ops/attention_backends.h"
#include "ops/attention_cpu_micro.h"
#include "support/attention_case.h"

namespace untied::test {
namespace {

// fp32 sums of a few hundred N(0, 1) terms against double: measured 4e-7 to 2e-6 of the largest element.
constexpr double kTolerance = 5e-6;

// All backends against the reference. Cuda rows of the table bring their own type and tolerance.
void expect_matches_reference(const AttentionCase& c, double tolerance = kTolerance) {
  const AttentionResults want = c.reference();
  for (const OnBackend& on : backends()) expect_near(c.run(on), want, tolerance, c.shape.str() + " on " + on.name);
}

OnBackend cpu(int threads) { return {"cpu", Backend::kCpu, DType::kF32, threads}; }

// ------------------------------------------------------------------------------------------------------ pairs, tiles, kernels

TEST(AttendedPairs, EqualsEnumeration) {
  const std::vector<std::vector<dim_t>> all_documents = {
      {}, {0}, {0, 3, 4, 11, 13}, {0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 16, 1000}};
  for (const auto& documents : all_documents)
    for (dim_t first = 0; first < 20; ++first)
      for (dim_t count = 0; count < 20; ++count) {
        double pairs = 0;
        for (dim_t row = first; row < first + count; ++row)
          pairs += static_cast<double>(ref::attended_keys(row, documents).size());
        EXPECT_EQ(attended_pairs(first, count, documents), pairs)
            << first << " " << count << " of " << documents.size();
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
      EXPECT_LE(attention_scratch_cpu(D, backward), dim_t{1} << 20) << D << backward;
      // Any number of rows and keys takes the same.
      for (int threads : {1, 7}) {
        const auto device = make_meta_device(Backend::kCpu, threads);
        for (dim_t rows : {dim_t{1}, dim_t{10'000'000}})
          EXPECT_EQ(attention_workspace(*device, 4, rows, 10'000'000, D, backward),
                    threads * attention_scratch_cpu(D, backward));
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
  for (float x = -126; x <= 20; x += 0.00137f)
    worst = std::max(worst, std::abs(exp2_of(x) / std::exp2(static_cast<double>(x)) - 1));
  EXPECT_LT(worst, 2e-7);
  EXPECT_EQ(exp2_of(0), 1.0f);
  for (float x : {-126.6f, -127.0f, -128.0f, -1000.0f, -1e30f, -2e30f, -std::numeric_limits<float>::infinity()})
    EXPECT_EQ(exp2_of(x), 0.0f) << x;
  EXPECT_TRUE(std::isnan(exp2_of(std::nanf(""))));
}

TEST(AttentionKernels, TransposeAndPanels) {
  using namespace attention_cpu;
  for (dim_t rows : {1, 7, 8, 9, 16, 23, 24})
    for (dim_t D : {1, 8, 15, 16, 17, 40}) {
      const dim_t stride = D + 3, width = round_up(D, kPanel);
      std::vector<float> src(static_cast<std::size_t>(rows * stride));
      for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<float>(i + 1);
      std::vector<float> transposed(static_cast<std::size_t>(kStripRows * D), -1),
          panels(static_cast<std::size_t>(kStripRows * width), -1);
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
    for (dim_t R : {1, 63, 64, 65, 97, 127, 128, 192})
      expect_matches_reference(AttentionCase({.R = R, .D = D, .kv_head = {0, 0}}));
  for (dim_t D : {32, 128}) expect_matches_reference(AttentionCase({.R = 704, .D = D}));
}

TEST(Attention, OddHeadSizes) {
  for (dim_t D : {1, 2, 5, 8, 24, 31, 72, 100, 200})
    for (dim_t gap : {0, 3})
      expect_matches_reference(AttentionCase({.R = 50, .D = D, .first_row = 80, .kv_head = {0, 1}, .gap = gap}));
}

TEST(Attention, GroupedHeadsAnyMapAnyStrides) {
  const std::vector<std::vector<int>> maps = {{0, 1, 2},    {0, 0, 1, 1},    {0, 1, 0, 1},
                                              {0, 0, 0, 1}, {2, 0, 1, 2, 2}, {0, 0, 0, 0, 0, 0}};
  for (const std::vector<int>& map : maps)
    for (dim_t gap : {0, 3, 32})
      expect_matches_reference(AttentionCase({.R = 75, .D = 32, .first_row = 70, .kv_head = map, .gap = gap}));
}

TEST(Attention, BlocksOfRowsAgainstAPrefixOfKeys) {
  for (dim_t first : {0, 1, 23, 24, 119, 120, 121, 300})
    for (dim_t R : {1, 5, 24, 50, 130}) expect_matches_reference(AttentionCase({.R = R, .D = 32, .first_row = first}));
}

const std::vector<std::vector<dim_t>> kDocuments = {
    {0, 3, 4, 11, 13},                       // lengths 3, 1, 7, 2, 3
    {0, 24, 48, 96, 120, 240},               // at the edges of strips and tiles
    {0, 23, 25, 119, 121, 239, 241},         // beside them
    {0, 100, 101, 102, 103, 104, 105, 150},  // short ones inside a strip
    {0, 260, 500},                           // a row far from its document's start; one that begins behind the rows
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27},
};

TEST(Attention, Documents) {
  for (const auto& documents : kDocuments)
    for (dim_t first : {0, 2, 90, 121})
      for (dim_t R : {16, 180})
        expect_matches_reference(
            AttentionCase({.R = R, .D = 32, .first_row = first, .kv_head = {0, 0}, .documents = documents}));
}

TEST(Attention, OneDocumentDoesNotTouchTheOthersByABit) {
  for (const auto& documents : kDocuments) {
    const dim_t R = 300, D = 32;
    const AttentionCase c({.R = R, .D = D, .kv_head = {0, 0}, .documents = documents});
    const AttentionResults before = c.run();
    for (std::size_t changed : {std::size_t{0}, std::size_t{1}}) {
      const Range rows{documents[changed], std::min(changed + 1 < documents.size() ? documents[changed + 1] : R, R)};
      AttentionCase other = c;
      for (std::vector<double>* values : {&other.q, &other.k, &other.v, &other.d_o})
        for (dim_t i = 0; i < static_cast<dim_t>(values->size()); ++i)
          if (const dim_t row = i / D % R; rows.begin <= row && row < rows.end)
            (*values)[i] = static_cast<float>(3 * (*values)[i] + 1);
      const AttentionResults after = other.run();
      for (const Range& others : {Range{0, rows.begin}, Range{rows.end, R}}) {
        for (dim_t h = 0; h < 2; ++h) {
          EXPECT_TRUE(rows_of(before.o, R, D, h, others) == rows_of(after.o, R, D, h, others));
          EXPECT_TRUE(rows_of(before.dq, R, D, h, others) == rows_of(after.dq, R, D, h, others));
          EXPECT_TRUE(rows_of(before.lse, R, 1, h, others) == rows_of(after.lse, R, 1, h, others));
        }
        EXPECT_TRUE(rows_of(before.dk, R, D, 0, others) == rows_of(after.dk, R, D, 0, others));
        EXPECT_TRUE(rows_of(before.dv, R, D, 0, others) == rows_of(after.dv, R, D, 0, others));
      }
      EXPECT_TRUE(rows_of(before.o, R, D, 0, rows) != rows_of(after.o, R, D, 0, rows));
    }
  }
}

TEST(Attention, CentralDifferences) {
  const AttentionCase c({.R = 5, .D = 4, .first_row = 4, .documents = {0, 6}});
  const AttentionResults got = c.run();
  ref::AttentionHead head = c.reference_head(0);
  const auto loss = [&] {
    std::vector<double> o, lse;
    ref::attention_forward(o, lse, head, c.shape.documents);
    return ref::dot(o.data(), c.d_o.data(), static_cast<dim_t>(o.size()));
  };
  const auto check = [&](const char* name, std::vector<double>& input, const std::vector<double>& gradient,
                         const std::vector<double>& start) {
    for (std::size_t i = 0; i < input.size(); ++i) {
      const double at = input[i], step = 1e-5;
      input[i] = at + step;
      const double above = loss();
      input[i] = at - step;
      const double below = loss();
      input[i] = at;
      EXPECT_NEAR(gradient[i] - start[i], (above - below) / (2 * step), 1e-6) << name << "[" << i << "]";
    }
  };
  check("dq", head.q, got.dq, std::vector<double>(got.dq.size()));
  check("dk", head.k, got.dk, c.gradient_start);
  check("dv", head.v, got.dv, c.gradient_start);
}

// -------------------------------------------------------------------------------------------------------------------- numbers

TEST(Attention, ScoresNearPlusAndMinus120) {
  for (double target : {-120.0, 120.0})
    for (dim_t R : {1, 63, 64, 65, 97, 127, 128, 192, 704}) {
      AttentionCase c({.R = R, .D = 64});
      // scale q.k is about `target` for every pair, and differs by about 1 between keys.
      const double size = std::sqrt(std::abs(target) / std::sqrt(64.0)), sign = target < 0 ? -1 : 1;
      c.fill(c.q, [&](dim_t r, dim_t d) { return size + 0.01 * static_cast<double>((r * 7 + d * 3) % 11); });
      c.fill(c.k, [&](dim_t r, dim_t d) { return sign * (size + 0.02 * static_cast<double>((r * 5 + d) % 13 - 6)); });
      for (double lse : c.run().lse) EXPECT_LT(std::abs(lse - target), 12) << R;
      // A score of 120 is known to 120 * 2^-24 = 7e-6 at best, as is lse; their difference is P's relative error.
      expect_matches_reference(c, 6e-5);
    }
}

TEST(Attention, ScoresFarApart) {
  AttentionCase c({.R = 300, .D = 32});
  c.fill(c.q, [](dim_t r, dim_t d) { return d == 0 ? 1 : 0.01 * static_cast<double>((r + d) % 5); });
  c.fill(c.k, [](dim_t r, dim_t d) {
    return d == 0 ? 10.0 * static_cast<double>((r * 37) % 101 - 50) : 0.1 * static_cast<double>((r + 2 * d) % 7);
  });
  expect_matches_reference(c, 5e-4);  // dq = dS k: dS is known to 1e-7, k is up to 500
}

TEST(Attention, OneKeyOnlyCopiesItsValue) {
  const AttentionCase c(
      {.R = 40, .D = 32, .documents = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}});
  EXPECT_EQ(rows_of(c.run().o, 40, 32, 0, {0, 20}), rows_of(c.v, 40, 32, 0, {0, 20}));
}

TEST(Attention, ANumberThatIsNoneIsNotHidden) {
  AttentionCase c({.R = 130, .D = 16});
  c.k[5 * 16 + 3] = std::nan("");
  const AttentionResults got = c.run();
  for (dim_t row = 5; row < 130; ++row) EXPECT_TRUE(std::isnan(got.o[row * 16])) << row;
  EXPECT_TRUE(std::isnan(got.dv[5 * 16]));
}

TEST(Attention, AMillionKeysDoNotMakeTheOutputDrift) {
  // All outputs are near 1: a sum that stalls or loses its small terms is off by 1e-3 and more.
  const dim_t S = 1 << 20, R = 2, D = 1;
  AttentionCase c({.R = R, .D = D, .first_row = S - R});
  c.fill(c.v, [](dim_t r, dim_t d) { return 1 + 0.125 * static_cast<double>((r + d) % 9 - 4); });
  expect_near(c.run(), c.reference(), kTolerance, c.shape.str());
}

TEST(Attention, RowsBeyondTwoToThe31Elements) {
  const dim_t keys = 1100, stride = dim_t{1} << 21, R = 30, D = 16, bytes = keys * stride * 4;
  const AttentionCase c({.R = R, .D = D, .first_row = keys - R});
  float* base[4];
  Tensor wide[4];  // k, v, dk, dv
  for (int i = 0; i < 4; ++i) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) GTEST_SKIP() << "no address space";
    base[i] = static_cast<float*>(memory);
    wide[i] = Tensor(memory, DType::kF32, {keys, stride}).slice(1, {0, D});
    const std::vector<double>& values = i == 0 ? c.k : i == 1 ? c.v : c.gradient_start;
    for (dim_t j = 0; j < keys * D; ++j) base[i][j / D * stride + j % D] = static_cast<float>(values[j]);
  }
  Rank rank;
  AttentionTensors t = c.put(rank);
  t.kv = {{wide[0], wide[1]}};
  t.dkv = {{wide[2], wide[3]}};
  c.run_on(rank.ctx(), t);
  const auto narrow = [&](const float* from) {
    std::vector<double> values;
    for (dim_t j = 0; j < keys * D; ++j) values.push_back(from[j / D * stride + j % D]);
    return values;
  };
  expect_near({rank.get(t.o), rank.get(t.lse), rank.get(t.dq), narrow(base[2]), narrow(base[3])}, c.reference(),
              kTolerance, c.shape.str());
  for (float* b : base) munmap(b, bytes);
}

// ------------------------------------------------------------------------------------------------------- splits and threads

TEST(Attention, RowsSplitOverCalls) {
  for (const auto& documents : {std::vector<dim_t>{}, std::vector<dim_t>{0, 50, 130, 350}}) {
    const AttentionCase c({.R = 400, .D = 64, .first_row = 37, .kv_head = {0, 0, 1}, .documents = documents});
    const AttentionResults whole = c.run();
    for (const std::vector<dim_t>& cuts :
         {std::vector<dim_t>{0, 1, 24, 25, 200, 400}, std::vector<dim_t>{0, 96, 192, 288, 384, 400}}) {
      const AttentionResults split = c.run(cpu(2), cuts);
      EXPECT_TRUE(whole.o == split.o);
      EXPECT_TRUE(whole.lse == split.lse);
      EXPECT_TRUE(whole.dq == split.dq);
      expect_near(split, whole, 1e-6, "rows in pieces");
    }
  }
}

TEST(Attention, ThreadsDoNotChangeABit) {
  const std::vector<AttentionShape> shapes = {
      {.R = 1000, .D = 32},                                         // one head: a pipeline of key tiles
      {.R = 500, .D = 32, .first_row = 300, .kv_head = {0, 0, 0}},  // one group
      {.R = 400, .D = 64, .kv_head = {0, 1, 0, 1, 2}},              // groups in turn
      {.R = 900, .D = 32, .kv_head = {0, 1}, .documents = {0, 100, 101, 240, 700}},
      {.R = 30, .D = 128},
  };
  for (const AttentionShape& shape : shapes) {
    const AttentionCase c(shape);
    const AttentionResults one = c.run(cpu(1));
    for (int threads : {2, 3, 3, 3, 8})
      EXPECT_TRUE(one == c.run(cpu(threads))) << threads << " threads, " << shape.str();
  }
}

// -------------------------------------------------------------------------------------------------------------- the front half

TEST(Attention, MetaTakesAndCountsWhatTheCpuDoes) {
  const AttentionCase c({.R = 100, .D = 64, .first_row = 60, .kv_head = {0, 0, 1}, .documents = {0, 70}});
  const auto peak_and_trace = [&](Rank rank) {
    const AttentionTensors t = c.make(rank);
    const dim_t before = rank.ctx().memory.peak();
    rank.ctx().trace = {};
    c.run_on(rank.ctx(), t);
    EXPECT_EQ(rank.ctx().memory.peak() - before,
              attention_workspace(rank.ctx().device, 3, 100, 160, 64, /*backward=*/true));
    EXPECT_EQ(rank.ctx().trace.ops, 2);
    EXPECT_EQ(rank.ctx().trace.flops, 14.0 * 64 * 3 * attended_pairs(60, 100, c.shape.documents));
    return std::tuple{rank.ctx().memory.peak(), rank.ctx().trace.flops, rank.ctx().trace.bytes_moved};
  };
  for (int threads : {1, 3})
    EXPECT_EQ(peak_and_trace(Rank(cpu(threads))), peak_and_trace(Rank::meta(Backend::kCpu, threads)));
}

TEST(Attention, NothingToDo) {
  RankMemory memory(make_cpu_device({}), 0, 0);  // takes no memory either
  const Tensor none(nullptr, DType::kF32, {0, 5, 16}), no_lse(nullptr, DType::kF32, {0, 5});
  attention_forward(memory.ctx(), none, no_lse, none, {}, {});
  attention_backward(memory.ctx(), none, {}, none, none, none, no_lse, {}, {});
  Rank rank;
  const AttentionCase c({.R = 4, .D = 16});
  c.run_on(memory.ctx(), c.put(rank), {0, 0});
  c.run_on(memory.ctx(), c.put(rank), {4, 4});
  EXPECT_EQ(memory.ctx().trace.ops, 0);
}

// One wrong argument at a time; the message names it.
class AttentionChecks : public testing::TestWithParam<Backend> {
 protected:
  AttentionChecks() : rank_(GetParam() == Backend::kCpu ? Rank() : Rank::meta(Backend::kCpu)), t_(case_.make(rank_)) {}
  void set_heads() { t_ = case_.with_heads(t_); }

  void forward() { attention_forward(rank_.ctx(), t_.o, t_.lse, t_.q, t_.kv, rows_); }
  void backward() { attention_backward(rank_.ctx(), t_.dq, t_.dkv, t_.d_o, t_.q, t_.o, t_.lse, t_.kv, rows_); }
  static void expect_words(const std::string& message, const std::string& words) {
    EXPECT_NE(message.find(words), std::string::npos) << "'" << message << "' lacks '" << words << "'";
  }
  void forward_refuses(const std::string& words) {
    expect_words(message_of<InternalError>([&] { forward(); }), words);
  }
  void backward_refuses(const std::string& words) {
    expect_words(message_of<InternalError>([&] { backward(); }), words);
  }
  void both_refuse(const std::string& words) {
    forward_refuses(words);
    backward_refuses(words);
  }

  const AttentionCase case_{{.R = 4, .D = 16, .first_row = 3, .kv_head = {0, 0}}};
  Rank rank_;
  AttentionTensors t_;
  AttentionRows rows_{.first_row = 3, .scale = 0.25};
};

TEST_P(AttentionChecks, AcceptsWhatIsRight) {
  forward();
  backward();
}
TEST_P(AttentionChecks, Rank) {
  t_.q = t_.q.reshape({8, 16});
  both_refuse("q is fp32[8, 16]");
}
TEST_P(AttentionChecks, TypeOfQ) {
  t_.q = Tensor(t_.q.raw(), DType::kI32, t_.q.shape());
  both_refuse("q is int32");
}
TEST_P(AttentionChecks, TheCpuTakesFp32) {
  t_.q = Tensor(t_.q.raw(), DType::kBF16, t_.q.shape());
  both_refuse("fp32, q is bf16");
}
TEST_P(AttentionChecks, ShapeOfO) {
  t_.o = t_.o.slice(1, {0, 3});
  both_refuse("o is fp32[2, 3, 16], q is fp32[2, 4, 16]");
}
TEST_P(AttentionChecks, ShapeAndTypeOfLse) {
  t_.lse = Tensor(t_.lse.raw(), DType::kF32, {4, 2});
  both_refuse("lse is fp32[4, 2]");
  t_.lse = Tensor(t_.lse.raw(), DType::kBF16, {2, 4});
  both_refuse("lse is bf16[2, 4]");
}
TEST_P(AttentionChecks, NumberOfKeyValueHeads) {
  t_.kv.pop_back();
  both_refuse("1 kv heads for 2 query heads");
}
TEST_P(AttentionChecks, ShapeOfKeyValues) {
  t_.kv[1].v_SD = t_.kv[1].v_SD.slice(1, {0, 8});
  both_refuse("kv is fp32[7, 8], not fp32[S, 16]");
}
TEST_P(AttentionChecks, TooFewKeys) {
  t_.kv[1].k_SD = t_.kv[1].k_SD.rows(0, 6);
  both_refuse("kv is fp32[6, 16], but rows up to 7");
}
TEST_P(AttentionChecks, FirstRowAndScale) {
  rows_.first_row = -1;
  both_refuse("first row -1");
  rows_ = {.first_row = 3, .scale = std::nan("")};
  both_refuse("scale nan");
}
TEST_P(AttentionChecks, Documents) {
  const std::vector<dim_t> late = {2, 5};
  rows_.documents = late;
  both_refuse("first document starts at 2");
}
TEST_P(AttentionChecks, OutputsThatAreInputs) {
  const Tensor o = t_.o;
  t_.o = t_.q;
  forward_refuses("is q");
  t_.o = o;
  t_.dq = t_.d_o;
  backward_refuses("is an input");
}
TEST_P(AttentionChecks, GradientsOfBackward) {
  t_.dkv[0].k_SD = Tensor(t_.dkv[0].k_SD.raw(), DType::kBF16, t_.dkv[0].k_SD.shape());
  backward_refuses("dkv is bf16[7, 16], not fp32");
  set_heads();
  t_.dkv.pop_back();
  backward_refuses("1 dkv heads");
  set_heads();
  t_.kv[1] = {t_.v.index(0), t_.k.index(0)};
  backward_refuses("query heads 0 and 1 share dkv but not kv");
  set_heads();
  t_.d_o = t_.d_o.slice(1, {0, 3});
  backward_refuses("do is fp32[2, 3, 16]");
}
INSTANTIATE_TEST_SUITE_P(Backends, AttentionChecks, testing::Values(Backend::kMeta, Backend::kCpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace untied::test
