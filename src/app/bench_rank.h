// One rank that measures: its device and memory, what it is to measure, random data, a clock.
#pragma once

#include <functional>
#include <initializer_list>
#include <random>

#include "app/bench_report.h"
#include "device/hardware.h"
#include "model/execution.h"

namespace untied {

// The same for every rank.
struct BenchSetup {
  std::string bench;
  Backend backend = Backend::kCpu;
  DType dtype = DType::kF32;
  int ranks = 1;
  ModelConfig model;                         // whose shapes are measured
  dim_t context = 0;                         // keys of attention; 0: several numbers of them
  double seconds = 0;                        // of the sustained run of a row; 0: none
  std::function<void(const Rate&)> on_rate;  // told each row, by rank 0
  dim_t device_bytes = 0, host_bytes = 0;    // of a rank's memory
  std::optional<HardwareLimits> limits;      // of the devices, where known

  bool on_cpu() const { return backend == Backend::kCpu; }
  std::optional<double> limit(double HardwareLimits::*which) const {
    return limits ? std::optional((*limits).*which) : std::nullopt;
  }
};

// What one row says besides its rates.
struct Measured {
  std::string name, shape;
  double Trace::*work;          // that a rate counts: flops, or bytes of one kind
  std::optional<double> limit;  // in TFLOP/s or GB/s
  int directions = 1;           // that share the work evenly; the rate is that of one
};

class BenchRank {
 public:
  BenchRank(const BenchSetup& setup, std::shared_ptr<Communicator> world, std::unique_ptr<Device> device);

  const BenchSetup& setup() const { return setup_; }
  Ctx& ctx() { return memory_.ctx(); }
  Communicator& world() { return *world_; }

  // Device memory, contiguous: of anything, N(0, 1), or whole numbers below `bound`. Real data costs a GPU more power, and so
  // speed, than zeros do.
  Held blank(const char* name, DType dtype, const Shape& shape) { return hold(ctx(), name, dtype, shape); }
  Held normal(const char* name, DType dtype, const Shape& shape);
  Held indices(const char* name, dim_t count, dim_t bound);

  // The rates of `call`, which queues work on this rank's device; every rank calls this, in the same order.
  Rate measure(const Measured& what, const std::function<void()>& call);

 private:
  double seconds_of(dim_t calls, const std::function<void()>& call);
  double slowest(double seconds);
  double sustained_seconds(dim_t calls, const std::function<void()>& call);

  const BenchSetup& setup_;
  std::shared_ptr<Communicator> world_;  // outlives the device, whose work may wait for it
  RankMemory memory_;
  std::mt19937_64 random_;
  Held normals_;             // fp32, on the device: tensors repeat it
  dim_t normals_at_ = 0;     // where the next tensor begins in it
  Held clock_, clock_host_;  // fp64[1], for `slowest`
};

// "8192x14336x4096".
std::string by(std::initializer_list<dim_t> sizes);

}  // namespace untied
