// Strict JSON: what the standard allows and nothing else, with key order kept so that a config can be written back as it came.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace untied {

using Json = nlohmann::ordered_json;

// Parses the whole text. Throws InputError, starting with `where`, for syntax errors, invalid UTF-8, duplicate keys
// (which most parsers drop in silence), nesting deeper than 64, or anything after the value.
Json parse_json(std::string_view text, const std::string& where);

// A value as messages show it: JSON on one line, ASCII, cut when long. Whatever a file holds is safe to print this way.
std::string shown(const Json& value);

}  // namespace untied
