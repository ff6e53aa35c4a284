// What all ops share. An op is a header (its contract), a front half `name.cc` (checks, cost, workspace, dispatch) and one
// file per backend. The front half runs on every backend; on meta there is simply no kernel to call.
#pragma once

#include "memory/context.h"

namespace untied {

// Whether an op's result replaces what the output holds or is added to it. "Write" spares clearing a buffer first.
enum class Accumulate : std::uint8_t { kWrite, kAdd };

struct Cost {
  double flops = 0;  // of matrix products and attention; the element-wise rest is bound by bytes
  double bytes = 0;  // device memory read and written
};

// The backends of one op. A null entry is a backend this build does not have.
template <class... Args>
struct Kernels {
  const char* name;
  void (*cpu)(Ctx&, Args...);
  void (*cuda)(Ctx&, Args...);
};

template <class... Args, class... Given>
void launch(const Kernels<Args...>& kernels, Ctx& ctx, Cost cost, Given&&... args) {
  ctx.trace.flops += cost.flops;
  ctx.trace.bytes_moved += cost.bytes;
  ++ctx.trace.ops;
  if (ctx.is_meta()) return;
  auto kernel = ctx.device.backend() == Backend::kCuda ? kernels.cuda : kernels.cpu;
  if (!kernel) throw DeviceError("{} has no {} backend in this build", kernels.name, name_of(ctx.device.backend()));
  const OpTimer timer(ctx, kernels.name, StreamKind::kCompute);
  kernel(ctx, std::forward<Given>(args)...);
}

inline double moved(const Tensor& t) { return static_cast<double>(t.bytes()); }

// Activations and working weights: fp32 on cpu, bf16 (or fp32) on cuda.
inline bool is_activation(const Tensor& t) { return t.dtype() == DType::kF32 || t.dtype() == DType::kBF16; }

}  // namespace untied

// An op's entry for the cuda backend, where the build has it.
#ifdef UNTIED_HAS_CUDA
#define UNTIED_CUDA_KERNEL(function) function
#else
#define UNTIED_CUDA_KERNEL(function) nullptr
#endif
