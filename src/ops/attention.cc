// Front half of attention: checks, cost, workspace, dispatch.
#include "ops/attention.h"

#include <cmath>

#include "ops/attention_backends.h"
#include "ops/attention_calls.h"

namespace untied {
namespace {

const Kernels<const AttentionForwardCall&> kForward{"attention_forward", attention_forward_cpu,
                                                    UNTIED_CUDA_KERNEL(attention_forward_cuda)};
const Kernels<const AttentionBackwardCall&> kBackward{"attention_backward", attention_backward_cpu,
                                                      UNTIED_CUDA_KERNEL(attention_backward_cuda)};

bool last_is_contiguous(const Tensor& t) { return t.dim(t.rank() - 1) <= 1 || t.stride(t.rank() - 1) == 1; }

// A tensor of q's shape and type: o, do, dq.
void check_like_q(const char* name, const Tensor& t, const Tensor& q_hRD) {
  CHECK(t.shape() == q_hRD.shape() && t.dtype() == q_hRD.dtype(), "attention: {} is {}, q is {}", name, t.str(),
        q_hRD.str());
  CHECK(last_is_contiguous(t), "attention: the last dimension of {} {} has stride {}", name, t.str(), t.stride(2));
}

void check_key_values(const char* name, std::span<const KeyValue> kv, const Tensor& q_hRD, DType dtype, dim_t keys) {
  CHECK(static_cast<dim_t>(kv.size()) == q_hRD.dim(0), "attention: {} {} heads for {} query heads", kv.size(), name,
        q_hRD.dim(0));
  for (const KeyValue& head : kv) {
    for (const Tensor* t : {&head.k_SD, &head.v_SD}) {
      CHECK(t->rank() == 2 && t->dim(1) == q_hRD.dim(2) && t->dtype() == dtype && last_is_contiguous(*t),
            "attention: {} is {}, not {}[S, {}] with contiguous rows", name, t->str(), name_of(dtype), q_hRD.dim(2));
      CHECK(t->dim(0) >= keys, "attention: {} is {}, but rows up to {} are attended", name, t->str(), keys);
    }
  }
}

void check_rows(Ctx& ctx, const Tensor& q_hRD, const Tensor& lse_hR, const AttentionRows& rows) {
  CHECK(q_hRD.rank() == 3 && is_activation(q_hRD) && last_is_contiguous(q_hRD), "attention: q is {}", q_hRD.str());
  CHECK(ctx.device.target() != Backend::kCpu || q_hRD.dtype() == DType::kF32,
        "attention on the cpu takes fp32, q is {}", q_hRD.str());
  CHECK(lse_hR.shape() == Shape({q_hRD.dim(0), q_hRD.dim(1)}) && lse_hR.dtype() == DType::kF32 &&
            last_is_contiguous(lse_hR),
        "attention: lse is {}, q is {}", lse_hR.str(), q_hRD.str());
  CHECK(rows.first_row >= 0, "attention: first row {}", rows.first_row);
  CHECK(std::isfinite(rows.scale), "attention: scale {}", rows.scale);
}

// Number of different key/value heads; each is read once.
dim_t count_distinct(std::span<const KeyValue> kv) {
  dim_t count = 0;
  for (std::size_t i = 0; i < kv.size(); ++i) {
    const auto same = [&](const KeyValue& other) { return other.k_SD.raw() == kv[i].k_SD.raw(); };
    count += std::none_of(kv.begin(), kv.begin() + static_cast<std::ptrdiff_t>(i), same);
  }
  return count;
}

// Bytes of the attended rows of all different heads.
double moved_by_keys(std::span<const KeyValue> kv, const Tensor& q_hRD, const AttentionRows& rows) {
  const dim_t keys = rows.first_row + q_hRD.dim(1) - document_start(rows.documents, rows.first_row);
  return 2.0 * static_cast<double>(count_distinct(kv)) * static_cast<double>(keys * q_hRD.dim(2)) *
         static_cast<double>(size_of(kv[0].k_SD.dtype()));
}

double pairs_of_call(const Tensor& q_hRD, const AttentionRows& rows) {
  return attended_pairs(rows.first_row, q_hRD.dim(1), rows.documents) * static_cast<double>(q_hRD.dim(0));
}

}  // namespace

double attended_pairs(dim_t first, dim_t count, DocumentStarts documents) {
  CHECK(documents.empty() || documents[0] == 0, "the first document starts at {}, not 0", documents[0]);
  double pairs = 0;
  auto next = std::upper_bound(documents.begin(), documents.end(), first);
  dim_t start = documents.empty() ? 0 : *(next - 1);
  for (dim_t row = first; row < first + count;) {
    // Rows [row, end) of one document attend row - start + 1, ..., end - start keys.
    const dim_t end = next == documents.end() ? first + count : std::min(*next, first + count);
    pairs += 0.5 * static_cast<double>(end - row) * static_cast<double>((row - start + 1) + (end - start));
    row = end;
    if (next == documents.end()) break;
    CHECK(*next > start, "a document starts at {}, the one before it at {}", *next, start);
    start = *next++;
  }
  return pairs;
}

dim_t attention_workspace(const Device& device, dim_t heads, dim_t rows, dim_t keys, dim_t head_dim, bool backward) {
  if (heads == 0 || rows == 0) return 0;
  if (device.target() == Backend::kCuda) return attention_scratch_cuda(heads, rows, keys, head_dim, backward).bytes;
  return device.threads() * attention_scratch_cpu(head_dim, backward);
}

void attention_forward(Ctx& ctx, const Tensor& o_hRD, const Tensor& lse_hR, const Tensor& q_hRD,
                       std::span<const KeyValue> kv, const AttentionRows& rows) {
  check_rows(ctx, q_hRD, lse_hR, rows);
  check_like_q("o", o_hRD, q_hRD);
  const dim_t h = q_hRD.dim(0), R = q_hRD.dim(1), D = q_hRD.dim(2), keys = rows.first_row + R;
  check_key_values("kv", kv, q_hRD, q_hRD.dtype(), keys);
  if (h == 0 || R == 0) return;
  CHECK(o_hRD.raw() != q_hRD.raw(), "attention: o {} is q", o_hRD.str());

  const Cost cost{4.0 * static_cast<double>(D) * pairs_of_call(q_hRD, rows),
                  moved(q_hRD) + moved(o_hRD) + moved(lse_hR) + moved_by_keys(kv, q_hRD, rows)};
  const Buffer workspace = ctx.memory.take("attention forward", Category::kWorkspace,
                                           attention_workspace(ctx.device, h, R, keys, D, /*backward=*/false));
  launch(kForward, ctx, cost, AttentionForwardCall{o_hRD, lse_hR, q_hRD, kv, rows, workspace.data()});
}

void attention_backward(Ctx& ctx, const Tensor& dq_hRD, std::span<const KeyValue> dkv, const Tensor& do_hRD,
                        const Tensor& q_hRD, const Tensor& o_hRD, const Tensor& lse_hR, std::span<const KeyValue> kv,
                        const AttentionRows& rows) {
  check_rows(ctx, q_hRD, lse_hR, rows);
  check_like_q("o", o_hRD, q_hRD);
  check_like_q("do", do_hRD, q_hRD);
  check_like_q("dq", dq_hRD, q_hRD);
  const dim_t h = q_hRD.dim(0), R = q_hRD.dim(1), D = q_hRD.dim(2), keys = rows.first_row + R;
  check_key_values("kv", kv, q_hRD, q_hRD.dtype(), keys);
  check_key_values("dkv", dkv, q_hRD, DType::kF32, keys);
  for (std::size_t i = 0; i < dkv.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      CHECK(dkv[i].k_SD.raw() != dkv[j].k_SD.raw() || kv[i].k_SD.raw() == kv[j].k_SD.raw(),
            "attention: query heads {} and {} share dkv but not kv", j, i);
  if (h == 0 || R == 0) return;
  for (const Tensor* t : {&do_hRD, &q_hRD, &o_hRD})
    CHECK(dq_hRD.raw() != t->raw(), "attention: dq {} is an input", dq_hRD.str());

  const Cost cost{10.0 * static_cast<double>(D) * pairs_of_call(q_hRD, rows),
                  moved(dq_hRD) + moved(do_hRD) + moved(q_hRD) + moved(o_hRD) + moved(lse_hR) +
                      moved_by_keys(kv, q_hRD, rows) + 2 * moved_by_keys(dkv, q_hRD, rows)};
  const Buffer workspace = ctx.memory.take("attention backward", Category::kWorkspace,
                                           attention_workspace(ctx.device, h, R, keys, D, /*backward=*/true));
  launch(kBackward, ctx, cost,
         AttentionBackwardCall{dq_hRD, do_hRD, q_hRD, o_hRD, lse_hR, dkv, kv, rows, workspace.data()});
}

}  // namespace untied
