#include "app/bench_report.h"

#include <cmath>

#include "base/format.h"

namespace untied {
namespace {

constexpr const char* kRow = "{:28} {:>22} {:>8} {:>9} {:>9} {:>9} {:>7}\n";

Json number(std::optional<double> value) { return value && std::isfinite(*value) ? Json(*value) : Json(nullptr); }

// Four significant digits, as a GPU's 781.2 TFLOP/s and a cpu core's 0.08312 both want.
std::string text_of(std::optional<double> value) {
  if (!value) return "-";
  return *value < 1000 ? format("{:#.4g}", *value) : format("{:.0f}", *value);
}

}  // namespace

Json profile_json(const HardwareProfile& profile) {
  Json rates = Json::array();
  for (const Rate& rate : profile.rates)
    rates.push_back({{"bench", rate.bench},
                     {"name", rate.name},
                     {"shape", rate.shape},
                     {"unit", rate.unit},
                     {"burst", number(rate.burst)},
                     {"sustained", number(rate.sustained)},
                     {"limit", number(rate.limit)}});
  return {{"kind", "hardware_profile"},
          {"device", profile.device},
          {"count", profile.count},
          {"memory_bytes", profile.memory_bytes},
          {"sustained_seconds", profile.seconds},
          {"rates", std::move(rates)}};
}

std::string table_head(const HardwareProfile& profile) {
  return format("{} x {}, {}\n", profile.count, profile.device,
                format_bytes(static_cast<double>(profile.memory_bytes))) +
         format(kRow, "", "shape", "unit", "burst", "sustained", "limit", "ratio");
}

std::string table_row(const Rate& rate) {
  const double best_known = rate.sustained.value_or(rate.burst);
  return format(kRow, rate.name, rate.shape, rate.unit, text_of(rate.burst), text_of(rate.sustained),
                text_of(rate.limit), rate.limit ? format("{:.1f} %", 100 * best_known / *rate.limit) : "-");
}

}  // namespace untied
