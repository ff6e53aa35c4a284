#include "base/size.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

namespace untied {
namespace {

// Splits "12.5GiB" into the number and the unit text, lower case. nullopt when there is no number.
std::optional<std::pair<double, std::string>> split_number(std::string_view text) {
  double number = 0;
  auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  std::string unit;
  for (const char* c = rest; c != text.data() + text.size(); ++c)
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  return std::pair{number, unit};
}

std::optional<dim_t> scaled(double number, double scale) {
  const double value = number * scale;
  if (value > 0x1p62 || value != std::floor(value)) return std::nullopt;
  return static_cast<dim_t>(value);
}

}  // namespace

std::optional<dim_t> parse_tokens(std::string_view text) {
  auto parts = split_number(text);
  if (!parts) return std::nullopt;
  const auto& [number, unit] = *parts;
  if (unit.empty()) return scaled(number, 1);
  if (unit == "k" || unit == "ki") return scaled(number, 1024.0);
  if (unit == "m" || unit == "mi") return scaled(number, 1024.0 * 1024);
  if (unit == "g" || unit == "gi") return scaled(number, 1024.0 * 1024 * 1024);
  return std::nullopt;
}

std::optional<dim_t> parse_bytes(std::string_view text) {
  auto parts = split_number(text);
  if (!parts) return std::nullopt;
  const auto& [number, unit] = *parts;
  if (unit.empty() || unit == "b") return scaled(number, 1);
  static const char* const prefixes = "kmgtp";
  for (int i = 0; prefixes[i]; ++i) {
    const std::string prefix(1, prefixes[i]);
    if (unit == prefix + "b") return scaled(number, std::pow(1000.0, i + 1));
    if (unit == prefix + "ib") return scaled(number, std::pow(1024.0, i + 1));
  }
  return std::nullopt;
}

std::optional<dim_t> checked_mul(dim_t a, dim_t b) {
  dim_t product;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace untied
