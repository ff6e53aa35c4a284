// `untied bench ops`: matrix products beside the data sheet, everything else beside the device's own copy rate.
// R rows, E hidden, F MLP width, V vocabulary, H heads, D head size.
#include <numeric>

#include "app/bench.h"
#include "model/linear.h"
#include "model/rope.h"
#include "ops/adamw.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/heads.h"
#include "ops/rmsnorm.h"
#include "ops/swiglu.h"

namespace untied {
namespace {

struct Sizes {
  dim_t square;     // of a matrix product without a model
  dim_t mlp_rows;   // that have F columns
  dim_t rows;       // that have E columns
  dim_t loss_rows;  // that have V columns
  dim_t elements;   // of a flat buffer
};
// A GPU's tensors are far beyond its caches; a cpu is only to show that all is well.
constexpr Sizes kOnGpu{8192, 16384, 65536, 4096, dim_t{1} << 28};
constexpr Sizes kOnCpu{384, 1024, 8192, 1024, dim_t{1} << 21};

class Ops {
 public:
  explicit Ops(BenchRank& rank)
      : rank_(rank), ctx_(rank.ctx()), dtype_(rank.setup().dtype), model_(rank.setup().model),
        sizes_(rank.setup().on_cpu() ? kOnCpu : kOnGpu) {}

  void run() {
    device_copy();
    matmul_square();
    matmul_mlp();
    rmsnorm();
    swiglu();
    rope();
    cross_entropy();
    embedding();
    flat();
  }

 private:
  using Body = std::function<void()>;

  void product(const char* which, dim_t M, dim_t N, dim_t K, const Body& call) {
    const bool bf16 = dtype_ == DType::kBF16;
    rank_.measure({.name = format("matmul {}{}", name_of(dtype_), which),
                   .shape = by({M, N, K}),
                   .work = &Trace::flops,
                   .limit = bf16 ? rank_.setup().limit(&HardwareLimits::bf16_tflops) : std::nullopt},
                  call);
  }
  void element_wise(const char* name, std::string shape, const Body& call) {
    rank_.measure({.name = name, .shape = std::move(shape), .work = &Trace::bytes_moved, .limit = copy_rate_}, call);
  }
  Held normal(const char* name, const Shape& shape) { return rank_.normal(name, dtype_, shape); }
  Held blank(const char* name, const Shape& shape) { return rank_.blank(name, dtype_, shape); }

  // Read and written: what bounds all that follows.
  void device_copy() {
    const Held from = normal("from", {sizes_.elements}), to = blank("to", {sizes_.elements});
    const Rate rate = rank_.measure({.name = "device copy",
                                     .shape = by({sizes_.elements}),
                                     .work = &Trace::bytes_moved,
                                     .limit = rank_.setup().limit(&HardwareLimits::memory_gbs)},
                                    [&] { copy(ctx_, StreamKind::kCompute, to.tensor, from.tensor); });
    copy_rate_ = rate.sustained.value_or(rate.burst);
  }

  void matmul_square() {
    const dim_t N = sizes_.square;
    const Held x = normal("x", {N, N}), w = normal("w", {N, N}), y = blank("y", {N, N});
    product("", N, N, N, [&] { linear(ctx_, y.tensor, x.tensor, w.tensor, std::nullopt); });
  }

  // The up projection and its gradients.
  void matmul_mlp() {
    const dim_t R = sizes_.mlp_rows, E = model_.hidden, F = model_.mlp;
    const Held x = normal("x", {R, E}), w = normal("w", {F, E}), y = normal("y", {R, F}), dx = blank("dx", {R, E});
    const Held dw = rank_.normal("dw", DType::kF32, {F, E});
    product("", R, F, E, [&] { linear(ctx_, y.tensor, x.tensor, w.tensor, std::nullopt); });
    product(", dx", R, E, F, [&] { linear_backward_input(ctx_, dx.tensor, y.tensor, w.tensor); });
    product(", dw += in fp32", F, E, R,
            [&] { linear_backward_weight(ctx_, dw.tensor, std::nullopt, y.tensor, x.tensor, Accumulate::kAdd); });
  }

  void rmsnorm() {
    const dim_t R = sizes_.rows, E = model_.hidden;
    const double eps = model_.norm_eps;
    const Held x = normal("x", {R, E}), w = normal("w", {E}), y = normal("y", {R, E}), dx = normal("dx", {R, E});
    const Held dw = rank_.normal("dw", DType::kF32, {E});
    element_wise("rmsnorm", by({R, E}), [&] { rmsnorm_forward(ctx_, y.tensor, x.tensor, w.tensor, eps); });
    element_wise("rmsnorm backward", by({R, E}), [&] {
      rmsnorm_backward(ctx_, dx.tensor, dw.tensor, y.tensor, x.tensor, w.tensor, eps, Accumulate::kAdd);
    });
    element_wise("add", by({R, E}), [&] { add(ctx_, dx.tensor, x.tensor); });
  }

  // Backward turns gate and up into their gradients: called again and again it soon works on small numbers, at the same speed.
  void swiglu() {
    const dim_t R = sizes_.mlp_rows, F = model_.mlp;
    const Held gate = normal("gate", {R, F}), up = normal("up", {R, F}), dy = normal("dy", {R, F});
    const Held y = blank("y", {R, F});
    element_wise("swiglu", by({R, F}), [&] { swiglu_forward(ctx_, y.tensor, gate.tensor, up.tensor); });
    element_wise("swiglu backward", by({R, F}),
                 [&] { swiglu_backward(ctx_, y.tensor, gate.tensor, up.tensor, dy.tensor); });
  }

  void rope() {
    const dim_t R = sizes_.rows, H = model_.heads, D = model_.head_dim;
    const std::vector<double> frequencies = rope_frequencies(model_.rope, D);
    const Held positions = rank_.indices("positions", R, R);
    const Held cos = rank_.blank("cos", DType::kF32, {R, D / 2}), sin = rank_.blank("sin", DType::kF32, {R, D / 2});
    element_wise("rope angles", by({R, D / 2}),
                 [&] { rope_angles(ctx_, cos.tensor, sin.tensor, positions.tensor, frequencies); });

    const Held tokens = normal("tokens", {R, H * D}), heads = normal("heads", {H, R, D});
    const RopeAngles angles{cos.tensor, sin.tensor};
    std::vector<int> source(static_cast<std::size_t>(H));
    std::iota(source.begin(), source.end(), 0);
    const std::string shape = by({R, H, D});
    element_wise("heads pack", shape, [&] { heads_pack(ctx_, heads.tensor, tokens.tensor, source, nullptr); });
    element_wise("heads pack, rotated", shape, [&] { heads_pack(ctx_, heads.tensor, tokens.tensor, source, &angles); });
    element_wise("heads unpack", shape, [&] { heads_unpack(ctx_, tokens.tensor, heads.tensor, source, nullptr); });
    element_wise("heads unpack, rotated", shape,
                 [&] { heads_unpack(ctx_, tokens.tensor, heads.tensor, source, &angles); });
  }

  // Loss and gradient of a tile. From the second call on, the logits are the gradients of the call before.
  void cross_entropy() {
    const dim_t R = sizes_.loss_rows, V = model_.vocab;
    const Held logits = normal("logits", {R, V}), targets = rank_.indices("targets", R, V);
    const Held loss = rank_.blank("loss", DType::kF64, {1});
    zero(ctx_, loss.tensor);
    element_wise("cross entropy", by({R, V}),
                 [&] { untied::cross_entropy(ctx_, loss.tensor, logits.tensor, targets.tensor, 1.0); });
  }

  void embedding() {
    const dim_t R = sizes_.rows, E = model_.hidden, V = model_.vocab;
    const Held ids = rank_.indices("ids", R, V), x = normal("x", {R, E});
    const std::string shape = by({R, V, E});
    {
      const Held table = normal("table", {V, E});
      element_wise("embedding", shape, [&] { embedding_forward(ctx_, x.tensor, ids.tensor, table.tensor); });
    }
    const Held dtable = rank_.normal("dtable", DType::kF32, {V, E});
    element_wise("embedding backward", shape, [&] { embedding_backward(ctx_, dtable.tensor, ids.tensor, x.tensor); });
  }

  // Flat buffers: what the optimizer walks.
  void flat() {
    const dim_t n = sizes_.elements;
    const Held master = rank_.normal("master", DType::kF32, {n}), gradient = rank_.normal("gradient", DType::kF32, {n});
    {
      const Held sum = rank_.blank("sum", DType::kF64, {1});
      zero(ctx_, sum.tensor);
      element_wise("sum of squares", by({n}), [&] { sum_of_squares(ctx_, sum.tensor, gradient.tensor); });
    }
    {
      const Held half = rank_.blank("bf16", DType::kBF16, {n});
      element_wise("cast fp32 to bf16", by({n}), [&] { cast(ctx_, half.tensor, master.tensor); });
    }
    const Held m = rank_.blank("m", DType::kF32, {n}), v = rank_.blank("v", DType::kF32, {n});
    zero(ctx_, m.tensor), zero(ctx_, v.tensor);  // until the first call
    const Held copied = blank("working", {dtype_ == DType::kF32 ? 1 : n});
    const Tensor working = dtype_ == DType::kF32 ? master.tensor : copied.tensor;
    AdamWStep step{.lr = 1e-5, .weight_decay = 0.1};
    element_wise("adamw", by({n}), [&] {
      adamw(ctx_, working, master.tensor, m.tensor, v.tensor, gradient.tensor, step);
      ++step.step;
    });
  }

  BenchRank& rank_;
  Ctx& ctx_;
  const DType dtype_;
  const ModelConfig& model_;
  const Sizes sizes_;
  std::optional<double> copy_rate_;  // GB/s
};

}  // namespace

void bench_ops(BenchRank& rank) { Ops(rank).run(); }

}  // namespace untied
