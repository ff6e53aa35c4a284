// Text formatting (libfmt: std::format is not in g++ 12), and how sizes, times and rates are printed everywhere.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace untied {

using fmt::format;

std::string format_bytes(double bytes);  // "1.87 GiB", "512 KiB", "17 B"
std::string format_tokens(long long n);  // "131072 (128K)", "1000"
std::string format_seconds(double s);    // "12 ms", "3.4 s", "2 h 05 min"
std::string format_count(double n);      // "8.03 B", "1.2 M", "512"

}  // namespace untied
