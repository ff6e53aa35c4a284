// The cuda kernels of the element-wise ops and the matrix product against the cpu backend, on the same values. Large shapes are in
// cuda_ops_slow_test.cc, attention in cuda_attention_test.cc.
#ifdef UNTIED_HAS_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

// A matrix with `gap` elements between its rows.
struct MatrixCase {
  DType dtype;
  dim_t rows, columns, gap;
  std::string str() const { return format("{} [{}, {}], gap {}", name_of(dtype), rows, columns, gap); }
};
// Gap 8 keeps packs of 16 bytes in bf16 and fp32 but breaks contiguity; 3 forces single elements. (An offset of gap / 2 = 4
// elements is 8 bytes in bf16, so 16 is there too.)
std::vector<MatrixCase> matrix_cases() {
  std::vector<MatrixCase> all;
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (dim_t rows : {1, 3, 113, 1023, 1025})
      for (dim_t columns : {8, 40, 128, 4096})
        for (dim_t gap : {0, 3, 8, 16})
          if (gap == 0 || rows <= 113 || columns <= 128) all.push_back({dtype, rows, columns, gap});
  return all;
}

class CudaOps : public BothBackendsTest {
 protected:
  // The op on both backends.
  template <class Run>
  void run(Run&& op) {
    op(both().cpu(), &OnBoth::cpu);
    op(both().cuda(), &OnBoth::cuda);
  }
};

// Conversions and sums of two are exact: the bits agree, also of infinities, ties and what is too small.
TEST_F(CudaOps, CastAndAdd) {
  const double special[] = {0.0,       -0.0,    1.00390625, 1.01171875,
                            3.4e38,    -3.4e38, 1e-40,      std::numeric_limits<double>::infinity(),
                            kUntouched};
  const ValueAt draw = [&](dim_t i) { return i % 7 == 3 ? special[i / 7 % 9] : uniform_at(1, i); };
  for (const MatrixCase& c : matrix_cases()) {
    if (c.dtype == DType::kBF16) continue;
    for (DType from : {DType::kF32, DType::kBF16})
      for (DType to : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(c.str() + name_of(from) + name_of(to));
        const OnBoth src = both().make(from, {c.rows, c.columns}, draw, {.gap = c.gap, .cpu_keeps_bf16 = true});
        const OnBoth dst = both().make(to, {c.rows, c.columns}, constant(7), {.gap = c.gap, .cpu_keeps_bf16 = true});
        const OnBoth sum = both().make(to, {c.rows, c.columns}, uniform(2), {.gap = c.gap, .cpu_keeps_bf16 = true});
        run([&](Ctx& ctx, auto t) {
          cast(ctx, dst.*t, src.*t);
          add(ctx, sum.*t, src.*t);
          add(ctx, sum.*t, sum.*t);
        });
        EXPECT_TRUE(both().agree(dst, {0, 0}));
        EXPECT_TRUE(both().agree(sum, {0, 0}));
        both().clear();
      }
  }
}

TEST_F(CudaOps, CastAndAddOfFourDimensions) {
  const Shape whole{3, 5, 6, 16};
  for (int narrowed = 0; narrowed < 16; ++narrowed) {
    OnBoth src = both().make(DType::kF32, whole, uniform(1), {.cpu_keeps_bf16 = true}),
           dst = both().make(DType::kBF16, whole, uniform(2), {.cpu_keeps_bf16 = true});
    for (int d = 0; d < 4; ++d)
      if (narrowed >> d & 1)
        for (auto t : {&OnBoth::cpu, &OnBoth::cuda}) {
          src.*t = (src.*t).slice(d, {1, whole[d]});
          dst.*t = (dst.*t).slice(d, {0, whole[d] - 1});
        }
    run([&](Ctx& ctx, auto t) {
      cast(ctx, dst.*t, src.*t);
      add(ctx, dst.*t, src.*t);
    });
    SCOPED_TRACE(narrowed);
    EXPECT_TRUE(both().agree(dst, {0, 0}));
    both().clear();
  }
}

// In double: 1e-13 allows for a million terms added in another order.
TEST_F(CudaOps, SumOfSquares) {
  for (dim_t n : {1, 3, 113, 1023, 1025, 3 * 16384 + 5, 5'000'001})
    for (dim_t offset : {0, 1}) {
      const OnBoth x = both().make(DType::kF32, {n + offset}, uniform(3));
      const OnBoth sum = both().make(DType::kF64, {1}, constant(0.5f));
      run([&](Ctx& ctx, auto t) {
        sum_of_squares(ctx, sum.*t, (x.*t).rows(offset, n + offset));
        sum_of_squares(ctx, sum.*t, (x.*t).rows(offset, n + offset));
      });
      const double want = *sum.cpu.as<double>();
      EXPECT_NEAR(both().fetch(sum.cuda)[0], want, 1e-13 * want) << n << " from " << offset;
      const Tensor again = both().take(both().cuda(), DType::kF64, {2});
      zero(both().cuda(), again);
      for (int i : {0, 1}) sum_of_squares(both().cuda(), again.rows(i, i + 1), x.cuda.rows(offset, n + offset));
      EXPECT_EQ(both().fetch(again)[0], both().fetch(again)[1]) << n;
      both().clear();
    }
}

// Every pair of transposed operands, odd sizes and strides that rule out the library's wide loads, c of the operands' type and in
// fp32, written and added. K values below 2 in fp32, in another order: sqrt(K) roundings of 6e-8 relative to the largest.
TEST_F(CudaOps, Matmul) {
  struct Product {
    dim_t M, K, N;
  };
  const Product products[] = {{1, 1, 1},    {3, 1, 113},     {1, 113, 3},     {7, 17, 1025},
                              {64, 64, 64}, {113, 1023, 33}, {256, 512, 128}, {1025, 96, 200}};
  for (const Product& p : products)
    for (DType dtype : {DType::kF32, DType::kBF16})
      for (DType out : {DType::kF32, DType::kBF16}) {
        if (dtype == DType::kF32 && out == DType::kBF16) continue;
        for (dim_t gap : {0, 3, 16})
          for (int variant = 0; variant < 8; ++variant) {
            const MatmulOptions options{.transpose_a = (variant & 1) != 0,
                                        .transpose_b = (variant & 2) != 0,
                                        .accumulate = variant & 4 ? Accumulate::kAdd : Accumulate::kWrite};
            SCOPED_TRACE(format("{} to {}, {} x {} x {}, gap {}, variant {}", name_of(dtype), name_of(out), p.M, p.K,
                                p.N, gap, variant));
            const auto shape = [](bool transposed, dim_t rows, dim_t columns) {
              return transposed ? Shape{columns, rows} : Shape{rows, columns};
            };
            const OnBoth a = both().make(dtype, shape(options.transpose_a, p.M, p.K), uniform(70), {.gap = gap});
            const OnBoth b = both().make(dtype, shape(options.transpose_b, p.K, p.N), uniform(71), {.gap = gap});
            const OnBoth c =
                both().make(out, {p.M, p.N},
                            options.accumulate == Accumulate::kAdd ? uniform(72) : constant(kUntouched), {.gap = gap});
            run([&](Ctx& ctx, auto t) { matmul(ctx, c.*t, a.*t, b.*t, options); });
            // The library's kernels for c in bf16 round the product before they add it to what is there.
            const bool rounds_twice = out == DType::kBF16 && options.accumulate == Accumulate::kAdd;
            EXPECT_TRUE(both().agree(c, bound_of(out, rounds_twice ? 1.0 / 256 : 2e-6)));
            both().clear();
          }
      }
}

TEST_F(CudaOps, MatmulOfNothing) {
  const OnBoth written = both().make(DType::kF32, {5, 7}, constant(3)),
               added = both().make(DType::kF32, {5, 7}, constant(3));
  run([&](Ctx& ctx, auto t) {
    const Tensor a(nullptr, DType::kF32, {5, 0}), b(nullptr, DType::kF32, {0, 7});
    matmul(ctx, written.*t, a, b);
    matmul(ctx, added.*t, a, b, {.accumulate = Accumulate::kAdd});
  });
  EXPECT_TRUE(both().agree(written, {0, 0}));
  EXPECT_TRUE(both().agree(added, {0, 0}));
}

// A weight gradient over two million rows of one value: bf16 sums would stall at 256, fp32 ones are exact.
TEST_F(CudaOps, MatmulSumsInFp32) {
  const dim_t rows = 1 << 21, columns = 8;
  const OnBoth ones = both().make(DType::kBF16, {rows, columns}, constant(1)),
               c = both().make(DType::kF32, {columns, columns}, constant(1));
  matmul(both().cuda(), c.cuda, ones.cuda, ones.cuda, {.transpose_a = true, .accumulate = Accumulate::kAdd});
  EXPECT_EQ(both().fetch(c.cuda), std::vector<double>(columns * columns, static_cast<double>(rows + 1)));
}

// One addition in fp32; sums of up to 1025 values below 2 differ in order: 1e-6 of the largest is a dozen roundings.
TEST_F(CudaOps, Bias) {
  for (const MatrixCase& c : matrix_cases()) {
    SCOPED_TRACE(c.str());
    const OnBoth y = both().make(c.dtype, {c.rows, c.columns}, uniform(4), {.gap = c.gap});
    const OnBoth bias = both().make(c.dtype, {c.columns}, uniform(5));
    const OnBoth written = both().make(DType::kF32, {c.columns}, constant(kUntouched)),
                 added = both().make(DType::kF32, {c.columns}, uniform(6));
    run([&](Ctx& ctx, auto t) {
      bias_backward(ctx, written.*t, y.*t, Accumulate::kWrite);
      bias_backward(ctx, added.*t, y.*t, Accumulate::kAdd);
      add_bias(ctx, y.*t, bias.*t);
    });
    EXPECT_TRUE(both().agree(y, bound_of(c.dtype, 1e-7)));
    EXPECT_TRUE(both().agree(written, bound_of(DType::kF32, 1e-6)));
    EXPECT_TRUE(both().agree(added, bound_of(DType::kF32, 1e-6)));
    both().clear();
  }
}

TEST_F(CudaOps, BiasBackwardOfNoRows) {
  const OnBoth written = both().make(DType::kF32, {100}, constant(3)),
               added = both().make(DType::kF32, {100}, constant(3));
  run([&](Ctx& ctx, auto t) {
    const Tensor none(nullptr, DType::kF32, {0, 100});
    bias_backward(ctx, written.*t, none, Accumulate::kWrite);
    bias_backward(ctx, added.*t, none, Accumulate::kAdd);
  });
  EXPECT_TRUE(both().agree(written, {0, 0}));
  EXPECT_TRUE(both().agree(added, {0, 0}));
}

// Forward moves bits. Backward adds the tokens in order on both backends: every bit agrees, also with few ids and one of them
// in most places. (bf16 gradients are added in fp32.)
TEST_F(CudaOps, Embedding) {
  for (const MatrixCase& c : matrix_cases())
    for (dim_t V : {1, 5, 1000}) {
      if (V > 1 && c.gap > 3) continue;
      SCOPED_TRACE(format("{}, {} ids", c.str(), V));
      const OnBoth ids = both().make(DType::kI32, {c.rows}, [&](dim_t i) {
        return i % 3 == 0 ? 0.0f : static_cast<float>(random_bits(0, i) % static_cast<std::uint64_t>(V));
      });
      const OnBoth table = both().make(c.dtype, {V, c.columns}, uniform(7), {.gap = c.gap});
      const OnBoth x = both().make(c.dtype, {c.rows, c.columns}, constant(kUntouched), {.gap = c.gap});
      const OnBoth dx = both().make(c.dtype, {c.rows, c.columns}, uniform(8), {.gap = c.gap});
      const OnBoth dtable = both().make(DType::kF32, {V, c.columns}, uniform(9), {.gap = c.gap});
      run([&](Ctx& ctx, auto t) {
        embedding_forward(ctx, x.*t, ids.*t, table.*t);
        embedding_backward(ctx, dtable.*t, ids.*t, dx.*t);
      });
      EXPECT_TRUE(both().agree(x, {0, 0}));
      EXPECT_TRUE(both().agree(dtable, {0, 0}));
      both().clear();
    }
}

// fp32: sums over a row in another order, a dozen roundings: 2e-6. dw: over all rows.
TEST_F(CudaOps, RmsNorm) {
  for (const MatrixCase& c : matrix_cases()) {
    SCOPED_TRACE(c.str());
    const auto make = [&](int seed) {
      return both().make(c.dtype, {c.rows, c.columns}, uniform(seed), {.gap = c.gap});
    };
    const OnBoth w = both().make(c.dtype, {c.columns}, uniform(10)), x = make(11), y = make(12), in_place = make(13),
                 dy = make(14), dx = make(15);
    const OnBoth written = both().make(DType::kF32, {c.columns}, constant(kUntouched)),
                 added = both().make(DType::kF32, {c.columns}, uniform(16));
    run([&](Ctx& ctx, auto t) {
      rmsnorm_forward(ctx, y.*t, x.*t, w.*t, 1e-5);
      rmsnorm_forward(ctx, in_place.*t, in_place.*t, w.*t, 1e-6);
      rmsnorm_backward(ctx, dx.*t, written.*t, dy.*t, x.*t, w.*t, 1e-5, Accumulate::kWrite);
    });
    EXPECT_TRUE(both().agree(y, bound_of(c.dtype, 2e-6)));
    EXPECT_TRUE(both().agree(in_place, bound_of(c.dtype, 2e-6)));
    EXPECT_TRUE(both().agree(dx, bound_of(c.dtype, 2e-6)));
    EXPECT_TRUE(both().agree(written, bound_of(DType::kF32, 5e-6)));
    const OnBoth dx_again = make(15);
    run([&](Ctx& ctx, auto t) {
      rmsnorm_backward(ctx, dx_again.*t, added.*t, dy.*t, x.*t, w.*t, 1e-5, Accumulate::kAdd);
    });
    EXPECT_TRUE(both().agree(added, bound_of(DType::kF32, 5e-6)));
    EXPECT_EQ(both().fetch(dx_again.cuda), both().fetch(dx.cuda));  // and two runs agree by the bit
    both().clear();
  }
}

// Rows that do not fit a thread's registers, of one pack (16,384 in bf16, 8,192 in fp32) or four, and those read again.
TEST_F(CudaOps, RmsNormOfLongRows) {
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (dim_t E : {1000, 8192, 8200, 16384, 16392, 32768, 40008})
      for (dim_t gap : {0, 1}) {
        SCOPED_TRACE(format("{} {} {}", name_of(dtype), E, gap));
        const auto make = [&](int seed) { return both().make(dtype, {70, E}, uniform(seed), {.gap = gap}); };
        const OnBoth w = both().make(dtype, {E}, uniform(17)), x = make(18), y = make(19), dy = make(20), dx = make(21);
        const OnBoth dw = both().make(DType::kF32, {E}, uniform(22));
        run([&](Ctx& ctx, auto t) {
          rmsnorm_forward(ctx, y.*t, x.*t, w.*t, 1e-5);
          rmsnorm_backward(ctx, dx.*t, dw.*t, dy.*t, x.*t, w.*t, 1e-5, Accumulate::kAdd);
        });
        EXPECT_TRUE(both().agree(y, bound_of(dtype, 2e-6)));
        EXPECT_TRUE(both().agree(dx, bound_of(dtype, 2e-6)));
        EXPECT_TRUE(both().agree(dw, bound_of(DType::kF32, 5e-6)));
        both().clear();
      }
}

TEST_F(CudaOps, RmsNormBackwardOfNoRows) {
  const OnBoth w = both().make(DType::kF32, {100}, uniform(23));
  const OnBoth written = both().make(DType::kF32, {100}, constant(3)),
               added = both().make(DType::kF32, {100}, constant(3));
  run([&](Ctx& ctx, auto t) {
    const Tensor none(nullptr, DType::kF32, {0, 100});
    rmsnorm_backward(ctx, none, written.*t, none, none, w.*t, 1e-5, Accumulate::kWrite);
    rmsnorm_backward(ctx, none, added.*t, none, none, w.*t, 1e-5, Accumulate::kAdd);
  });
  EXPECT_TRUE(both().agree(written, {0, 0}));
  EXPECT_TRUE(both().agree(added, {0, 0}));
}

// The exponential and the division are each good to two units: 1e-6 of values that reach some tens. The cpu's 1 - sigmoid of
// gates up to 20 cancels to 1e-7, times the gate: 3e-6 in the gradients.
TEST_F(CudaOps, SwiGlu) {
  for (const MatrixCase& c : matrix_cases()) {
    SCOPED_TRACE(c.str());
    const auto make = [&](int seed, float scale) {
      return both().make(c.dtype, {c.rows, c.columns}, uniform(seed, scale), {.gap = c.gap});
    };
    const OnBoth gate = make(24, 20), up = make(25, 2), y = make(26, 2), over_gate = make(24, 20),
                 over_up = make(25, 2);
    const OnBoth dgate = make(24, 20), dup = make(25, 2), dy = make(27, 2), dgate2 = make(24, 20), dup2 = make(25, 2),
                 over_dy = make(27, 2), again = make(28, 1);
    run([&](Ctx& ctx, auto t) {
      swiglu_forward(ctx, y.*t, gate.*t, up.*t);
      swiglu_forward(ctx, over_gate.*t, over_gate.*t, up.*t);
      swiglu_forward(ctx, over_up.*t, gate.*t, over_up.*t);
      swiglu_backward(ctx, again.*t, dgate.*t, dup.*t, dy.*t);
      swiglu_backward(ctx, over_dy.*t, dgate2.*t, dup2.*t, over_dy.*t);
    });
    for (const OnBoth* t : {&y, &over_gate, &over_up}) EXPECT_TRUE(both().agree(*t, bound_of(c.dtype, 1e-6)));
    for (const OnBoth* t : {&again, &over_dy, &dgate, &dup, &dgate2, &dup2})
      EXPECT_TRUE(both().agree(*t, bound_of(c.dtype, 3e-6)));
    both().clear();
  }
}

TEST_F(CudaOps, SwiGluOfExtremeGates) {
  const float gates[] = {0, -0.0f, 1e-30f, 50, 88, 100, 1e4f, 3e38f, -50, -87, -88, -89, -100, -1e4f, -3e38f, 0.5f};
  const OnBoth gate = both().make(DType::kF32, {16}, [&](dim_t i) { return gates[i]; });
  const Shape row{1, 16};
  const OnBoth up = both().make(DType::kF32, {16}, constant(1)), y = both().make(DType::kF32, {16}, constant(0));
  run([&](Ctx& ctx, auto t) {
    swiglu_forward(ctx, (y.*t).reshape(row), (gate.*t).reshape(row), (up.*t).reshape(row));
  });
  const std::vector<double> got = both().fetch(y.cuda), want = host_values(y.cpu);
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 1e-6 * std::max(1.0, std::abs(want[i]))) << gates[i];
}

// Against exact values too: the phase must not lose anything at ten million.
TEST_F(CudaOps, RopeAngles) {
  const dim_t positions[] = {0, 1, 2, 1000, 99'999, 131'072, 1'048'575, 5'000'001, 8'388'609, 9'999'999, 10'000'000};
  for (dim_t F : {4, 20, 64, 128, 300})
    for (dim_t gap : {0, 3}) {
      std::vector<double> frequencies;
      for (dim_t f = 0; f < F; ++f)
        frequencies.push_back(std::pow(5e5, -static_cast<double>(f) / static_cast<double>(F)));
      for (dim_t R : {1, 3, 113, 1025}) {
        const auto position = [&](dim_t r) { return r < 11 ? positions[10 - r] : r * 9001; };
        const OnBoth at = both().make(DType::kI32, {R}, constant(0));
        for (dim_t r = 0; r < R; ++r) at.cpu.as<std::int32_t>()[r] = static_cast<std::int32_t>(position(r));
        both().cuda().device.copy(StreamKind::kCompute, at.cuda, at.cpu);
        const OnBoth cos = both().make(DType::kF32, {R, F}, constant(kUntouched), {.gap = gap}),
                     sin = both().make(DType::kF32, {R, F}, constant(kUntouched), {.gap = gap});
        run([&](Ctx& ctx, auto t) { rope_angles(ctx, cos.*t, sin.*t, at.*t, frequencies); });
        SCOPED_TRACE(format("{} frequencies, {} positions", F, R));
        EXPECT_TRUE(both().agree(cos, {0, 6e-7}));
        EXPECT_TRUE(both().agree(sin, {0, 6e-7}));
        const std::vector<double> got_cos = both().fetch(cos.cuda), got_sin = both().fetch(sin.cuda);
        for (dim_t r = 0; r < R; ++r)
          for (dim_t f = 0; f < F; ++f) {
            const long double phase = static_cast<long double>(position(r)) * frequencies[static_cast<std::size_t>(f)];
            const auto i = static_cast<std::size_t>(r * F + f);
            ASSERT_NEAR(got_cos[i], static_cast<double>(std::cos(phase)), 3e-7) << position(r) << " " << f;
            ASSERT_NEAR(got_sin[i], static_cast<double>(std::sin(phase)), 3e-7) << position(r) << " " << f;
          }
        both().clear();
      }
    }
}

// Copies move bits; a rotation is two products and a sum, one of which may be fused: 3e-7 of values below 2.
TEST_F(CudaOps, Heads) {
  struct Exchange {
    dim_t heads;
    std::vector<int> source;
  };
  std::vector<int> many(600);  // more than travel with one launch
  for (int i = 0; i < 600; ++i) many[static_cast<std::size_t>(i)] = i * 7 % 300;
  const std::vector<Exchange> exchanges = {
      {1, {0}}, {4, {0, 1, 2, 3}}, {6, {5, 3, 1, 0, 2, 4}}, {3, {2, 0, 1, 1, 2, 2, 0}}, {300, many}};
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (dim_t R : {1, 3, 113, 1025})
      for (dim_t D : {8, 40, 80, 128})
        for (const Exchange& e : exchanges)
          for (dim_t gap : {0, 3, 16})
            for (bool rotates : {false, true}) {
              if (e.heads == 300 && (R > 3 || gap == 16)) continue;
              SCOPED_TRACE(
                  format("{} R {} D {} heads {} gap {} rotates {}", name_of(dtype), R, D, e.heads, gap, rotates));
              const dim_t N = static_cast<dim_t>(e.source.size());
              const OnBoth cos = both().make(DType::kF32, {R, D / 2},
                                             [](dim_t i) { return std::cos(static_cast<float>(i)); }, {.gap = gap});
              const OnBoth sin = both().make(DType::kF32, {R, D / 2},
                                             [](dim_t i) { return std::sin(static_cast<float>(i)); }, {.gap = gap});
              const OnBoth tokens = both().make(dtype, {R, e.heads * D}, uniform(30), {.gap = gap}),
                           heads = both().make(dtype, {N, R, D}, constant(kUntouched), {.gap = gap});
              const OnBoth gradients = both().make(dtype, {N, R, D}, uniform(31), {.gap = gap}),
                           wide = both().make(DType::kF32, {N, R, D}, uniform(32), {.gap = gap});
              const OnBoth back = both().make(dtype, {R, e.heads * D}, constant(kUntouched), {.gap = gap}),
                           back2 = both().make(dtype, {R, e.heads * D}, constant(kUntouched), {.gap = gap});
              run([&](Ctx& ctx, auto t) {
                const RopeAngles angles{cos.*t, sin.*t};
                heads_pack(ctx, heads.*t, tokens.*t, e.source, rotates ? &angles : nullptr);
                heads_unpack(ctx, back.*t, gradients.*t, e.source, rotates ? &angles : nullptr);
                heads_unpack(ctx, back2.*t, wide.*t, e.source, rotates ? &angles : nullptr);
              });
              EXPECT_TRUE(both().agree(heads, (rotates ? bound_of(dtype, 3e-7) : Bound{0, 0})));
              EXPECT_TRUE(both().agree(back, bound_of(dtype, 3e-7)));
              EXPECT_TRUE(both().agree(back2, bound_of(dtype, 3e-7)));
              both().clear();
            }
}

// Exponentials to two units, sums of thousands in fp32 pieces; the loss of a row in double from those: 1e-6.
TEST_F(CudaOps, CrossEntropy) {
  struct Logits {
    const char* name;
    float scale, offset;
  };
  for (const MatrixCase& c : matrix_cases())
    for (const Logits& l : {Logits{"plain", 4, 0}, Logits{"far from zero", 4, 1000}, Logits{"decided", 60, 0}}) {
      if (c.gap > 3 && l.offset != 0) continue;
      for (double scale : {0.0, 1.0 / 37}) {
        SCOPED_TRACE(format("{} {} scale {}", c.str(), l.name, scale));
        const OnBoth logits =
            both().make(c.dtype, {c.rows, c.columns}, [&](dim_t i) { return l.offset + uniform_at(33, i, l.scale); },
                        {.gap = c.gap});
        const OnBoth targets = both().make(DType::kI32, {c.rows}, [&](dim_t r) {
          return r % 4 == 2 ? -100.0f : static_cast<float>(random_bits(0, r) % static_cast<std::uint64_t>(c.columns));
        });
        const OnBoth loss = both().make(DType::kF64, {1}, constant(0.25f));
        run([&](Ctx& ctx, auto t) { cross_entropy(ctx, loss.*t, logits.*t, targets.*t, scale); });
        const double want = *loss.cpu.as<double>();
        EXPECT_NEAR(both().fetch(loss.cuda)[0], want, 1e-6 * std::max(1.0, want));
        if (scale != 0) {
          // The largest gradient is near `scale`, so the absolute part is taken from there.
          const Bound of_gradient{c.dtype == DType::kBF16 ? kBF16Rounding : 0, 2e-6 * scale};
          EXPECT_TRUE(both().agree(logits, of_gradient));
        }
        both().clear();
      }
    }
}

// Rows longer than shared memory, masked logits, and a vocabulary that no pack divides.
TEST_F(CudaOps, CrossEntropyOfLargeVocabularies) {
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (dim_t V : {61, 32'000, 50'257, 128'256, 151'936, 262'144}) {
      SCOPED_TRACE(format("{} {}", name_of(dtype), V));
      const ValueAt draw = [&](dim_t i) {
        return i % V == 5 ? -std::numeric_limits<float>::infinity() : uniform_at(34, i, 8);
      };
      const OnBoth logits = both().make(dtype, {11, V}, draw);
      const OnBoth targets = both().make(DType::kI32, {11}, [&](dim_t r) {
        return r == 3 ? -1.0f : static_cast<float>((r * 7919 + 6) % V);
      });
      const OnBoth loss = both().make(DType::kF64, {1}, constant(0));
      run([&](Ctx& ctx, auto t) { cross_entropy(ctx, loss.*t, logits.*t, targets.*t, 1.0); });
      EXPECT_NEAR(both().fetch(loss.cuda)[0], *loss.cpu.as<double>(), 1e-6 * *loss.cpu.as<double>());
      EXPECT_TRUE(both().agree(logits, bound_of(dtype, 2e-6)));
      both().clear();
    }
}

TEST_F(CudaOps, CrossEntropyShowsWhatIsNotANumber) {
  for (double bad : {kUntouched, std::numeric_limits<double>::infinity()}) {
    const OnBoth logits = both().make(DType::kF32, {3, 100}, [&](dim_t i) { return i == 150 ? bad : 1.0f; });
    const OnBoth targets = both().make(DType::kI32, {3}, constant(1)),
                 loss = both().make(DType::kF64, {1}, constant(0));
    cross_entropy(both().cuda(), loss.cuda, logits.cuda, targets.cuda, 1.0);
    EXPECT_FALSE(std::isfinite(both().fetch(loss.cuda)[0])) << bad;
    both().clear();
  }
  const OnBoth logits = both().make(DType::kF32, {3, 100}, constant(1)),
               targets = both().make(DType::kI32, {3}, constant(100));
  const OnBoth loss = both().make(DType::kF64, {1}, constant(0));
  cross_entropy(both().cuda(), loss.cuda, logits.cuda, targets.cuda, 1.0);
  EXPECT_TRUE(std::isnan(both().fetch(loss.cuda)[0]));
}

// Some ten roundings a step, five steps: 2e-6. Off packs too.
TEST_F(CudaOps, AdamW) {
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (dim_t n : {1, 3, 113, 1023, 1025, 4096, 1'000'003})
      for (dim_t offset : {0, 1})
        for (bool is_master : {false, true}) {
          if (is_master && dtype != DType::kF32) continue;
          SCOPED_TRACE(format("{} {} from {} {}", name_of(dtype), n, offset, is_master));
          const auto make = [&](DType d, const ValueAt& draw) { return both().make(d, {n + offset}, draw); };
          const OnBoth working = make(dtype, constant(0)), master = make(DType::kF32, uniform(40)),
                       grad = make(DType::kF32, uniform(41));
          const OnBoth m = make(DType::kF32, constant(0)), v = make(DType::kF32, constant(0));
          run([&](Ctx& ctx, auto t) {
            const auto part = [&](const OnBoth& b) { return (b.*t).rows(offset, n + offset); };
            for (dim_t step = 1; step <= 5; ++step)
              adamw(ctx, part(is_master ? master : working), part(master), part(m), part(v), part(grad),
                    {.lr = 1e-2, .weight_decay = 0.1, .gradient_scale = 0.37, .step = step});
          });
          for (const OnBoth* t : {&master, &m, &v}) EXPECT_TRUE(both().agree(*t, bound_of(DType::kF32, 2e-6)));
          if (!is_master) {
            EXPECT_TRUE(both().agree(working, bound_of(dtype, 2e-6)));
          }
          both().clear();
        }
}

}  // namespace
}  // namespace untied::test

#endif  // UNTIED_HAS_CUDA
