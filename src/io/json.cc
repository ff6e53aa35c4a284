#include "io/json.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"

namespace untied {
namespace {

constexpr std::size_t kMaxDepth = 64;

// A pointer into the text that also tells how far the parser has come: its events do not carry a position.
class Cursor {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }
  bool operator!=(const Cursor& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// "column 7", or "line 3, column 7" when the text has several lines.
std::string place_of(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  const std::string column = format("column {}", std::max<std::size_t>(before.size() - line_start, 1));
  if (text.find('\n') == std::string_view::npos) return column;
  return format("line {}, {}", std::count(before.begin(), before.end(), '\n') + 1, column);
}

std::string cut(std::string_view text) {
  constexpr std::size_t kMax = 120;
  return std::string(text.substr(0, kMax)) + (text.size() > kMax ? "..." : "");
}

// What the library says, without its own prefix "[json.exception.parse_error.101] parse error at line 1, column 2: ".
// It quotes the file, in places byte by byte.
std::string reason(const std::exception& error) {
  std::string_view text = error.what();
  if (auto end = text.find("] "); end != std::string_view::npos) text.remove_prefix(end + 2);
  if (text.starts_with("parse error at "))
    if (auto end = text.find(": "); end != std::string_view::npos) text.remove_prefix(end + 2);
  std::string line = cut(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return line;
}

// Builds the value from the parser's events. The library's own builder searches an object for each key that it adds:
// quadratic in the number of tensors of a checkpoint.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const std::string& where) : text_(text), where_(where), reached_(text.data()) {}

  Json build() {
    Json::sax_parse(Cursor(text_.data(), &reached_), Cursor(text_.data() + text_.size(), &reached_), this);
    return std::move(root_);
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // not in JSON text
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Open& object = open_.back();
    if (!object.keys.insert(name).second) fail(format("the key {} occurs twice in one object", shown(name)));
    object.key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    fail(reason(error));
  }

 private:
  struct Open {
    Json* value;
    std::unordered_set<std::string> keys;  // so far
    std::string key = {};                  // of the value that comes next
  };

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (open_.size() == kMaxDepth) fail(format("nested deeper than {} levels", kMaxDepth));
    open_.push_back({place(std::move(value)), {}});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  // The address stays valid while the value is open: until it closes, nothing is appended to what contains it.
  Json* place(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    Open& parent = open_.back();
    if (auto* array = parent.value->get_ptr<Json::array_t*>()) return &array->emplace_back(std::move(value));
    auto& object = parent.value->get_ref<Json::object_t&>();
    return &object.emplace_back(std::move(parent.key), std::move(value)).second;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError("{}: not valid JSON at {}: {}", where_, place_of(text_, reached_ - text_.data()), what);
  }

  std::string_view text_;
  const std::string& where_;
  const char* reached_;
  std::vector<Open> open_;  // innermost last
  Json root_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  // The library takes a NUL for the end of the text, whatever follows.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    throw InputError("{}: not valid JSON at {}: a NUL byte", where, place_of(text, nul + 1));
  return Builder(text, where).build();
}

std::string shown(const Json& value) {
  return cut(value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
}

}  // namespace untied
