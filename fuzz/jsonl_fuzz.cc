// Any text as lines of JSON: each is parsed or refused with an InputError of one line; a value that was parsed is the same
// when it is written and parsed again, and nlohmann's own parser agrees with it.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "io/json.h"

using namespace untied;

namespace {

void parse_line(std::string_view line) {
  Json value;
  try {
    value = parse_json(line, "fuzz");
  } catch (const InputError& error) {
    CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos, "an error is one line");
    return;
  }
  CHECK(value == Json::parse(line), "same as the library's parser");
  CHECK(parse_json(value.dump(), "again") == value, "{}", value.dump());
  CHECK(shown(value).size() <= 123, "short enough for a message");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    parse_line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return 0;
}
