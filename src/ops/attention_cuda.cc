// Attention on the cuda backend: cuDNN's fused kernel, called as attention_calls.h says; the plain kernel for the rest.
//
// bf16 whose rows are 16-byte aligned goes to the library: exact shapes without padding masks, since what lies behind a slice
// is other live data, or NaN that a mask would multiply by zero. fp32, and bf16 of odd strides or head sizes, is plain throughout.
//
// Known faults of the library (9.19; checked again by tests/ops/cuda_attention_test.cc) and what is done here:
// - 64 mod 128 keys without a mask, or one row: NaN gradients where log-sum-exp is below -88. See attention_calls.cc.
// - backward takes log-sum-exp at the offsets of a packed [heads, rows], whatever strides are declared: a packed copy is made.
// - non-causal forward graphs would be given to a newer engine (AttentionImplementation_t::UNIFIED) by cudnn-frontend 1.32; the
//   composite one is what was measured.
// - dq is summed by atomics: two runs differ in its last bits. `--deterministic` will need set_deterministic_algorithm(true) in
//   describe_backward, whose workspace is rows x keys x 2 bytes a head: smaller backward tiles, and a larger plan_bytes for them.
//
// This is the only file that includes cudnn_frontend.h: it compiles for minutes.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#include <nvrtc.h>
// For an engine of cudnn-frontend that is not asked for here: no reason to need one more library.
#pragma weak nvrtcCompileProgram
#pragma weak nvrtcCreateProgram
#pragma weak nvrtcDestroyProgram
#pragma weak nvrtcGetCUBIN
#pragma weak nvrtcGetCUBINSize
#pragma weak nvrtcGetProgramLog
#pragma weak nvrtcGetProgramLogSize

#include <bit>
#include <list>
#include <map>
#include <unordered_map>

#include "device/cuda/check.h"
#include "device/cuda/stream.h"
#include "ops/attention_backends.h"
#include "ops/attention_calls.h"
#include "ops/attention_merge_cuda.h"
#include "ops/cuda_libraries.h"

namespace untied {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;

void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw DeviceError("cuDNN {}: {}: {}", cudnnGetVersion(), what, cudnnGetErrorString(status));
}

// -------------------------------------------------------------------------------------------------------------- library graphs

struct Strides {
  dim_t head, row;
  auto operator<=>(const Strides&) const = default;
};

// All that a graph depends on, and what its plan may take.
struct GraphKey {
  bool backward, causal;
  dim_t heads, kv_heads, rows, keys, head_dim;
  std::uint32_t scale;  // the bits of the float
  Strides q, k, v, o;   // forward: o is written
  Strides d_o, dq;      // backward; dk, dv are packed
  auto operator<=>(const GraphKey&) const = default;

  std::string str() const {
    return format("{} attention of {} x {} rows, {} x {} keys, head size {}", backward ? "backward" : "forward", heads,
                  rows, kv_heads, keys, head_dim);
  }
};

enum Id : std::int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };
using Pointers = std::unordered_map<std::int64_t, void*>;

Strides packed(dim_t rows, dim_t head_dim) { return {rows * head_dim, head_dim}; }

std::vector<std::int64_t> dims(dim_t heads, dim_t rows, dim_t head_dim) { return {1, heads, rows, head_dim}; }
std::vector<std::int64_t> strides(dim_t heads, const Strides& s) { return {heads * s.head, s.head, s.row, 1}; }

struct Plan {
  std::unique_ptr<fe::graph::Graph> graph;
  std::int64_t workspace = 0;  // bytes
};

class Builder {
 public:
  explicit Builder(const GraphKey& key) : key_(key), graph_(std::make_unique<fe::graph::Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    q_ = input("q", kQ, key.heads, key.rows, key.q);
    k_ = input("k", kK, key.kv_heads, key.keys, key.k);
    v_ = input("v", kV, key.kv_heads, key.keys, key.v);
  }

  Plan build(cudnnHandle_t handle, dim_t most_workspace) {
    key_.backward ? describe_backward() : describe_forward();
    check(graph_->validate());
    check(graph_->build_operation_graph(handle));
    check(graph_->create_execution_plans({fe::HeurMode_t::A}));
    graph_->deselect_workspace_greater_than(most_workspace);
    check(graph_->check_support());
    check(graph_->build_plans());
    Plan plan;
    check(graph_->get_workspace_size(plan.workspace));
    plan.graph = std::move(graph_);
    return plan;
  }

 private:
  using TensorPointer = std::shared_ptr<Tensor_attributes>;

  TensorPointer input(const char* name, Id id, dim_t heads, dim_t rows, const Strides& s) {
    return graph_->tensor(Tensor_attributes()
                              .set_name(name)
                              .set_uid(id)
                              .set_dim(dims(heads, rows, key_.head_dim))
                              .set_stride(strides(heads, s)));
  }
  void output(const TensorPointer& tensor, Id id, dim_t heads, dim_t rows, const Strides& s) {
    tensor->set_output(true).set_uid(id).set_dim(dims(heads, rows, key_.head_dim)).set_stride(strides(heads, s));
  }
  // log-sum-exp: natural logarithm, fp32, packed.
  void make_stats(Tensor_attributes& stats) {
    stats.set_uid(kStats).set_data_type(fe::DataType_t::FLOAT).set_dim(dims(key_.heads, key_.rows, 1));
    stats.set_stride(strides(key_.heads, packed(key_.rows, 1)));
  }
  template <class Attributes>
  Attributes options() const {
    Attributes attributes;
    attributes.set_name("attention").set_attn_scale(std::bit_cast<float>(key_.scale));
    if (key_.causal)
      attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    return attributes;
  }

  void describe_forward() {
    auto attributes = options<fe::graph::SDPA_attributes>();
    attributes.set_generate_stats(true).set_implementation(fe::AttentionImplementation_t::COMPOSITE);
    auto [o, stats] = graph_->sdpa(q_, k_, v_, attributes);
    output(o, kO, key_.heads, key_.rows, key_.o);
    stats->set_output(true);
    make_stats(*stats);
  }
  void describe_backward() {
    const auto o = input("o", kO, key_.heads, key_.rows, key_.o),
               d_o = input("do", kDO, key_.heads, key_.rows, key_.d_o);
    Tensor_attributes stats;
    stats.set_name("lse");
    make_stats(stats);
    auto [dq, dk, dv] = graph_->sdpa_backward(q_, k_, v_, o, d_o, graph_->tensor(stats),
                                              options<fe::graph::SDPA_backward_attributes>());
    output(dq, kDQ, key_.heads, key_.rows, key_.dq);
    output(dk, kDK, key_.kv_heads, key_.keys, packed(key_.keys, key_.head_dim));
    output(dv, kDV, key_.kv_heads, key_.keys, packed(key_.keys, key_.head_dim));
  }
  void check(fe::error_t error) const {
    if (error.is_bad()) throw DeviceError("cuDNN {}: {}: {}", cudnnGetVersion(), key_.str(), error.get_message());
  }

  const GraphKey key_;
  std::unique_ptr<fe::graph::Graph> graph_;
  TensorPointer q_, k_, v_;
};

// One rank's handle and its graphs, the last used ones. A sequence of one document needs some ten; documents bring as many as
// they have lengths, each 50 ms once (and again, when more lengths than are kept come round).
class Library {
 public:
  Library() {
    require_cuda_libraries();
    check_cudnn(cudnnCreate(&handle_), "cudnnCreate");
  }
  Library(const Library&) = delete;
  ~Library() {
    plans_.clear();
    cudnnDestroy(handle_);
  }

  void run(cudaStream_t stream, const GraphKey& key, Pointers& pointers, std::byte* workspace, dim_t most_workspace) {
    if (stream != stream_) {
      check_cudnn(cudnnSetStream(handle_, stream), "cudnnSetStream");
      stream_ = stream;
    }
    const Plan& plan = plan_of(key, most_workspace);
    if (plan.workspace > most_workspace)
      throw DeviceError("cuDNN {}: {} takes {} bytes of workspace, more than the {} that are planned",
                        cudnnGetVersion(), key.str(), plan.workspace, most_workspace);
    if (fe::error_t error = plan.graph->execute(handle_, pointers, workspace); error.is_bad())
      throw DeviceError("cuDNN {}: running {}: {}", cudnnGetVersion(), key.str(), error.get_message());
  }

 private:
  static constexpr std::size_t kMostPlans = 512;
  using Plans = std::list<std::pair<GraphKey, Plan>>;

  const Plan& plan_of(const GraphKey& key, dim_t most_workspace) {
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      plans_.splice(plans_.begin(), plans_, found->second);
      return plans_.front().second;
    }
    if (plans_.size() == kMostPlans) {
      CUDA_CHECK(cudaStreamSynchronize(stream_));  // the oldest may still be running
      by_key_.erase(plans_.back().first);
      plans_.pop_back();
    }
    plans_.emplace_front(key, Builder(key).build(handle_, most_workspace));
    by_key_[key] = plans_.begin();
    return plans_.front().second;
  }

  cudnnHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  Plans plans_;  // the last used first
  std::map<GraphKey, Plans::iterator> by_key_;
};

// --------------------------------------------------------------------------------------------------------------- views of heads

// Rows [rows) of heads [heads) of a [heads, rows, D] tensor.
HeadRows part_of(const Tensor& t, Range heads, Range rows) {
  return {t.slice(0, heads).slice(1, rows).raw(), t.stride(0), t.stride(1)};
}
// Rows [rows) of the evenly spaced key/value heads of a group; `member` is k_SD or v_SD.
HeadRows part_of(std::span<const KeyValue> kv, Tensor KeyValue::*member, const HeadGroup& group, Range rows) {
  const Tensor& first = kv[group.first].*member;
  HeadRows view{first.rows(rows).raw(), 0, first.stride(0)};
  if (group.kv_count > 1) {
    const Tensor& second = kv[group.first + group.count / group.kv_count].*member;
    view.head_stride = (second.as<std::byte>() - first.as<std::byte>()) / static_cast<dim_t>(size_of(first.dtype()));
  }
  return view;
}
HeadRows packed_view(void* data, dim_t rows, dim_t head_dim) { return {data, rows * head_dim, head_dim}; }

// As a graph is keyed: a single head has the stride that a packed one would have.
Strides strides_of(const HeadRows& t, dim_t heads, dim_t rows) {
  return {heads > 1 ? t.head_stride : rows * t.row_stride, t.row_stride};
}

// Every head and row begins at a multiple of `bytes`.
bool is_aligned(const Tensor& t, dim_t bytes) {
  bool aligned = reinterpret_cast<std::uintptr_t>(t.raw()) % static_cast<std::uintptr_t>(bytes) == 0;
  for (int i = 0; i + 1 < t.rank(); ++i)
    aligned = aligned && (t.dim(i) <= 1 || t.stride(i) * static_cast<dim_t>(size_of(t.dtype())) % bytes == 0);
  return aligned;
}

bool are_aligned(std::span<const KeyValue> kv, dim_t bytes) {
  return std::all_of(kv.begin(), kv.end(), [&](const KeyValue& head) {
    return is_aligned(head.k_SD, bytes) && is_aligned(head.v_SD, bytes);
  });
}

std::vector<HeadAddresses> addresses_of(std::span<const KeyValue> kv, std::span<const KeyValue> dkv) {
  const auto address = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.raw()); };
  std::vector<HeadAddresses> all;
  for (std::size_t i = 0; i < kv.size(); ++i) {
    all.push_back({address(kv[i].k_SD), address(kv[i].v_SD), 0, 0});
    if (!dkv.empty()) all.back()[2] = address(dkv[i].k_SD), all.back()[3] = address(dkv[i].v_SD);
  }
  return all;
}

// One stride of rows serves all heads of a call.
bool have_one_row_stride(std::span<const KeyValue> kv) {
  return std::all_of(kv.begin(), kv.end(), [&](const KeyValue& head) {
    return head.k_SD.stride(0) == kv[0].k_SD.stride(0) && head.v_SD.stride(0) == kv[0].v_SD.stride(0);
  });
}

// ------------------------------------------------------------------------------------------------------------ forward, backward

// What forward and backward share: the walk over parts and groups of heads, and the scratch.
class Attention {
 public:
  Attention(Ctx& ctx, const Tensor& q_hRD, std::span<const KeyValue> kv, std::span<const KeyValue> dkv,
            const AttentionRows& rows, std::byte* workspace, bool backward)
      : ctx_(ctx), q_(q_hRD), kv_(kv), dkv_(dkv), rows_(rows), backward_(backward), D_(q_hRD.dim(2)),
        workspace_(workspace),
        scratch_(attention_scratch_cuda(q_hRD.dim(0), q_hRD.dim(1), rows.first_row + q_hRD.dim(1), D_, backward)),
        addresses_(addresses_of(kv, dkv)),
        single_heads_(!have_one_row_stride(kv) || (backward && !have_one_row_stride(dkv))) {}

 protected:
  // part(rows and document, heads) for all of the op, in order.
  template <class Part>
  void for_each_part(bool library, Part&& part) {
    for (const AttentionPart& p : attention_parts(rows_.first_row, q_.dim(1), rows_.documents)) {
      const dim_t most = single_heads_ ? 1 : library ? heads_per_call(p, backward_) : kMostPlainHeads;
      for (const HeadGroup& group : head_groups(addresses_, most)) part(p, group);
    }
  }

  Range row_range(Range positions) const {
    return {positions.begin - rows_.first_row, positions.end - rows_.first_row};
  }
  static Range heads_of(const HeadGroup& group) { return {group.first, group.first + group.count}; }
  HeadRows rows_of(const Tensor& t, const HeadGroup& group, Range positions) const {
    return part_of(t, heads_of(group), row_range(positions));
  }

  // The plain kernel's view of a call: rows against keys, of which row i attends those up to `diagonal` + i.
  PlainAttention plain(const HeadGroup& group, Range rows, Range keys, dim_t diagonal) const {
    return {.dtype = q_.dtype(),
            .heads = group.count,
            .kv_heads = group.kv_count,
            .rows = rows.size(),
            .keys = keys.size(),
            .head_dim = D_,
            .diagonal = diagonal,
            .scale = static_cast<float>(rows_.scale),
            .q = rows_of(q_, group, rows),
            .k = part_of(kv_, &KeyValue::k_SD, group, keys),
            .v = part_of(kv_, &KeyValue::v_SD, group, keys)};
  }
  PlainAttention plain(const HeadGroup& group, const KernelCall& call) const {
    return plain(group, call.rows, call.keys, call.causal ? 0 : call.keys.size());
  }
  // Without slices: all that the rows attend.
  PlainAttention plain(const HeadGroup& group, const AttentionPart& part) const {
    return plain(group, part.rows, {part.document, part.rows.end}, part.rows.begin - part.document);
  }

  GraphKey graph_key(const PlainAttention& a, bool causal) const {
    return {.backward = backward_,
            .causal = causal,
            .heads = a.heads,
            .kv_heads = a.kv_heads,
            .rows = a.rows,
            .keys = a.keys,
            .head_dim = D_,
            .scale = std::bit_cast<std::uint32_t>(a.scale),
            .q = strides_of(a.q, a.heads, a.rows),
            .k = strides_of(a.k, a.kv_heads, a.keys),
            .v = strides_of(a.v, a.kv_heads, a.keys),
            .o = strides_of(a.o, a.heads, a.rows),
            .d_o = {},
            .dq = {}};
  }
  void run_library(const GraphKey& key, Pointers pointers) {
    cuda_device(ctx_.device)
        .attached<Library>()
        .run(stream_of(ctx_), key, pointers, workspace_ + scratch_.plan, scratch_.plan_bytes);
  }

  template <class T = std::byte>
  T* scratch(dim_t offset) const {
    return reinterpret_cast<T*>(workspace_ + offset);
  }
  // The rows' log-sum-exp in the op's tensor, and packed in the scratch.
  Tensor lse_of(const Tensor& lse_hR, const HeadGroup& group, Range positions) const {
    return lse_hR.slice(0, heads_of(group)).slice(1, row_range(positions));
  }
  Tensor packed_lse(const HeadGroup& group, Range positions) const {
    return Tensor(scratch(scratch_.lse), DType::kF32, {group.count, positions.size()});
  }
  // bf16 that the library's vector loads take.
  bool are_for_library(std::initializer_list<const Tensor*> like_q) const {
    return q_.dtype() == DType::kBF16 && D_ % 8 == 0 && D_ <= kCudaHeadDim && are_aligned(kv_, 16) &&
           are_aligned(dkv_, 16) &&
           std::all_of(like_q.begin(), like_q.end(), [](const Tensor* t) { return is_aligned(*t, 16); });
  }
  SliceMerge merge(const HeadGroup& group, const KernelCall& call, const HeadRows& to, bool first, bool last) const {
    return {group.count, call.rows.size(), D_, scratch(scratch_.part), scratch<float>(scratch_.sum), to, first, last};
  }

  Ctx& ctx_;
  const Tensor q_;
  const std::span<const KeyValue> kv_, dkv_;
  const AttentionRows rows_;
  const bool backward_;
  const dim_t D_;
  std::byte* const workspace_;
  const AttentionScratch scratch_;

 private:
  static constexpr dim_t kMostPlainHeads = 4096;
  const std::vector<HeadAddresses> addresses_;
  const bool single_heads_;
};

class Forward : Attention {
 public:
  Forward(Ctx& ctx, const AttentionForwardCall& op)
      : Attention(ctx, op.q_hRD, op.kv, {}, op.rows, op.workspace, /*backward=*/false), o_(op.o_hRD), lse_(op.lse_hR) {}

  void run() {
    const bool library = are_for_library({&q_, &o_});
    for_each_part(library, [&](const AttentionPart& part, const HeadGroup& group) {
      library ? by_library(part, group) : by_plain_kernel(part, group);
    });
  }

 private:
  void by_plain_kernel(const AttentionPart& part, const HeadGroup& group) {
    PlainAttention a = plain(group, part);
    const Tensor lse = lse_of(lse_, group, part.rows);
    a.o = rows_of(o_, group, part.rows);
    a.lse = lse.f32();
    a.lse_stride = lse.stride(0);
    plain_attention_forward(ctx_, a);
  }

  void by_library(const AttentionPart& part, const HeadGroup& group) {
    const std::vector<KernelCall> calls = kernel_calls(part, /*backward=*/false);
    const HeadRows o = rows_of(o_, group, part.rows);
    const Tensor lse = lse_of(lse_, group, part.rows), packed = packed_lse(group, part.rows);
    const bool merged = calls.size() > 1;
    for (const KernelCall& call : calls) {
      one_call(group, call, merged ? packed_view(scratch(scratch_.part), call.rows.size(), D_) : o, packed.f32());
      if (merged)
        merge_o(ctx_, merge(group, call, o, &call == &calls.front(), &call == &calls.back()),
                {packed.f32(), scratch<float>(scratch_.lse_sum), lse.f32(), lse.stride(0)});
    }
    if (!merged) ctx_.device.copy(StreamKind::kCompute, lse, packed);
  }

  void one_call(const HeadGroup& group, const KernelCall& call, const HeadRows& o, float* packed_lse) {
    PlainAttention a = plain(group, call);
    a.o = o;
    a.lse = packed_lse;
    a.lse_stride = a.rows;
    if (!suits_library(call)) return plain_attention_forward(ctx_, a);
    run_library(graph_key(a, call.causal),
                {{kQ, a.q.data}, {kK, a.k.data}, {kV, a.v.data}, {kO, a.o.data}, {kStats, a.lse}});
  }

  const Tensor o_, lse_;
};

class Backward : Attention {
 public:
  Backward(Ctx& ctx, const AttentionBackwardCall& op)
      : Attention(ctx, op.q_hRD, op.kv, op.dkv, op.rows, op.workspace, /*backward=*/true), dq_(op.dq_hRD),
        d_o_(op.do_hRD), o_(op.o_hRD), lse_(op.lse_hR) {}

  void run() {
    const bool library = are_for_library({&q_, &o_, &d_o_, &dq_});
    for_each_part(library, [&](const AttentionPart& part, const HeadGroup& group) {
      library ? by_library(part, group) : by_plain_kernel(part, group);
    });
  }

 private:
  void by_plain_kernel(const AttentionPart& part, const HeadGroup& group) {
    PlainAttention a = plain(group, part);
    const Tensor lse = lse_of(lse_, group, part.rows);
    a.lse = lse.f32();
    a.lse_stride = lse.stride(0);
    a.dq = rows_of(dq_, group, part.rows);
    add_rest(a, group, part.rows, {part.document, part.rows.end});
    plain_attention_backward(ctx_, a);
  }

  void by_library(const AttentionPart& part, const HeadGroup& group) {
    const std::vector<KernelCall> calls = kernel_calls(part, /*backward=*/true);
    const HeadRows dq = rows_of(dq_, group, part.rows);
    const Tensor packed = packed_lse(group, part.rows);
    const bool merged = calls.size() > 1;
    ctx_.device.copy(StreamKind::kCompute, packed, lse_of(lse_, group, part.rows));
    for (const KernelCall& call : calls) {
      one_call(group, call, merged ? packed_view(scratch(scratch_.part), call.rows.size(), D_) : dq, packed.f32());
      if (merged) merge_dq(ctx_, merge(group, call, dq, &call == &calls.front(), &call == &calls.back()));
    }
  }

  void one_call(const HeadGroup& group, const KernelCall& call, const HeadRows& dq, float* packed_lse) {
    PlainAttention a = plain(group, call);
    a.lse = packed_lse;
    a.lse_stride = a.rows;
    a.dq = dq;
    add_rest(a, group, call.rows, call.keys);
    if (!suits_library(call)) return plain_attention_backward(ctx_, a);
    GraphKey key = graph_key(a, call.causal);
    key.d_o = strides_of(a.d_o, a.heads, a.rows);
    key.dq = strides_of(a.dq, a.heads, a.rows);
    std::byte *const dk = scratch(scratch_.dk), *const dv = scratch(scratch_.dv);
    run_library(key, {{kQ, a.q.data},
                      {kK, a.k.data},
                      {kV, a.v.data},
                      {kO, a.o.data},
                      {kStats, a.lse},
                      {kDO, a.d_o.data},
                      {kDQ, a.dq.data},
                      {kDK, dk},
                      {kDV, dv}});
    add_key_value_gradients(ctx_, a.dk, a.dv, dk, dv, a.kv_heads, a.keys, D_);
  }

  void add_rest(PlainAttention& a, const HeadGroup& group, Range rows, Range keys) const {
    a.o = rows_of(o_, group, rows);
    a.d_o = rows_of(d_o_, group, rows);
    a.dk = part_of(dkv_, &KeyValue::k_SD, group, keys);
    a.dv = part_of(dkv_, &KeyValue::v_SD, group, keys);
  }

  const Tensor dq_, d_o_, o_, lse_;
};

}  // namespace

void attention_forward_cuda(Ctx& ctx, const AttentionForwardCall& call) { Forward(ctx, call).run(); }
void attention_backward_cuda(Ctx& ctx, const AttentionBackwardCall& call) { Backward(ctx, call).run(); }

}  // namespace untied
