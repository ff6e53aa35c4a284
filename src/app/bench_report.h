// Measured rates as a person and as a program reads them.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/size.h"
#include "io/json.h"

namespace untied {

// One row. All numbers are in `unit`.
struct Rate {
  std::string bench, name, shape, unit;
  double burst = 0;                 // a few hundredths of a second from a cool start
  std::optional<double> sustained;  // after seconds of it, when clocks have fallen to what power and cooling allow
  std::optional<double> limit;      // of the hardware
};

struct HardwareProfile {
  std::string device;
  int count = 1;           // devices that took part; rates are per device
  dim_t memory_bytes = 0;  // of one
  double seconds = 0;      // that a sustained rate ran; its second half counts
  std::vector<Rate> rates;
};

Json profile_json(const HardwareProfile& profile);  // the contract's `bench --json`
std::string table_head(const HardwareProfile& profile);
std::string table_row(const Rate& rate);

}  // namespace untied
