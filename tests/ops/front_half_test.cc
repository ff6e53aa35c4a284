// What holds for every op, over a table of all of them: a plan takes the memory and counts the work that a run does, shapes of
// cuda runs in bf16 can be planned, and the cpu refuses bf16.
#include <gtest/gtest.h>

#include <functional>

#include "ops/adamw.h"
#include "ops/check.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/heads.h"
#include "ops/matmul.h"
#include "ops/rmsnorm.h"
#include "ops/rope.h"
#include "ops/swiglu.h"
#include "support/backends.h"

namespace untied::test {
namespace {

// Memory is new, so that on the cpu all numbers, ids and targets are 0.
struct Op {
  const char* name;
  std::function<void(Rank&, DType)> run;  // with activations of this type
  bool refuses_bf16 = true;               // on the cpu
};

const dim_t R = 300, E = 70, V = 50, N = 4, D = 10;
const std::vector<int> kSource{3, 0, 1, 2, 0};

const Op kOps[] = {
    {"matmul",
     [](Rank& r, DType t) {
       matmul(r.ctx(), r.make(t, {R, V}), r.make(t, {R, E}), r.make(t, {V, E}), {.transpose_b = true});
     }},
    {"matmul into fp32",
     [](Rank& r, DType t) {
       matmul(r.ctx(), r.make(DType::kF32, {V, E}), r.make(t, {R, V}), r.make(t, {R, E}),
              {.transpose_a = true, .accumulate = Accumulate::kAdd});
     }},
    {"add_bias",
     [](Rank& r, DType t) {
       add_bias(r.ctx(), r.make(t, {R, E}), r.make(t, {E}));
     }},
    {"bias_backward",
     [](Rank& r, DType t) {
       bias_backward(r.ctx(), r.make(DType::kF32, {E}), r.make(t, {R, E}), Accumulate::kAdd);
     }},
    {"embedding_forward",
     [](Rank& r, DType t) {
       embedding_forward(r.ctx(), r.make(t, {R, E}), r.make(DType::kI32, {R}), r.make(t, {V, E}));
     }},
    {"embedding_backward",
     [](Rank& r, DType t) {
       embedding_backward(r.ctx(), r.make(DType::kF32, {V, E}), r.make(DType::kI32, {R}), r.make(t, {R, E}));
     }},
    {"rmsnorm_forward",
     [](Rank& r, DType t) {
       rmsnorm_forward(r.ctx(), r.make(t, {R, E}), r.make(t, {R, E}), r.make(t, {E}), 1e-5);
     }},
    {"rmsnorm_backward",
     [](Rank& r, DType t) {
       rmsnorm_backward(r.ctx(), r.make(t, {R, E}), r.make(DType::kF32, {E}), r.make(t, {R, E}), r.make(t, {R, E}),
                        r.make(t, {E}), 1e-5, Accumulate::kWrite);
     }},
    {"swiglu_forward",
     [](Rank& r, DType t) {
       swiglu_forward(r.ctx(), r.make(t, {R, E}), r.make(t, {R, E}), r.make(t, {R, E}));
     }},
    {"swiglu_backward",
     [](Rank& r, DType t) {
       swiglu_backward(r.ctx(), r.make(t, {R, E}), r.make(t, {R, E}), r.make(t, {R, E}), r.make(t, {R, E}));
     }},
    {"rope_angles",
     [](Rank& r, DType) {
       rope_angles(r.ctx(), r.make(DType::kF32, {R, D / 2}), r.make(DType::kF32, {R, D / 2}), r.make(DType::kI32, {R}),
                   std::vector<double>(D / 2, 0.5));
     },
     /*refuses_bf16=*/false},
    {"heads_pack",
     [](Rank& r, DType t) {
       const RopeAngles angles{r.make(DType::kF32, {R, D / 2}), r.make(DType::kF32, {R, D / 2})};
       heads_pack(r.ctx(), r.make(t, {N + 1, R, D}), r.make(t, {R, N * D}), kSource, &angles);
     }},
    {"heads_unpack",
     [](Rank& r, DType t) {
       heads_unpack(r.ctx(), r.make(t, {R, N * D}), r.make(DType::kF32, {N + 1, R, D}), kSource, nullptr);
     }},
    {"cross_entropy",
     [](Rank& r, DType t) {
       cross_entropy(r.ctx(), r.make(DType::kF64, {1}), r.make(t, {R, V}), r.make(DType::kI32, {R}), 0.1);
     }},
    {"adamw",
     [](Rank& r, DType t) {
       adamw(r.ctx(), r.make(t, {R}), r.make(DType::kF32, {R}), r.make(DType::kF32, {R}), r.make(DType::kF32, {R}),
             r.make(DType::kF32, {R}), {.lr = 1});
     }},
    {"cast",
     [](Rank& r, DType t) {
       cast(r.ctx(), r.make(t, {R, E}), r.make(DType::kF32, {R, E}));
     },
     /*refuses_bf16=*/false},
    {"add",
     [](Rank& r, DType t) {
       add(r.ctx(), r.make(DType::kF32, {R, E}), r.make(t, {R, E}));
     },
     /*refuses_bf16=*/false},
    {"sum_of_squares",
     [](Rank& r, DType) { sum_of_squares(r.ctx(), r.make(DType::kF64, {1}), r.make(DType::kF32, {R * E})); },
     /*refuses_bf16=*/false},
    {"zero",
     [](Rank& r, DType t) {
       zero(r.ctx(), r.make(t, {R, E}));
     },
     /*refuses_bf16=*/false},
};

TEST(FrontHalf, PlanEqualsRun) {
  for (const OnBackend& on : backends())
    for (const Op& op : kOps) {
      Rank run(on), plan = Rank::meta(on.backend, on.threads);
      op.run(run, on.activations);
      op.run(plan, on.activations);
      EXPECT_EQ(run.ctx().memory.peak(), plan.ctx().memory.peak()) << op.name;
      const Trace &did = run.ctx().trace, &planned = plan.ctx().trace;
      EXPECT_EQ(did.flops, planned.flops) << op.name;
      EXPECT_EQ(did.bytes_moved, planned.bytes_moved) << op.name;
      EXPECT_EQ(did.ops, planned.ops) << op.name;
      EXPECT_EQ(planned.ops, 1) << op.name;
      EXPECT_GT(planned.bytes_moved, 0) << op.name;
    }
}

TEST(FrontHalf, ScratchIsTakenFromTheArena) {
  const struct {
    const char* op;
    Backend target;
    dim_t bytes;
  } cases[] = {
      {"matmul", Backend::kCuda, dim_t{32} << 20},      {"matmul", Backend::kCpu, 0},
      {"rmsnorm_backward", Backend::kCuda, 10 * E * 4},  // 10 blocks of at least 30 rows
      {"rmsnorm_backward", Backend::kCpu, 10 * E * 4},  {"cross_entropy", Backend::kCpu, R * 8},
      {"sum_of_squares", Backend::kCuda, 2 * 8},  // 21000 numbers are two blocks
      {"swiglu_backward", Backend::kCuda, 0},
  };
  for (const auto& c : cases)
    for (const Op& op : kOps) {
      if (std::string(op.name) != c.op) continue;
      Rank plan = Rank::meta(c.target);
      op.run(plan, DType::kF32);
      const Usage at_peak = plan.ctx().memory.usage_at_peak();
      EXPECT_EQ(at_peak.bytes[static_cast<int>(Category::kWorkspace)], round_up(c.bytes, Arena::kAlignment)) << c.op;
      EXPECT_EQ(plan.ctx().memory.usage().bytes[static_cast<int>(Category::kWorkspace)], 0)
          << c.op << " keeps its scratch";
    }
}

TEST(FrontHalf, Bf16CanBePlannedForCudaOnly) {
  for (const Op& op : kOps) {
    Rank plan = Rank::meta(Backend::kCuda), run;
    EXPECT_NO_THROW(op.run(plan, DType::kBF16)) << op.name;
    const std::string text = message_of<ConfigError>([&] { op.run(run, DType::kBF16); });
    EXPECT_EQ(text.find("the cpu backend computes in fp32 only") != std::string::npos, op.refuses_bf16)
        << op.name << ": " << text;
  }
}

// At ten million tokens nothing is 32-bit.
TEST(FrontHalf, CountsAreExactAtTenMillionTokens) {
  Rank plan = Rank::meta(Backend::kCuda);
  const dim_t T = 10'000'000, big = 128'256;
  const Tensor logits = plan.make(DType::kBF16, {T, big}), x = plan.make(DType::kBF16, {T, 4096}),
               w = plan.make(DType::kBF16, {big, 4096});
  matmul(plan.ctx(), logits, x, w, {.transpose_b = true});
  EXPECT_EQ(plan.ctx().trace.flops, 2e7 * 128256 * 4096);
  EXPECT_EQ(plan.ctx().trace.bytes_moved, 2e7 * 128256 + 2e7 * 4096 + 2.0 * 128256 * 4096);
}

TEST(Check, Overlap) {
  Rank rank;
  const Tensor all = rank.make(DType::kF32, {6, 10}), other = rank.make(DType::kF32, {6, 10});
  const auto columns = [&](dim_t begin, dim_t end) { return all.slice(1, {begin, end}); };
  EXPECT_FALSE(overlap(all, other));
  EXPECT_TRUE(overlap(all, all));
  EXPECT_TRUE(overlap(all, columns(9, 10)));
  EXPECT_FALSE(overlap(columns(0, 4), columns(4, 10)));
  EXPECT_FALSE(overlap(columns(4, 10), columns(0, 4)));
  EXPECT_TRUE(overlap(columns(0, 5), columns(4, 10)));
  EXPECT_TRUE(overlap(columns(4, 10), columns(0, 5)));
  EXPECT_FALSE(overlap(all.rows(0, 3), all.rows(3, 6)));
  EXPECT_TRUE(overlap(all.rows(0, 4), all.rows(3, 6)));
  EXPECT_FALSE(overlap(columns(0, 4).rows(2, 6), columns(4, 10)));  // other rows of other columns
  EXPECT_TRUE(overlap(columns(4, 10).rows(2, 6), columns(3, 5).rows(0, 3)));
  EXPECT_FALSE(overlap(all.rows(2, 2), all));
  EXPECT_TRUE(overlap(all.flat(), columns(3, 4)));
  EXPECT_TRUE(apart_or_same(columns(0, 5), columns(0, 5)));
  EXPECT_FALSE(apart_or_same(columns(0, 5), columns(0, 6)));
  EXPECT_FALSE(apart_or_same(all, all.reshape({10, 6})));
}

TEST(Check, PlainRows) {
  Rank rank;
  const Tensor all = rank.make(DType::kF32, {4, 6, 10});
  EXPECT_TRUE(has_plain_rows(all));
  EXPECT_TRUE(has_plain_rows(all.slice(2, {3, 7})));
  EXPECT_TRUE(has_plain_rows(all.slice(1, {2, 3}).slice(2, {3, 7})));
  EXPECT_TRUE(has_plain_rows(all.index(1).slice(1, {9, 10})));  // one column: there is no next element
}

}  // namespace
}  // namespace untied::test
