// `untied bench`: measured rates beside the hardware's limits.
#include "app/bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "app/prepare.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "device/cuda.h"
#include "model/presets.h"
#include "train/local_ranks.h"

namespace untied {
namespace {

struct Bench {
  const char* name;
  void (*run)(BenchRank&);
  int least_ranks, most_ranks;
};
constexpr Bench kBenches[] = {
    {"ops", bench_ops, 1, 1},
    {"attention", bench_attention, 1, 1},
    {"comm", bench_comm, 2, 1 << 20},
    {"copies", bench_copies, 1, 1 << 20},
};

// Of a rank; a bench takes what a row needs and gives it back. The rest of a GPU is for its libraries.
constexpr dim_t kGiB = dim_t{1} << 30, kGpuBytes = 60 * kGiB, kCpuBytes = kGiB, kHostBytes = kGiB;

int ranks_of(const Bench& bench, Backend backend, int asked) {
  const int here = backend == Backend::kCuda ? cuda_device_count() : bench.least_ranks;
  const int ranks = asked ? asked : std::min(here, bench.most_ranks);
  if (ranks > bench.most_ranks) throw ConfigError("--ranks {}: `bench {}` measures one device", ranks, bench.name);
  if (ranks >= bench.least_ranks) return ranks;
  if (asked) throw ConfigError("--ranks {}: `bench {}` needs {} or more", ranks, bench.name, bench.least_ranks);
  throw ConfigError("bench {}: needs {} ranks or more, and there is one GPU; --device cpu has as many as --ranks says",
                    bench.name, bench.least_ranks);
}

BenchSetup setup_of(const Bench& bench, const Invocation& invocation) {
  const RunConfig& config = invocation.run;
  const Backend backend = backend_here(config.device);
  const bool cuda = backend == Backend::kCuda;
  if (cuda) require_cuda(std::max(1, config.ranks));
  BenchSetup setup{.bench = bench.name,
                   .backend = backend,
                   .dtype = config.dtype.value_or(cuda ? DType::kBF16 : DType::kF32),
                   .ranks = ranks_of(bench, backend, config.ranks),
                   .model = config.model.empty() ? find_preset(cuda ? "llama-3-8b" : "tiny").value()
                                                 : load_model_config(config.model),
                   .context = config.context,
                   .seconds = invocation.seconds,
                   .device_bytes = cuda ? kGpuBytes : kCpuBytes,
                   .host_bytes = kHostBytes};
  if (cuda)
    for (int gpu = 0; gpu < setup.ranks; ++gpu)
      setup.device_bytes = std::min(setup.device_bytes, cuda_memory(gpu).free / 10 * 9);
  return setup;
}

int run_rates(const Bench& bench, const Invocation& invocation) {
  BenchSetup setup = setup_of(bench, invocation);
  const bool cuda = setup.backend == Backend::kCuda;
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / setup.ranks);
  HardwareProfile profile{.device = make_local_device(setup.backend, 0, threads)->name(),
                          .count = setup.ranks,
                          .memory_bytes = cuda ? cuda_memory(0).total : host_memory(),
                          .seconds = setup.seconds};
  setup.limits = limits_of(profile.device);

  // Row by row, as a bench takes minutes; where stdout is for JSON, they are progress.
  std::FILE* const table = invocation.json ? stderr : stdout;
  const auto show = [&](const std::string& text) {
    fmt::print(table, "{}", text);
    std::fflush(table);
  };
  setup.on_rate = [&](const Rate& rate) {
    if (profile.rates.empty()) show(table_head(profile));
    profile.rates.push_back(rate);
    show(table_row(rate));
  };
  run_local_ranks<BenchRank>(
      setup.backend, setup.ranks,
      [&](std::shared_ptr<Communicator> world) {
        const int rank = world->rank();
        return std::make_unique<BenchRank>(setup, std::move(world), make_local_device(setup.backend, rank, threads));
      },
      bench.run);
  if (invocation.json) fmt::print("{}\n", profile_json(profile).dump());
  return 0;
}

}  // namespace

int run_bench(const Invocation& invocation) {
  if (invocation.action == "step") return bench_step(invocation);
  for (const Bench& bench : kBenches)
    if (bench.name == invocation.action) return run_rates(bench, invocation);
  throw ConfigError("bench {}: is not available yet; ops, attention, comm, copies, step are", invocation.action);
}

}  // namespace untied
