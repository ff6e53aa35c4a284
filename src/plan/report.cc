#include "plan/report.h"

namespace untied {
namespace {

struct Line {
  std::string name;
  dim_t bytes;
};

// The peak by category; the parts add up to the whole.
std::vector<Line> lines_of(const MemoryPeak& peak, dim_t outside) {
  std::vector<Line> lines;
  for (int c = 0; c < kNumCategories; ++c)
    if (peak.usage.bytes[c] > 0) lines.push_back({name_of(static_cast<Category>(c)), peak.usage.bytes[c]});
  if (peak.bytes > peak.usage.total()) lines.push_back({"between_buffers", peak.bytes - peak.usage.total()});
  if (outside > 0) lines.push_back({"outside_arena", outside});
  return lines;
}

std::string table(const char* title, const MemoryPeak& peak, dim_t outside, dim_t capacity) {
  auto bytes = [](dim_t b) { return format_bytes(static_cast<double>(b)); };
  std::string text = format("{}: {} of {} per rank{}\n", title, bytes(peak.bytes + outside), bytes(capacity),
                            peak.at.empty() ? "" : ", the most in: " + peak.at);
  for (const Line& line : lines_of(peak, outside)) text += format("  {:<20}{:>12}\n", line.name, bytes(line.bytes));
  return text;
}

Json json_of(const MemoryPeak& peak, dim_t outside, dim_t capacity) {
  Json categories = Json::object();
  for (const Line& line : lines_of(peak, outside)) categories[line.name] = line.bytes;
  return {{"peak_bytes", peak.bytes + outside},
          {"capacity_bytes", capacity},
          {"categories", categories},
          {"peak_at", peak.at}};
}

const char* name_of(SavePolicy policy) { return policy == SavePolicy::kRecompute ? "recompute" : "attention"; }

}  // namespace

std::string plan_summary(const Choice& choice) {
  return format("plan: {} of device and {} of host memory per rank, the most in: {}",
                format_bytes(static_cast<double>(choice.plan.device.bytes)),
                format_bytes(static_cast<double>(choice.plan.host.bytes)), choice.plan.device.at);
}

std::string plan_text(const PlanReport& report) {
  const Choice& choice = report.choice;
  const dim_t outside = outside_arena(choice.layout.target, choice.layout.ranks);
  std::string text =
      format("{} parameters, context {}\n{}\n\n", format_count(static_cast<double>(parameter_count(report.model))),
             format_tokens(choice.layout.context), describe(choice.layout, report.model));
  text += table("device memory", choice.plan.device, outside, report.limits.device) + "\n";
  text += table("host memory", choice.plan.host, 0, report.limits.host) + "\n";
  text += choice.fits ? "fits\n" : format("does not fit: {}\n", choice.limited_by);
  text += format("longest context that fits: {} tokens; one longer is limited by {}\n",
                 format_tokens(report.longest.tokens), report.longest.limited_by);
  return text;
}

Json layout_json(const Layout& layout) {
  return {{"device", untied::name_of(layout.target)},
          {"dtype", untied::name_of(layout.dtype)},
          {"ranks", layout.ranks},
          {"ring", 1},
          {"ulysses", layout.ulysses},
          {"data_parallel", layout.ranks / layout.ulysses},
          {"context", layout.context},
          {"tokens_per_rank", layout.tokens},
          {"heads_per_stage", layout.heads_per_stage},
          {"query_tile", layout.tiles.query},
          {"mlp_tile", layout.tiles.mlp},
          {"loss_tile", layout.tiles.loss},
          {"save_activations", name_of(layout.save)},
          {"store", untied::name_of(layout.store)},
          {"optimizer_state", layout.optimizer == MemoryKind::kHost ? "host" : "device"},
          {"accumulate", layout.accumulate}};
}

Json plan_json(const PlanReport& report) {
  const Choice& choice = report.choice;
  return {{"fits", choice.fits},
          {"device",
           json_of(choice.plan.device, outside_arena(choice.layout.target, choice.layout.ranks), report.limits.device)},
          {"host", json_of(choice.plan.host, 0, report.limits.host)},
          {"disk",
           {{"peak_bytes", 0}, {"capacity_bytes", nullptr}, {"categories", Json::object()}, {"peak_at", nullptr}}},
          {"step_seconds", nullptr},  // not simulated yet
          {"tokens_per_second_per_rank", nullptr},
          {"longest_context", report.longest.tokens},
          {"limited_by", choice.fits ? report.longest.limited_by : choice.limited_by},
          {"layout", layout_json(choice.layout)}};
}

}  // namespace untied
