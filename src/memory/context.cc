#include "memory/context.h"

namespace untied {

void OpTimer::stop() try {
  ctx_.profile->spans.push_back({op_, stream_, std::move(begin_), ctx_.device.mark(stream_)});
} catch (const std::exception&) {
  // A device that has failed says so again at the next call.
}

void copy(Ctx& ctx, StreamKind stream, const Tensor& dst, const Tensor& src) {
  CHECK(dst.dtype() == src.dtype() && dst.shape() == src.shape(), "copy of {} to {}", src.str(), dst.str());
  const double bytes = static_cast<double>(dst.bytes());
  if (stream == StreamKind::kToHost || stream == StreamKind::kToDevice) ctx.trace.bytes_copied += bytes;
  else ctx.trace.bytes_moved += 2 * bytes;
  ++ctx.trace.ops;
  const OpTimer timer(ctx, "copy", stream);
  ctx.device.copy(stream, dst, src);
}

}  // namespace untied
