// Any text as a config.json: read or refused with an InputError; what was read survives being written and read again.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "io/hf_config.h"

using namespace untied;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const ModelConfig config = read_hf_config(parse_json({reinterpret_cast<const char*>(data), size}, "fuzz"), "fuzz");
    CHECK(parameter_count(config) > 0, "sizes that passed do not overflow");
    const Json written = hf_config_json(config);
    const ModelConfig again = read_hf_config(parse_json(written.dump(), "written"), "written");
    CHECK(hf_config_json(again) == written, "{}", written.dump());
  } catch (const InputError&) {}
  return 0;
}
