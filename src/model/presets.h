// Published models by name: shapes only, for plans, benchmarks and models with random weights.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace untied {

std::optional<ModelConfig> find_preset(std::string_view name);
std::vector<std::string> preset_names();  // smallest family member first, `tiny` at the head

}  // namespace untied
