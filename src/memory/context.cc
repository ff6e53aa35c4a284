#include "memory/context.h"

namespace untied {

void copy(Ctx& ctx, StreamKind stream, const Tensor& dst, const Tensor& src) {
  CHECK(dst.dtype() == src.dtype() && dst.shape() == src.shape(), "copy of {} to {}", src.str(), dst.str());
  const double bytes = static_cast<double>(dst.bytes());
  if (stream == StreamKind::kToHost || stream == StreamKind::kToDevice) ctx.trace.bytes_copied += bytes;
  else ctx.trace.bytes_moved += 2 * bytes;
  ++ctx.trace.ops;
  ctx.device.copy(stream, dst, src);
}

}  // namespace untied
