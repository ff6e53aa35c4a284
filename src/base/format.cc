#include "base/format.h"

#include <cmath>

namespace untied {

std::string format_bytes(double bytes) {
  if (bytes < 0) return "-" + format_bytes(-bytes);
  static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 5) bytes /= 1024, ++unit;
  if (unit == 0) return format("{:.0f} B", bytes);
  return bytes == std::floor(bytes) ? format("{:.0f} {}", bytes, units[unit]) : format("{:.2f} {}", bytes, units[unit]);
}

std::string format_tokens(long long n) {
  if (n >= (1 << 20) && n % (1 << 20) == 0) return format("{} ({}M)", n, n >> 20);
  if (n >= 1024 && n % 1024 == 0) return format("{} ({}K)", n, n >> 10);
  return format("{}", n);
}

std::string format_seconds(double s) {
  if (s < 1e-3) return format("{:.0f} us", s * 1e6);
  if (s < 1) return format("{:.0f} ms", s * 1e3);
  if (s < 120) return format("{:.1f} s", s);
  if (s < 7200) return format("{:.0f} min {:02.0f} s", std::floor(s / 60), std::fmod(s, 60));
  return format("{:.0f} h {:02.0f} min", std::floor(s / 3600), std::floor(std::fmod(s, 3600) / 60));
}

std::string format_count(double n) {
  if (n >= 1e12) return format("{:.2f} T", n / 1e12);
  if (n >= 1e9) return format("{:.2f} B", n / 1e9);
  if (n >= 1e6) return format("{:.2f} M", n / 1e6);
  if (n >= 1e4) return format("{:.1f} K", n / 1e3);
  return format("{:.0f}", n);
}

}  // namespace untied
