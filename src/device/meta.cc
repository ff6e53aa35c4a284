// The meta device: nothing runs, memory is addresses. They begin far outside anything mapped, so that a stray read faults, and
// host addresses do not overlap device addresses, so that checks for overlap mean the same as on a real device.
#include "device/device.h"

namespace untied {

namespace {

class MetaDevice final : public Device {
 public:
  MetaDevice(Backend target, int threads) : target_(target) { threads_ = threads; }
  Backend backend() const override { return Backend::kMeta; }
  Backend target() const override { return target_; }
  std::byte* reserve(MemoryKind kind, dim_t) override {
    return reinterpret_cast<std::byte*>(std::uintptr_t{1} << (kind == MemoryKind::kDevice ? 48 : 56));
  }
  Event record(StreamKind) override { return {}; }
  void wait(StreamKind, const Event&) override {}
  void synchronize() override {}
  void copy(StreamKind, const Tensor&, const Tensor&) override {}
  void zero(StreamKind, const Tensor&) override {}

 private:
  Backend target_;
};

}  // namespace

std::unique_ptr<Device> make_meta_device(Backend target, int threads) {
  return std::make_unique<MetaDevice>(target, threads);
}

}  // namespace untied
