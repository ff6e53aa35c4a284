#include "memory/context.h"

namespace untied {

void OpTimer::stop() try {
  ctx_.device.synchronize();
  Profile::Op& op = ctx_.profile->ops[op_];
  ++op.calls;
  op.seconds += std::chrono::duration<double>(Clock::now() - start_).count();
} catch (const std::exception&) {
  // A device that has failed says so again at the next call.
}

void copy(Ctx& ctx, StreamKind stream, const Tensor& dst, const Tensor& src) {
  CHECK(dst.dtype() == src.dtype() && dst.shape() == src.shape(), "copy of {} to {}", src.str(), dst.str());
  const double bytes = static_cast<double>(dst.bytes());
  if (stream == StreamKind::kToHost || stream == StreamKind::kToDevice) ctx.trace.bytes_copied += bytes;
  else ctx.trace.bytes_moved += 2 * bytes;
  ++ctx.trace.ops;
  const OpTimer timer(ctx, stream == StreamKind::kToHost     ? "copy to host"
                           : stream == StreamKind::kToDevice ? "copy to device"
                                                             : "copy");
  ctx.device.copy(stream, dst, src);
}

}  // namespace untied
