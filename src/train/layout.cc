#include "train/layout.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "ops/attention.h"
#include "parallel/schedule.h"

namespace untied {
namespace {

// The largest power of two of rows whose tile of `width` elements stays within `bytes`, between 64 and `most`.
dim_t rows_within(dim_t bytes, dim_t width, DType dtype, dim_t most) {
  dim_t rows = 64;
  while (rows * 2 <= most && rows * 2 * width * static_cast<dim_t>(size_of(dtype)) <= bytes) rows *= 2;
  return rows;
}

// Tiles that keep the arithmetic busy and no more: on cuda GEMMs of some thousand rows and attention calls of 32 Ki rows
// reach the full rate; on cpu a tile should stay near the cache.
Tiling automatic_tiles(const Layout& layout, const ModelConfig& model) {
  const bool cuda = layout.target == Backend::kCuda;
  const dim_t MiB = dim_t{1} << 20;
  return {.query = cuda ? 32768 : 4096,
          .mlp = rows_within((cuda ? 128 : 4) * MiB, model.mlp, layout.dtype, cuda ? 32768 : 4096),
          .loss = rows_within((cuda ? 512 : 16) * MiB, model.vocab, layout.dtype, cuda ? 32768 : 4096)};
}

// Key/value buffers grow with the context, so beyond a short one a stage has few heads: one a rank, or so many that share its
// buffer. More than one brings the saved rows near less often; their tiles, of which there are about ten, stay within a quarter of
// a tile of hidden states.
int automatic_heads(const Layout& layout, const ModelConfig& model) {
  constexpr dim_t kShortContext = 65536;
  if (layout.context <= kShortContext) return static_cast<int>(model.heads);
  auto kv_slots = [&](dim_t heads) {
    return make_head_schedule(model.heads, model.kv_heads, layout.ulysses, static_cast<int>(heads)).kv_slots;
  };
  const dim_t one_a_rank = std::min<dim_t>(layout.ulysses, model.heads), group = model.heads / model.kv_heads;
  for (dim_t heads_a_rank = group; heads_a_rank > 1; --heads_a_rank) {
    const dim_t heads = layout.ulysses * heads_a_rank;
    if (group % heads_a_rank == 0 && heads <= model.heads && heads * model.head_dim <= model.hidden / 4 &&
        kv_slots(heads) <= kv_slots(one_a_rank))
      return static_cast<int>(heads);
  }
  return static_cast<int>(one_a_rank);
}

}  // namespace

Layout resolve_layout(const RunConfig& config, const ModelConfig& model, Backend target) {
  Layout layout;
  layout.target = target;
  layout.dtype = config.dtype.value_or(target == Backend::kCuda ? DType::kBF16 : DType::kF32);
  layout.ranks = std::max(1, config.ranks);
  layout.ulysses = config.ulysses > 0 ? config.ulysses : layout.ranks;
  if (layout.ulysses != layout.ranks)
    throw ConfigError(
        "--ulysses {} with {} ranks: the ranks beyond would need ring attention or data parallelism, which are "
        "not available yet; {} is",
        layout.ulysses, layout.ranks, layout.ranks);
  layout.context = config.context;
  if (layout.context < 1) throw ConfigError("--context {}: at least 1 token is needed", config.context);
  if (layout.context > kLongestContext)
    throw ConfigError("--context {}: positions are 32-bit, so at most {} tokens are legal", layout.context,
                      kLongestContext);
  layout.tokens = ceil_div(layout.context, layout.ulysses);
  layout.heads_per_stage = config.heads_per_stage > 0 ? config.heads_per_stage : automatic_heads(layout, model);
  if (layout.heads_per_stage > model.heads)
    throw ConfigError("--heads-per-stage {}: the model has {} query heads, so 1 to {} are legal",
                      layout.heads_per_stage, model.heads, model.heads);
  if (target == Backend::kCuda && model.head_dim > kCudaHeadDim)
    throw ConfigError("attention on cuda takes head sizes up to {}, the model has {}; --device cpu takes any",
                      kCudaHeadDim, model.head_dim);
  layout.tiles = automatic_tiles(layout, model);
  if (config.query_tile > 0) layout.tiles.query = config.query_tile;
  if (config.mlp_tile > 0) layout.tiles.mlp = config.mlp_tile;
  if (config.loss_tile > 0) layout.tiles.loss = config.loss_tile;
  for (dim_t* tile : {&layout.tiles.query, &layout.tiles.mlp, &layout.tiles.loss})
    *tile = std::min(*tile, layout.tokens);

  layout.save = config.save_activations == SavePolicy::kAuto ? SavePolicy::kAttention : config.save_activations;
  layout.store = config.store == "host" ? Tier::kHost : Tier::kDevice;
  layout.optimizer = config.optimizer_state == OptimizerPlace::kHost ? MemoryKind::kHost : MemoryKind::kDevice;
  layout.accumulate = config.accumulate;
  if (target == Backend::kCpu)
    layout.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / layout.ranks);
  return layout;
}

std::string describe(const Layout& layout, const ModelConfig& model) {
  return format(
      "{} rank{} ({}, {}), Ulysses {}, {} of {} heads per stage, tiles query {} mlp {} loss {}, saving {} on the {}, "
      "optimizer state on the {}",
      layout.ranks, layout.ranks == 1 ? "" : "s", name_of(layout.target), name_of(layout.dtype), layout.ulysses,
      layout.heads_per_stage, model.heads, layout.tiles.query, layout.tiles.mlp, layout.tiles.loss,
      layout.save == SavePolicy::kRecompute ? "block inputs" : "block inputs and attention outputs",
      layout.store == Tier::kHost ? "host" : "device", layout.optimizer == MemoryKind::kHost ? "host" : "device");
}

}  // namespace untied
