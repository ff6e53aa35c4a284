// Attention on the cuda backend: fp32 against the cpu backend, bf16 against the reference in double, long sequences on sample
// rows. Every test here runs the library where attention_calls.h says so, and the plain kernels for the rest.
#ifdef UNTIED_HAS_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "device/cuda.h"
#include "support/attention_case.h"
#include "support/backends.h"
#include "support/bf16.h"
#include "support/cuda.h"

namespace untied::test {
namespace {

using Words = std::vector<std::uint16_t>;  // bf16

// ---------------------------------------------------------------------------------------------------------------- on the GPU

// How the tensors of a case lie on the GPU.
struct Laid {
  DType dtype = DType::kBF16;
  dim_t gap = 0;        // elements between rows; 16 keeps bf16 rows at multiples of 16 bytes, 6 does not
  dim_t more_keys = 0;  // rows behind the attended keys, NaN
};

// One rank on a GPU. Unlike BothBackends it has no cpu rank and no pinned memory: gigabytes go straight from and to vectors.
class Gpu {
 public:
  explicit Gpu(dim_t device_bytes) : memory_(make_cuda_device(0), device_bytes, 0) {}

  Ctx& ctx() { return memory_.ctx(); }
  void clear() { buffers_.clear(); }

  Tensor take(DType dtype, const Shape& shape) {
    buffers_.push_back(ctx().memory.take("test", Category::kTiles, dtype, shape));
    return buffers_.back().tensor(dtype, shape);
  }
  void upload(const Tensor& to, Words& from) { copy(to, Tensor(from.data(), to.dtype(), to.shape())); }

  // [heads, rows, D] with `values`, in the middle of rows that are longer by `gap`, with `more` rows behind them: all that is NaN.
  Tensor put(const std::vector<double>& values, DType dtype, dim_t heads, dim_t rows, dim_t D, dim_t gap,
             dim_t more = 0) {
    const dim_t width = D + gap;
    const Tensor whole = take(dtype, {heads, rows + more, width});
    std::vector<std::byte> bytes;
    const Tensor all = on_host(bytes, whole);
    for (dim_t i = 0; i < all.size(); ++i) set_element(all, i, kUntouched);
    for (dim_t i = 0; i < static_cast<dim_t>(values.size()); ++i) {
      const dim_t d = i % D, row = i / D % rows, head = i / D / rows;
      set_element(all, (head * (rows + more) + row) * width + gap / 2 + d, values[static_cast<std::size_t>(i)]);
    }
    copy(whole, all);
    const Tensor inside = whole.slice(2, {gap / 2, gap / 2 + D});
    surroundings_.push_back({whole, inside.slice(1, {0, rows}).size()});
    return inside;
  }
  std::vector<double> get(const Tensor& t) {
    std::vector<std::byte> bytes;
    const Tensor values = on_host(bytes, t);
    copy(values, t);
    return host_values(values);
  }

  AttentionResults run(const AttentionCase& c, const Laid& laid, const std::vector<dim_t>& cuts = {}) {
    const AttentionShape& s = c.shape;
    const std::vector<double> untouched;
    const auto rows = [&](const std::vector<double>& values) {
      return put(values, laid.dtype, s.heads(), s.R, s.D, laid.gap);
    };
    const auto keys = [&](const std::vector<double>& values, DType dtype) {
      return put(values, dtype, s.kv_heads(), s.keys(), s.D, laid.gap, laid.more_keys);
    };
    const AttentionTensors t = c.with_heads({rows(c.q),
                                             keys(c.k, laid.dtype),
                                             keys(c.v, laid.dtype),
                                             rows(c.d_o),
                                             rows(untouched),
                                             put(untouched, DType::kF32, 1, s.heads(), s.R, 0).index(0),
                                             rows(untouched),
                                             keys(c.gradient_start, DType::kF32),
                                             keys(c.gradient_start, DType::kF32),
                                             {},
                                             {}});
    c.run_on(ctx(), t, cuts);
    const Range attended{0, s.keys()};
    AttentionResults results{get(t.o), get(t.lse), get(t.dq), get(t.dk.slice(1, attended)),
                             get(t.dv.slice(1, attended))};
    for (const auto& [whole, inside] : surroundings_) {
      const std::vector<double> all = get(whole);
      const auto numbers = std::count_if(all.begin(), all.end(), [](double x) { return !std::isnan(x); });
      EXPECT_LE(numbers, inside) << "written around " << whole.str() << " of " << s.str();
    }
    surroundings_.clear();
    clear();
    return results;
  }

 private:
  // A tensor like `t`, in `bytes`.
  static Tensor on_host(std::vector<std::byte>& bytes, const Tensor& t) {
    bytes.resize(static_cast<std::size_t>(t.bytes()));
    return Tensor(bytes.data(), t.dtype(), t.shape());
  }
  void copy(const Tensor& to, const Tensor& from) {
    ctx().device.copy(StreamKind::kCompute, to, from);
    ctx().device.synchronize();
  }

  RankMemory memory_;
  std::vector<Buffer> buffers_;
  std::vector<std::pair<Tensor, dim_t>> surroundings_;
};

class CudaAttention : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) gpu_ = std::make_unique<Gpu>(kGiB);
  }

  void expect_like_cpu(const AttentionShape& shape, const std::vector<dim_t>& cuts = {}) {
    const AttentionCase c(shape);
    // fp32 sums of up to a thousand N(0, 1) terms, in another order than the cpu's: some ten roundings of 6e-8, the square root
    // of the number of terms at most.
    expect_near(gpu_->run(c, {DType::kF32, shape.gap}, cuts), c.run(), 1e-5, shape.str());
  }
  void expect_like_reference(AttentionCase c, Laid laid = {}, const std::vector<dim_t>& cuts = {}, double slack = 1);

  std::unique_ptr<Gpu> gpu_;
};

// ------------------------------------------------------------------------------------------------------------ the bf16 measure

// The reference with bf16 where the kernels have it: P and dS as operands of products, o, dq, dk and dv as results.
AttentionResults reference_in_bf16(const AttentionCase& c) {
  const AttentionShape& s = c.shape;
  AttentionResults r;
  std::vector<double> dk(c.k.size(), 0.0), dv(c.k.size(), 0.0);
  for (dim_t h = 0; h < s.heads(); ++h) {
    const ref::AttentionHead head = c.reference_head(h);
    const std::vector<double> d_o = rows_of(c.d_o, s.R, s.D, h, {0, s.R});
    const dim_t first_key = s.kv_head[static_cast<std::size_t>(h)] * s.keys();
    const dim_t D = s.D;
    for (dim_t i = 0; i < s.R; ++i) {
      const Range keys = ref::attended_keys(s.first_row + i, s.documents);
      std::vector<double> p, o(static_cast<std::size_t>(D)), dq(static_cast<std::size_t>(D));
      for (dim_t j = keys.begin; j < keys.end; ++j) p.push_back(c.scale * ref::dot(&head.q[i * D], &head.k[j * D], D));
      const double top = *std::max_element(p.begin(), p.end());
      double total = 0;
      for (double& x : p) total += x = std::exp(x - top);
      for (dim_t j = keys.begin; j < keys.end; ++j) {
        const double rounded_p = rounded_to_bf16(p[j - keys.begin]) / total;
        for (dim_t d = 0; d < D; ++d) o[d] += rounded_p * head.v[j * D + d];
      }
      for (double& x : o) x = rounded_to_bf16(x);
      const double delta = ref::dot(&d_o[i * D], o.data(), D);
      for (dim_t j = keys.begin; j < keys.end; ++j) {
        const double pj = p[j - keys.begin] / total, rounded_p = rounded_to_bf16(pj);
        const double ds = rounded_to_bf16(pj * (ref::dot(&d_o[i * D], &head.v[j * D], D) - delta));
        for (dim_t d = 0; d < D; ++d) {
          dq[d] += c.scale * ds * head.k[j * D + d];
          dk[(first_key + j) * D + d] += c.scale * ds * head.q[i * D + d];
          dv[(first_key + j) * D + d] += rounded_p * d_o[i * D + d];
        }
      }
      r.o.insert(r.o.end(), o.begin(), o.end());
      r.lse.push_back(top + std::log(total));
      for (double x : dq) r.dq.push_back(rounded_to_bf16(x));
    }
  }
  for (std::size_t i = 0; i < dk.size(); ++i) {
    r.dk.push_back(c.gradient_start[i] + rounded_to_bf16(dk[i]));
    r.dv.push_back(c.gradient_start[i] + rounded_to_bf16(dv[i]));
  }
  return r;
}

struct Error {
  double rms = 0, worst = 0;
  std::size_t where = 0;
};
Error error_of(const std::vector<double>& got, const std::vector<double>& want) {
  Error e;
  for (std::size_t i = 0; i < got.size(); ++i) {
    double error = std::abs(got[i] - want[i]);
    if (!std::isfinite(error)) error = std::numeric_limits<double>::infinity();
    if (error > e.worst) e.worst = error, e.where = i;
    e.rms += error * error / static_cast<double>(got.size());
  }
  e.rms = std::sqrt(e.rms);
  return e;
}

// Twice the error that bf16 itself makes (FlashAttention's rule), as root mean square: a slice of keys, or the query heads of a
// shared key/value head, are each rounded before they are summed, which is one more rounding at random. Three times it for
// the worst element: a slice's result may be larger than the sum. Beside that, what fp32 sums cost.
// `slack`: for cases where a slice's result is much larger than the sum.
testing::AssertionResult within_bf16(const std::vector<double>& got, const std::vector<double>& want,
                                     const std::vector<double>& in_bf16, double slack = 1) {
  if (got.size() != want.size()) return testing::AssertionFailure() << got.size() << " values against " << want.size();
  double largest = 0;
  for (double w : want) largest = std::max(largest, std::abs(w));
  const Error error = error_of(got, want), allowed = error_of(in_bf16, want);
  const double fp32 = 2e-5 * largest;
  if (error.rms <= 2 * slack * allowed.rms + fp32 && error.worst <= 3 * slack * allowed.worst + fp32)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "rms error " << error.rms << " (bf16 makes " << allowed.rms << "), worst "
                                     << error.worst << " (" << allowed.worst << "): [" << error.where << "] is "
                                     << got[error.where] << ", not " << want[error.where];
}

void CudaAttention::expect_like_reference(AttentionCase c, Laid laid, const std::vector<dim_t>& cuts, double slack) {
  for (std::vector<double>* input : {&c.q, &c.k, &c.v, &c.d_o})
    std::transform(input->begin(), input->end(), input->begin(), rounded_to_bf16);
  const AttentionResults got = gpu_->run(c, laid, cuts), want = c.reference(), in_bf16 = reference_in_bf16(c);
  const std::string what = format("{}, rows apart by {} more", c.shape.str(), laid.gap);
  // Scores are fp32 sums of exact products; exp2 and log2 to 2^-22.
  EXPECT_TRUE(near_all(got.lse, want.lse, 2e-5)) << "lse of " << what;
  EXPECT_TRUE(within_bf16(got.o, want.o, in_bf16.o, slack)) << "o of " << what;
  EXPECT_TRUE(within_bf16(got.dq, want.dq, in_bf16.dq, slack)) << "dq of " << what;
  EXPECT_TRUE(within_bf16(got.dk, want.dk, in_bf16.dk, slack)) << "dk of " << what;
  EXPECT_TRUE(within_bf16(got.dv, want.dv, in_bf16.dv, slack)) << "dv of " << what;
}

const std::vector<dim_t> kLengths = {1, 63, 64, 65, 97, 127, 128, 192, 704};

// ----------------------------------------------------------------------------------------------------------------------- fp32

TEST_F(CudaAttention, Fp32Lengths) {
  for (dim_t D : {64, 128})
    for (dim_t R : kLengths) expect_like_cpu({.R = R, .D = D, .kv_head = {0, 0}});
}

TEST_F(CudaAttention, Fp32HeadSizesAndStrides) {
  for (dim_t D : {1, 2, 5, 16, 31, 80, 100, 200, 256})
    for (dim_t gap : {0, 3}) expect_like_cpu({.R = 50, .D = D, .first_row = 80, .kv_head = {0, 1}, .gap = gap});
}

TEST_F(CudaAttention, Fp32Heads) {
  for (const std::vector<int>& map :
       std::vector<std::vector<int>>{{0, 1, 2}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {2, 0, 1, 2, 2}})
    expect_like_cpu({.R = 75, .D = 32, .first_row = 70, .kv_head = map});
}

TEST_F(CudaAttention, Fp32DocumentsAndCuts) {
  for (const auto& documents :
       std::vector<std::vector<dim_t>>{{}, {0, 3, 4, 11, 13}, {0, 100, 101, 102, 150}, {0, 260, 500}})
    for (dim_t first : {0, 2, 90}) {
      expect_like_cpu({.R = 180, .D = 32, .first_row = first, .kv_head = {0, 0}, .documents = documents});
      expect_like_cpu({.R = 180, .D = 32, .first_row = first, .kv_head = {0, 0}, .documents = documents},
                      {0, 1, 50, 180});
    }
}

TEST_F(CudaAttention, Fp32IsTheSameFromRunToRun) {
  const AttentionCase c({.R = 300, .D = 64, .first_row = 100, .kv_head = {0, 0, 1}});
  EXPECT_TRUE(gpu_->run(c, {DType::kF32}) == gpu_->run(c, {DType::kF32}));
}

TEST_F(CudaAttention, RefusesLargeHeadSizes) {
  const AttentionCase c({.R = 4, .D = 264});
  EXPECT_THROW(gpu_->run(c, {DType::kF32}), ConfigError);
}

// ----------------------------------------------------------------------------------------------------------------------- bf16

TEST_F(CudaAttention, Bf16Lengths) {
  for (dim_t D : {64, 128})
    for (dim_t R : kLengths) expect_like_reference(AttentionCase({.R = R, .D = D, .kv_head = {0, 0}}));
  for (dim_t R : {129, 160, 255, 257, 320, 1000, 1216}) expect_like_reference(AttentionCase({.R = R, .D = 128}));
}

TEST_F(CudaAttention, Bf16HeadSizes) {
  for (dim_t D : {8, 16, 32, 40, 80, 96, 112, 192, 256})
    expect_like_reference(AttentionCase({.R = 300, .D = D, .first_row = 200}));
  for (dim_t D : {4, 20, 100})
    expect_like_reference(AttentionCase({.R = 150, .D = D, .first_row = 20}));  // not for the library
}

TEST_F(CudaAttention, Bf16HeadsAndStrides) {
  for (const std::vector<int>& map : std::vector<std::vector<int>>{
           {0, 0, 0, 0}, {0, 1, 2, 3}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {2, 0, 1, 2, 2}, {3, 2, 1, 0}})
    for (dim_t gap : {0, 16, 6})
      expect_like_reference(AttentionCase({.R = 200, .D = 64, .first_row = 300, .kv_head = map}),
                            {.gap = gap, .more_keys = 7});
}

TEST_F(CudaAttention, Bf16BlocksOfRowsAgainstAPrefixOfKeys) {
  for (dim_t first : {1, 17, 64, 127, 192, 704, 1000})
    for (dim_t R : {1, 16, 17, 100, 128, 300})
      expect_like_reference(AttentionCase({.R = R, .D = 64, .first_row = first}));
}

// Several slices of keys, forward and backward; rests of 7,232 keys (64 mod 128) and 1.
TEST_F(CudaAttention, Bf16SlicesOfKeys) {
  for (dim_t first : {40'000, 32'769}) expect_like_reference(AttentionCase({.R = 100, .D = 64, .first_row = first}));
}

TEST_F(CudaAttention, Bf16DocumentsAndCuts) {
  for (const auto& documents :
       std::vector<std::vector<dim_t>>{{0, 3, 4, 11, 13}, {0, 260, 500}, {0, 128, 256, 700}, {0, 100, 101, 102, 350}})
    for (dim_t first : {0, 90, 400}) {
      const AttentionShape shape{.R = 500, .D = 64, .first_row = first, .kv_head = {0, 0}, .documents = documents};
      expect_like_reference(AttentionCase(shape));
      expect_like_reference(AttentionCase(shape), {}, {0, 1, 130, 500});
    }
}

// All scaled q.k near -120, so every log-sum-exp is below -88.7: where exp(-lse) overflows.
AttentionCase very_negative(const AttentionShape& shape) {
  AttentionCase c(shape);
  const double size = std::sqrt(120 / std::sqrt(static_cast<double>(shape.D)));
  c.fill(c.q, [&](dim_t r, dim_t d) { return size + 0.02 * static_cast<double>((r * 7 + d * 3) % 11); });
  c.fill(c.k, [&](dim_t r, dim_t d) { return -size - 0.04 * static_cast<double>((r * 5 + d) % 13 - 6); });
  return c;
}

TEST_F(CudaAttention, Fp32VeryNegativeScores) {
  for (dim_t R : kLengths) {
    const AttentionCase c = very_negative({.R = R, .D = 64, .kv_head = {0, 0}});
    // A score of 120 is known to 120 * 2^-24 = 7e-6 at best, as is lse; their difference is P's relative error.
    expect_near(gpu_->run(c, {DType::kF32}), c.run(), 6e-5, c.shape.str());
  }
}

// The library's faults at the end of a tile show with such scores alone: garbage beside them is multiplied by zero.
TEST_F(CudaAttention, Bf16VeryNegativeScores) {
  std::vector<std::pair<dim_t, dim_t>> shapes;  // first row, rows
  for (dim_t R : kLengths) shapes.emplace_back(0, R);
  for (dim_t R : {129, 160, 320, 1000, 1216}) shapes.emplace_back(0, R);
  for (dim_t first : {64, 192, 704, 1000})
    for (dim_t R : {1, 17, 64, 65, 128, 192, 300}) shapes.emplace_back(first, R);
  for (const auto& [first, R] : shapes)
    for (dim_t D : {64, 128}) {
      const AttentionCase c = very_negative({.R = R, .D = D, .first_row = first, .kv_head = {0, 0}});
      for (double lse : c.reference().lse) ASSERT_LT(lse, -95);
      // k is nearly one vector, so dS k of a slice is large and cancels between slices; one row does not average that.
      expect_like_reference(c, {}, {}, R == 1 ? 2 : 1);
    }
}

// NaN in the rows of another document, and behind the keys, reaches nothing.
TEST_F(CudaAttention, Bf16WhatIsNotAttendedMayBeNaN) {
  AttentionCase c({.R = 600, .D = 64, .first_row = 100, .kv_head = {0, 0}, .documents = {0, 300}});
  const AttentionResults clean = gpu_->run(c, {});
  const auto spoil = [&](std::vector<double>& values, dim_t rows, dim_t count) {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (static_cast<dim_t>(i) / c.shape.D % rows < count) values[i] = kUntouched;
  };
  spoil(c.q, 600, 200), spoil(c.d_o, 600, 200);
  spoil(c.k, 700, 300), spoil(c.v, 700, 300);
  const AttentionResults spoiled = gpu_->run(c, {.more_keys = 100});
  const auto behind = [&](const std::vector<double>& values, dim_t rows, dim_t first, dim_t D) {
    std::vector<double> out;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (static_cast<dim_t>(i) / D % rows >= first) out.push_back(values[i]);
    return out;
  };
  const dim_t D = c.shape.D;
  EXPECT_EQ(behind(spoiled.o, 600, 200, D), behind(clean.o, 600, 200, D));
  EXPECT_EQ(behind(spoiled.lse, 600, 200, 1), behind(clean.lse, 600, 200, 1));
  EXPECT_EQ(behind(spoiled.dk, 700, 300, D), behind(clean.dk, 700, 300, D));
  EXPECT_EQ(behind(spoiled.dv, 700, 300, D), behind(clean.dv, 700, 300, D));
  // The library sums dq by atomics: the order of fp32 sums, then a rounding to bf16 that may fall on the other side.
  EXPECT_TRUE(near_all(behind(spoiled.dq, 600, 200, D), behind(clean.dq, 600, 200, D), 1.0 / 128));
}

// --------------------------------------------------------------------------------------------------------------- long sequences

// Near N(0, 1), a function of (seed, i): four 16-bit uniform numbers, summed.
std::uint16_t draw_bf16(std::uint64_t seed, dim_t i) {
  const std::uint64_t x = random_bits(seed, i);
  const double sum = static_cast<double>((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
  return bf16_bits((sum - 131070.0) * (std::sqrt(3.0) / 65536.0));
}

// body(i) for i in [0, count), on all cores.
template <class Body>
void in_parallel(dim_t count, Body&& body) {
  const dim_t threads = std::clamp<dim_t>(std::thread::hardware_concurrency(), 1, count);
  std::vector<std::thread> team;
  for (dim_t t = 0; t < threads; ++t)
    team.emplace_back([&, t] {
      for (dim_t i = t; i < count; i += threads) body(i);
    });
  for (std::thread& thread : team) thread.join();
}

Words draw_rows(std::uint64_t seed, dim_t rows, dim_t width) {
  Words words(static_cast<std::size_t>(rows * width));
  constexpr dim_t kPiece = 4096;
  in_parallel(ceil_div(rows, kPiece), [&](dim_t piece) {
    for (dim_t i = piece * kPiece * width; i < std::min((piece + 1) * kPiece, rows) * width; ++i)
      words[static_cast<std::size_t>(i)] = draw_bf16(seed, i);
  });
  return words;
}

// A long case of one head, D = 128: k and v side by side in rows of 2 D, the last R rows of S as queries.
struct Long {
  static constexpr dim_t D = 128;
  dim_t S, R;
  double scale = 1 / std::sqrt(128.0);
  Words kv, q, d_o;
  Tensor kv_dev, q_dev, d_o_dev, o_dev, lse_dev, dq_dev, dk_dev, dv_dev;

  Long(Gpu& gpu, dim_t sequence, dim_t rows) : S(sequence), R(rows) {
    kv = draw_rows(1, S, 2 * D), q = draw_rows(2, R, D), d_o = draw_rows(3, R, D);
    kv_dev = gpu.take(DType::kBF16, {S, 2 * D});
    for (Tensor* t : {&q_dev, &d_o_dev, &o_dev, &dq_dev}) *t = gpu.take(DType::kBF16, {1, R, D});
    lse_dev = gpu.take(DType::kF32, {1, R});
    gpu.upload(kv_dev, kv), gpu.upload(q_dev, q), gpu.upload(d_o_dev, d_o);
  }
  AttentionRows rows() const { return {.first_row = S - R, .scale = scale}; }
  std::vector<KeyValue> heads() const { return {{kv_dev.slice(1, {0, D}), kv_dev.slice(1, {D, 2 * D})}}; }
  void forward(Gpu& gpu) { attention_forward(gpu.ctx(), o_dev, lse_dev, q_dev, heads(), rows()); }
  void backward(Gpu& gpu) {
    for (Tensor* t : {&dk_dev, &dv_dev}) {
      *t = gpu.take(DType::kF32, {S, D});
      gpu.ctx().device.zero(StreamKind::kCompute, *t);
    }
    const std::vector<KeyValue> gradients = {{dk_dev, dv_dev}};
    attention_backward(gpu.ctx(), dq_dev, gradients, d_o_dev, q_dev, o_dev, lse_dev, heads(), rows());
  }

  double k_at(dim_t key, dim_t d) const { return from_bf16_bits(kv[static_cast<std::size_t>(key * 2 * D + d)]); }
  double v_at(dim_t key, dim_t d) const { return from_bf16_bits(kv[static_cast<std::size_t>(key * 2 * D + D + d)]); }
  double score(dim_t row, dim_t key) const {
    double sum = 0;
    for (dim_t d = 0; d < D; ++d) sum += from_bf16_bits(q[static_cast<std::size_t>(row * D + d)]) * k_at(key, d);
    return scale * sum;
  }
  double d_o_dot_v(dim_t row, dim_t key) const {
    double sum = 0;
    for (dim_t d = 0; d < D; ++d) sum += from_bf16_bits(d_o[static_cast<std::size_t>(row * D + d)]) * v_at(key, d);
    return sum;
  }
};

// A row's o, lse and dq in double.
struct ExactRow {
  std::vector<double> o = std::vector<double>(Long::D), dq = std::vector<double>(Long::D);
  double lse = 0;

  ExactRow(const Long& c, dim_t row, bool backward) {
    const dim_t keys = c.S - c.R + row + 1;
    std::vector<double> p(static_cast<std::size_t>(keys));
    for (dim_t j = 0; j < keys; ++j) p[static_cast<std::size_t>(j)] = c.score(row, j);
    const double top = *std::max_element(p.begin(), p.end());
    double total = 0, delta = 0;
    for (double& x : p) total += x = std::exp(x - top);
    lse = top + std::log(total);
    for (dim_t j = 0; j < keys; ++j)
      for (dim_t d = 0; d < Long::D; ++d)
        o[static_cast<std::size_t>(d)] += p[static_cast<std::size_t>(j)] / total * c.v_at(j, d);
    if (!backward) return;
    for (dim_t d = 0; d < Long::D; ++d)
      delta += o[static_cast<std::size_t>(d)] * from_bf16_bits(c.d_o[static_cast<std::size_t>(row * Long::D + d)]);
    for (dim_t j = 0; j < keys; ++j) {
      const double ds = c.scale * p[static_cast<std::size_t>(j)] / total * (c.d_o_dot_v(row, j) - delta);
      for (dim_t d = 0; d < Long::D; ++d) dq[static_cast<std::size_t>(d)] += ds * c.k_at(j, d);
    }
  }
};

// What of `want` is in `got`: 1 if got = want + noise.
double gain(const std::vector<double>& got, const std::vector<double>& want) {
  return std::inner_product(got.begin(), got.end(), want.begin(), 0.0) /
         std::inner_product(want.begin(), want.end(), want.begin(), 0.0);
}
double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, all = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    error += (got[i] - want[i]) * (got[i] - want[i]), all += want[i] * want[i];
  return std::sqrt(error / all);
}

class SlowCudaAttention : public CudaTest {
 protected:
  // o, lse (and dq) of rows spread over the last half, where all have many keys.
  void expect_sample_rows(Gpu& gpu, const Long& c, bool backward) {
    constexpr dim_t kRows = 8;
    std::vector<dim_t> rows;
    for (dim_t i = 0; i < kRows; ++i) rows.push_back(c.R - 1 - i * (c.R / 2 / kRows) - i % 3);
    std::vector<std::unique_ptr<ExactRow>> exact(kRows);
    in_parallel(kRows, [&](dim_t i) {
      exact[static_cast<std::size_t>(i)] = std::make_unique<ExactRow>(c, rows[static_cast<std::size_t>(i)], backward);
    });
    double o_gain = 0, dq_gain = 0;
    for (dim_t i = 0; i < kRows; ++i) {
      const dim_t row = rows[static_cast<std::size_t>(i)];
      const ExactRow& want = *exact[static_cast<std::size_t>(i)];
      const std::vector<double> o = gpu.get(c.o_dev.index(0).rows(row, row + 1));
      EXPECT_NEAR(gpu.get(c.lse_dev.index(0).rows(row, row + 1))[0], want.lse, 1e-3) << row;
      // P and o in bf16: 2^-9 / sqrt(3) = 0.1 % each, once more for slices.
      EXPECT_LT(relative_error(o, want.o), 0.005) << row;
      o_gain += gain(o, want.o) / kRows;
      if (!backward) continue;
      const std::vector<double> dq = gpu.get(c.dq_dev.index(0).rows(row, row + 1));
      EXPECT_LT(relative_error(dq, want.dq), 0.01) << row;
      dq_gain += gain(dq, want.dq) / kRows;
    }
    // One call over 1 Mi keys would be 0.1 % short, over 10 Mi 1 %; the noise of 8 rows is 0.01 %.
    EXPECT_NEAR(o_gain, 1, 0.001) << c.S;
    if (backward) {
      EXPECT_NEAR(dq_gain, 1, 0.002) << c.S;
    }
  }

  // dk, dv of a few keys, from the rows' o and lse that the GPU found.
  void expect_sample_keys(Gpu& gpu, const Long& c) {
    const std::vector<double> o = gpu.get(c.o_dev), lse = gpu.get(c.lse_dev);
    const std::vector<dim_t> keys = {0, 1, c.S / 3, c.S / 2 + 77};
    in_parallel(static_cast<dim_t>(keys.size()), [&](dim_t i) {
      const dim_t key = keys[static_cast<std::size_t>(i)];
      std::vector<double> dk(Long::D), dv(Long::D);
      for (dim_t row = std::max(dim_t{0}, key - (c.S - c.R)); row < c.R; ++row) {
        double delta = 0;
        const std::size_t at = static_cast<std::size_t>(row * Long::D);
        for (std::size_t d = 0; d < Long::D; ++d) delta += o[at + d] * from_bf16_bits(c.d_o[at + d]);
        const double p = std::exp(c.score(row, key) - lse[static_cast<std::size_t>(row)]);
        const double ds = c.scale * p * (c.d_o_dot_v(row, key) - delta);
        for (std::size_t d = 0; d < Long::D; ++d)
          dk[d] += ds * from_bf16_bits(c.q[at + d]), dv[d] += p * from_bf16_bits(c.d_o[at + d]);
      }
      static std::mutex one_at_a_time;
      const std::lock_guard lock(one_at_a_time);
      EXPECT_LT(relative_error(gpu.get(c.dk_dev.rows(key, key + 1)), dk), 0.01) << key;
      EXPECT_LT(relative_error(gpu.get(c.dv_dev.rows(key, key + 1)), dv), 0.01) << key;
    });
  }
};

TEST_F(SlowCudaAttention, WholeSequences) {
  for (dim_t S : {dim_t{128} << 10, dim_t{1} << 20}) {
    Gpu gpu(4 * kGiB);
    Long c(gpu, S, S);
    c.forward(gpu);
    c.backward(gpu);
    expect_sample_rows(gpu, c, /*backward=*/true);
    expect_sample_keys(gpu, c);
  }
}

// Key offsets pass 2^31 bytes and 2^31 elements.
TEST_F(SlowCudaAttention, TenMillionKeys) {
  Gpu gpu(8 * kGiB);
  Long c(gpu, 10'000'000, 16 * 1024);
  c.forward(gpu);
  expect_sample_rows(gpu, c, /*backward=*/false);
}

}  // namespace
}  // namespace untied::test

#endif
