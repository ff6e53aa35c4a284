// The ops of cuda_ops_test.cc beyond 2^31 bytes (262,144 rows of 4,096 in bf16) and 2^31 elements. Rows repeat with a prime
// period, so an index that wraps lands on another row. Ops that work row by row give the period's result again and again, by the
// bit; the first period is compared with the cpu.
#ifdef UNTIED_HAS_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/adamw.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/heads.h"
#include "ops/matmul.h"
#include "ops/rmsnorm.h"
#include "ops/rope.h"
#include "ops/swiglu.h"
#include "support/backends.h"
#include "support/cuda.h"

namespace untied::test {
namespace {

class CudaOpsSlow : public BothBackendsTest {
 protected:
  static constexpr dim_t kPeriod = 1009;

  // The dimension 0 that passes each of the two limits with rows of `columns` elements.
  static std::vector<dim_t> beyond(dim_t columns, DType dtype) {
    const dim_t bytes = dim_t{1} << 31;
    return {bytes / static_cast<dim_t>(size_of(dtype)) / columns + 3, bytes / columns + 3};
  }

  // A device tensor whose row r is row r % period of `first`.
  struct Periodic {
    OnBoth first;  // [period, columns]
    Tensor whole;  // [rows, columns]
  };
  static Periodic periodic(BothBackends& b, DType dtype, dim_t rows, dim_t columns, const ValueAt& draw,
                           dim_t period = kPeriod) {
    Periodic p{b.make(dtype, {period, columns}, draw), b.take(b.cuda(), dtype, {rows, columns})};
    repeat(b, p.whole, p.first.cuda);
    return p;
  }
  static void repeat(BothBackends& b, const Tensor& whole, const Tensor& first) {
    const dim_t rows = whole.dim(0);
    Device& device = b.cuda().device;
    dim_t filled = std::min(first.dim(0), rows);
    device.copy(StreamKind::kCompute, whole.rows(0, filled), first.rows(0, filled));
    while (filled < rows) {
      const dim_t more = std::min(filled, rows - filled);
      device.copy(StreamKind::kCompute, whole.rows(filled, filled + more), whole.rows(0, more));
      filled += more;
    }
    device.synchronize();
  }
  // How often row r of the period occurs.
  static double times(dim_t rows, dim_t r, dim_t period = kPeriod) {
    return static_cast<double>((rows - r + period - 1) / period);
  }

  // Whether all rows along `dim` repeat the first period.
  static testing::AssertionResult repeats(BothBackends& b, const Tensor& t, int dim = 0, dim_t period = kPeriod) {
    const std::vector<std::byte> first = b.fetch_bytes(t.slice(dim, {0, period}));
    for (dim_t begin = period; begin < t.dim(dim); begin += period) {
      const dim_t end = std::min(begin + period, t.dim(dim));
      if (end - begin < period && dim != 0) {  // the last, short one is not the first's beginning in memory
        const std::vector<std::byte> short_first = b.fetch_bytes(t.slice(dim, {0, end - begin}));
        if (b.fetch_bytes(t.slice(dim, {begin, end})) != short_first)
          return testing::AssertionFailure() << "rows from " << begin;
        continue;
      }
      const std::vector<std::byte> next = b.fetch_bytes(t.slice(dim, {begin, end}));
      if (std::memcmp(next.data(), first.data(), next.size()) != 0)
        return testing::AssertionFailure() << "rows from " << begin;
    }
    return testing::AssertionSuccess();
  }
  // The large result against the cpu's first period.
  static void expect_periodic(BothBackends& b, const Tensor& whole, const Tensor& want_cpu, Bound bound) {
    EXPECT_TRUE(within(bound, b.fetch(whole.rows(0, want_cpu.dim(0))), host_values(want_cpu)));
    EXPECT_TRUE(repeats(b, whole, 0, want_cpu.dim(0)));
  }
};

constexpr dim_t kE = 4096;

TEST_F(CudaOpsSlow, CastAndAdd) {
  LARGE(b, 28 * kGiB);
  for (dim_t rows : beyond(kE, DType::kBF16)) {
    const Periodic wide = periodic(b, DType::kF32, rows, kE, uniform(1));
    const Periodic narrow = periodic(b, DType::kBF16, rows, kE, uniform(2));
    cast(b.cuda(), narrow.whole, wide.whole);
    cast(b.cpu(), narrow.first.cpu, wide.first.cpu);  // fp32 here
    expect_periodic(b, narrow.whole, narrow.first.cpu, bound_of(DType::kBF16, 0));
    repeat(b, narrow.whole, narrow.first.cuda);  // as it was
    add(b.cuda(), wide.whole, narrow.whole);
    const OnBoth again = b.make(DType::kBF16, {kPeriod, kE}, uniform(2));
    add(b.cpu(), wide.first.cpu, again.cpu);
    expect_periodic(b, wide.whole, wide.first.cpu, {0, 0});
    // Strided: every row's first half into its second.
    cast(b.cuda(), wide.whole.slice(1, {kE / 2, kE}), wide.whole.slice(1, {0, kE / 2}));
    cast(b.cpu(), wide.first.cpu.slice(1, {kE / 2, kE}), wide.first.cpu.slice(1, {0, kE / 2}));
    expect_periodic(b, wide.whole, wide.first.cpu, {0, 0});
    b.clear();
  }
}

TEST_F(CudaOpsSlow, SumOfSquares) {
  LARGE(b, 10 * kGiB);
  for (dim_t rows : beyond(kE, DType::kF32)) {
    const Periodic x = periodic(b, DType::kF32, rows, kE, uniform(3));
    const OnBoth sum = b.make(DType::kF64, {1}, constant(0));
    sum_of_squares(b.cuda(), sum.cuda, x.whole);
    double want = 0;
    for (dim_t r = 0; r < kPeriod; ++r)
      for (dim_t e = 0; e < kE; ++e)
        want += times(rows, r) * std::pow(static_cast<double>(x.first.cpu.f32()[r * kE + e]), 2);
    EXPECT_NEAR(b.fetch(sum.cuda)[0], want, 1e-11 * want);
    b.clear();
  }
}

// Logits of 128,256 columns pass 2^31 bytes at 8,372 rows and 2^31 elements at 16,744: rows of c repeat where a's do. The first
// period against the cpu, the rest by the bit.
TEST_F(CudaOpsSlow, Matmul) {
  constexpr dim_t kV = 128256, kK = 64, kPeriodRows = 64;
  LARGE(b, 26 * kGiB);
  for (dim_t rows : beyond(kV, DType::kBF16)) {
    const dim_t M = round_up(rows, kPeriodRows);
    const Periodic a = periodic(b, DType::kBF16, M, kK, uniform(60), kPeriodRows);
    const OnBoth w = b.make(DType::kBF16, {kV, kK}, uniform(61));
    const Tensor logits = b.take(b.cuda(), DType::kBF16, {M, kV});
    matmul(b.cuda(), logits, a.whole, w.cuda, {.transpose_b = true});
    const Tensor want = b.take(b.cpu(), DType::kF32, {kPeriodRows, kV});
    matmul(b.cpu(), want, a.first.cpu, w.cpu, {.transpose_b = true});
    expect_periodic(b, logits, want, bound_of(DType::kBF16, 2e-6));
    // The large one as an operand, summed over its rows and over its columns.
    const Tensor dw = b.take(b.cuda(), DType::kF32, {kV, kK});
    matmul(b.cuda(), dw, logits, a.whole, {.transpose_a = true});
    const Tensor dx = b.take(b.cuda(), DType::kBF16, {M, kK});
    matmul(b.cuda(), dx, logits, w.cuda);
    EXPECT_TRUE(repeats(b, dx, 0, kPeriodRows));
    const std::vector<double> l = b.fetch(logits.rows(0, kPeriodRows)), first = b.fetch(a.whole.rows(0, kPeriodRows)),
                              got = b.fetch(dw);
    for (dim_t v : {dim_t{0}, dim_t{1}, kV / 2, kV - 1})
      for (dim_t k = 0; k < kK; ++k) {
        double sum = 0, size = 0;
        for (dim_t r = 0; r < kPeriodRows; ++r) {
          const double term = l[static_cast<std::size_t>(r * kV + v)] * first[static_cast<std::size_t>(r * kK + k)];
          sum += term, size += std::abs(term);
        }
        const double copies = static_cast<double>(M / kPeriodRows);
        // Tensor cores cut sums off where fp32 ends: the same terms over and over come out small by 2^-24 an addition.
        EXPECT_NEAR(got[static_cast<std::size_t>(v * kK + k)], copies * sum, 1e-4 * copies * size) << v << ", " << k;
      }
    b.clear();
  }
}

TEST_F(CudaOpsSlow, Bias) {
  LARGE(b, 6 * kGiB);
  for (dim_t rows : beyond(kE, DType::kBF16)) {
    const Periodic y = periodic(b, DType::kBF16, rows, kE, uniform(4));
    const OnBoth bias = b.make(DType::kBF16, {kE}, uniform(5)), dbias = b.make(DType::kF32, {kE}, constant(0));
    bias_backward(b.cuda(), dbias.cuda, y.whole, Accumulate::kWrite);
    std::vector<double> want(kE, 0.0);
    for (dim_t r = 0; r < kPeriod; ++r)
      for (dim_t e = 0; e < kE; ++e)
        want[static_cast<std::size_t>(e)] += times(rows, r) * y.first.cpu.f32()[r * kE + e];
    // Of half a million terms, summed in 256 groups: partial sums reach a few thousand, at 6e-8 each time.
    EXPECT_TRUE(within({0, 1e-4}, b.fetch(dbias.cuda), want));
    add_bias(b.cuda(), y.whole, bias.cuda);
    add_bias(b.cpu(), y.first.cpu, bias.cpu);
    expect_periodic(b, y.whole, y.first.cpu, bound_of(DType::kBF16, 1e-7));
    b.clear();
  }
}

TEST_F(CudaOpsSlow, Embedding) {
  LARGE(b, 14 * kGiB);
  // The id of row r, from 0 to V - 1 within a period; half a million of them are exact as floats.
  const auto id_of = [](dim_t r, dim_t V) { return (r % kPeriod) * (V - 1) / (kPeriod - 1); };
  const auto make_ids = [&](dim_t rows, dim_t V) {
    const Tensor ids = b.take(b.cuda(), DType::kI32, {rows});
    b.upload(ids, [&](dim_t r) { return static_cast<float>(id_of(r, V)); });
    return ids;
  };
  for (dim_t rows : beyond(kE, DType::kBF16)) {
    const dim_t V = rows;
    const Tensor ids = make_ids(rows, V);
    const Periodic table = periodic(b, DType::kBF16, V, kE, uniform(7));
    const Tensor x = b.take(b.cuda(), DType::kBF16, {rows, kE});
    embedding_forward(b.cuda(), x, ids, table.whole);
    std::vector<double> want;
    for (dim_t r = 0; r < kPeriod; ++r)
      for (dim_t e = 0; e < kE; ++e) want.push_back(table.first.cpu.f32()[id_of(r, V) % kPeriod * kE + e]);
    EXPECT_EQ(b.fetch(x.rows(0, kPeriod)), want);
    EXPECT_TRUE(repeats(b, x));
    b.clear();
  }
  // Multiples of 1/8, whose sums are exact.
  const dim_t rows = beyond(kE, DType::kBF16)[1], V = rows;  // of fp32: beyond 2^33 bytes
  const Tensor ids = make_ids(rows, V);
  const Periodic dx = periodic(b, DType::kBF16, rows, kE, [](dim_t i) { return std::round(8 * uniform_at(8, i)) / 8; });
  const Tensor dtable = b.take(b.cuda(), DType::kF32, {V, kE});
  zero(b.cuda(), dtable);
  embedding_backward(b.cuda(), dtable, ids, dx.whole);
  for (dim_t r = 0; r < kPeriod; ++r) {
    std::vector<double> want(kE);
    for (dim_t e = 0; e < kE; ++e) want[static_cast<std::size_t>(e)] = times(rows, r) * dx.first.cpu.f32()[r * kE + e];
    const dim_t id = id_of(r, V);
    ASSERT_EQ(b.fetch(dtable.index(id)), want) << id;
    if (r == 0) continue;
    ASSERT_EQ(b.fetch(dtable.index(id - 1)), std::vector<double>(kE, 0.0)) << "beside " << id;
  }
}

TEST_F(CudaOpsSlow, RmsNorm) {
  LARGE(b, 18 * kGiB);
  for (dim_t rows : beyond(kE, DType::kBF16)) {
    const Periodic x = periodic(b, DType::kBF16, rows, kE, uniform(11)),
                   dy = periodic(b, DType::kBF16, rows, kE, uniform(12));
    const Periodic dx = periodic(b, DType::kBF16, rows, kE, uniform(13));
    const OnBoth w = b.make(DType::kBF16, {kE}, uniform(10)), dw = b.make(DType::kF32, {kE}, constant(0));
    rmsnorm_backward(b.cuda(), dx.whole, dw.cuda, dy.whole, x.whole, w.cuda, 1e-5, Accumulate::kWrite);
    std::vector<double> want(kE, 0.0);
    for (dim_t r = 0; r < kPeriod; ++r) {
      const float *const x_E = x.first.cpu.f32() + r * kE, *const dy_E = dy.first.cpu.f32() + r * kE;
      double squares = 0;
      for (dim_t e = 0; e < kE; ++e) squares += static_cast<double>(x_E[e]) * x_E[e];
      const double inverse = 1 / std::sqrt(squares / kE + 1e-5);
      for (dim_t e = 0; e < kE; ++e) want[static_cast<std::size_t>(e)] += times(rows, r) * dy_E[e] * x_E[e] * inverse;
    }
    EXPECT_TRUE(within({0, 1e-4}, b.fetch(dw.cuda), want));  // 256 sums of two thousand rows each
    rmsnorm_backward(b.cpu(), dx.first.cpu, dw.cpu, dy.first.cpu, x.first.cpu, w.cpu, 1e-5, Accumulate::kWrite);
    expect_periodic(b, dx.whole, dx.first.cpu, bound_of(DType::kBF16, 2e-6));
    rmsnorm_forward(b.cuda(), dy.whole, x.whole, w.cuda, 1e-5);
    rmsnorm_forward(b.cpu(), dy.first.cpu, x.first.cpu, w.cpu, 1e-5);
    expect_periodic(b, dy.whole, dy.first.cpu, bound_of(DType::kBF16, 2e-6));
    b.clear();
  }
}

TEST_F(CudaOpsSlow, SwiGlu) {
  LARGE(b, 20 * kGiB);
  constexpr dim_t kF = 14336, kShort = 251;
  for (dim_t rows : beyond(kF, DType::kBF16)) {
    const auto make = [&](int seed) { return periodic(b, DType::kBF16, rows, kF, uniform(seed, 4), kShort); };
    const Periodic gate = make(24), up = make(25), y = make(26);
    swiglu_forward(b.cuda(), y.whole, gate.whole, up.whole);
    const OnBoth dy = b.make(DType::kBF16, {kShort, kF}, uniform(26, 4));
    swiglu_forward(b.cpu(), y.first.cpu, gate.first.cpu, up.first.cpu);
    expect_periodic(b, y.whole, y.first.cpu, bound_of(DType::kBF16, 1e-6));
    repeat(b, y.whole, dy.cuda);
    swiglu_backward(b.cuda(), y.whole, gate.whole, up.whole, y.whole);
    swiglu_backward(b.cpu(), dy.cpu, gate.first.cpu, up.first.cpu, dy.cpu);
    for (const auto& [whole, want] :
         {std::pair(y.whole, dy.cpu), {gate.whole, gate.first.cpu}, {up.whole, up.first.cpu}})
      expect_periodic(b, whole, want, bound_of(DType::kBF16, 3e-6));
    b.clear();
  }
}

TEST_F(CudaOpsSlow, RopeAnglesAndHeads) {
  LARGE(b, 20 * kGiB);
  {
    constexpr dim_t kF = 64;
    std::vector<double> frequencies;
    for (dim_t f = 0; f < kF; ++f) frequencies.push_back(std::pow(5e5, -static_cast<double>(f) / kF));
    for (dim_t R : beyond(kF, DType::kF32)) {
      const Periodic at = periodic(b, DType::kI32, R, 1, [](dim_t i) { return static_cast<float>(i * 9001); });
      const Tensor cos = b.take(b.cuda(), DType::kF32, {R, kF}), sin = b.take(b.cuda(), DType::kF32, {R, kF});
      rope_angles(b.cuda(), cos, sin, at.whole.flat(), frequencies);
      const OnBoth first_cos = b.make(DType::kF32, {kPeriod, kF}, constant(0)),
                   first_sin = b.make(DType::kF32, {kPeriod, kF}, constant(0));
      rope_angles(b.cpu(), first_cos.cpu, first_sin.cpu, at.first.cpu.flat(), frequencies);
      expect_periodic(b, cos, first_cos.cpu, {0, 6e-7});
      expect_periodic(b, sin, first_sin.cpu, {0, 6e-7});
      b.clear();
    }
  }
  constexpr dim_t kD = 128, kHeads = kE / kD;
  std::vector<int> source(kHeads);
  for (int n = 0; n < kHeads; ++n) source[static_cast<std::size_t>(n)] = n * 5 % static_cast<int>(kHeads);
  for (dim_t R : beyond(kE, DType::kBF16)) {
    const Periodic tokens = periodic(b, DType::kBF16, R, kE, uniform(30));
    const Periodic cos = periodic(b, DType::kF32, R, kD / 2, [](dim_t i) { return std::cos(static_cast<float>(i)); });
    const Periodic sin = periodic(b, DType::kF32, R, kD / 2, [](dim_t i) { return std::sin(static_cast<float>(i)); });
    const Tensor heads = b.take(b.cuda(), DType::kBF16, {kHeads, R, kD});
    const OnBoth first = b.make(DType::kBF16, {kHeads, kPeriod, kD}, constant(0));
    const RopeAngles angles{cos.whole, sin.whole}, first_angles{cos.first.cpu, sin.first.cpu};
    heads_pack(b.cuda(), heads, tokens.whole, source, &angles);
    heads_pack(b.cpu(), first.cpu, tokens.first.cpu, source, &first_angles);
    EXPECT_TRUE(within(bound_of(DType::kBF16, 3e-7), b.fetch(heads.slice(1, {0, kPeriod})), host_values(first.cpu)));
    EXPECT_TRUE(repeats(b, heads, 1));
    // Back: what was rounded to bf16 on the way is off by that, of values up to 3, and rounded once more.
    zero(b.cuda(), tokens.whole);
    heads_unpack(b.cuda(), tokens.whole, heads, source, &angles);
    expect_periodic(b, tokens.whole, tokens.first.cpu, {2.0 / 256, 2.0 / 256});
    b.clear();
  }
}

TEST_F(CudaOpsSlow, CrossEntropy) {
  LARGE(b, 6 * kGiB);
  constexpr dim_t kV = 128'256, kShort = 101;
  for (dim_t R : beyond(kV, DType::kBF16)) {
    const Periodic logits = periodic(b, DType::kBF16, R, kV, uniform(33, 8), kShort);
    const auto target = [](dim_t r) { return r % 7 == 3 ? -100.0f : static_cast<float>((r * 7919 + 5) % kV); };
    const Periodic targets = periodic(b, DType::kI32, R, 1, target, kShort);
    const OnBoth loss = b.make(DType::kF64, {1}, constant(0));
    // Gradients near 1, so that the bound for fp32's part of the error stays small beside bf16's.
    cross_entropy(b.cuda(), loss.cuda, logits.whole, targets.whole.flat(), 1.0);
    double want = 0;
    for (dim_t r = 0; r < kShort; ++r) {
      *loss.cpu.as<double>() = 0;
      cross_entropy(b.cpu(), loss.cpu, logits.first.cpu.rows(r, r + 1), targets.first.cpu.flat().rows(r, r + 1), 1.0);
      want += times(R, r, kShort) * *loss.cpu.as<double>();
    }
    EXPECT_NEAR(b.fetch(loss.cuda)[0], want, 1e-6 * want);
    expect_periodic(b, logits.whole, logits.first.cpu, bound_of(DType::kBF16, 2e-6));
    b.clear();
  }
}

TEST_F(CudaOpsSlow, AdamW) {
  LARGE(b, 40 * kGiB);
  const AdamWStep step{.lr = 1e-2, .weight_decay = 0.1, .gradient_scale = 0.37, .step = 3};
  for (dim_t rows : beyond(kE, DType::kF32)) {
    const auto make = [&](DType dtype, int seed) {
      return periodic(b, dtype, rows, kE, [=](dim_t i) { return std::abs(uniform_at(seed, i)); });
    };
    const Periodic working = make(DType::kBF16, 40), master = make(DType::kF32, 41), m = make(DType::kF32, 42),
                   v = make(DType::kF32, 43), grad = make(DType::kF32, 44);
    adamw(b.cuda(), working.whole.flat(), master.whole.flat(), m.whole.flat(), v.whole.flat(), grad.whole.flat(), step);
    adamw(b.cpu(), working.first.cpu.flat(), master.first.cpu.flat(), m.first.cpu.flat(), v.first.cpu.flat(),
          grad.first.cpu.flat(), step);
    expect_periodic(b, working.whole, working.first.cpu, bound_of(DType::kBF16, 2e-6));
    for (const Periodic* t : {&master, &m, &v}) expect_periodic(b, t->whole, t->first.cpu, bound_of(DType::kF32, 2e-6));
    b.clear();
  }
}

}  // namespace
}  // namespace untied::test

#endif  // UNTIED_HAS_CUDA
