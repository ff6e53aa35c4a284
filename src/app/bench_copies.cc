// `untied bench copies`: between pinned host memory and the device, and on the device, on all ranks at once.
#include "app/bench.h"

namespace untied {

void bench_copies(BenchRank& rank) {
  const BenchSetup& setup = rank.setup();
  const dim_t bytes = dim_t{setup.on_cpu() ? 16 : 256} << 20;
  const Shape shape{bytes / 4};
  Ctx& ctx = rank.ctx();
  const Held here = rank.normal("here", DType::kF32, shape), there = rank.normal("there", DType::kF32, shape);
  const Buffer near_buffer = ctx.host.take("near", Category::kStaging, bytes);
  const Buffer far_buffer = ctx.host.take("far", Category::kStaging, bytes);
  const Tensor from_host = near_buffer.tensor(DType::kF32, shape), to_host = far_buffer.tensor(DType::kF32, shape);
  copy(ctx, StreamKind::kCompute, from_host, here.tensor);
  copy(ctx, StreamKind::kCompute, to_host, here.tensor);

  const auto to_device = [&] { copy(ctx, StreamKind::kToDevice, there.tensor, from_host); };
  const auto from_device = [&] { copy(ctx, StreamKind::kToHost, to_host, here.tensor); };
  Measured what{.shape = format_bytes(static_cast<double>(bytes)),
                .work = &Trace::bytes_copied,
                .limit = setup.limit(&HardwareLimits::host_gbs)};
  what.name = "host to device";
  rank.measure(what, to_device);
  what.name = "device to host";
  rank.measure(what, from_device);
  what.name = "both at once, each way";
  what.directions = 2;
  rank.measure(what, [&] {
    to_device();
    from_device();
  });

  rank.measure({.name = "device, read and written",
                .shape = what.shape,
                .work = &Trace::bytes_moved,
                .limit = setup.limit(&HardwareLimits::memory_gbs)},
               [&] { copy(ctx, StreamKind::kCompute, there.tensor, here.tensor); });
}

}  // namespace untied
