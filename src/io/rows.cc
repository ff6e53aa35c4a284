// The parser is nlohmann's, driven as a stream of events: a row of a hundred megabytes becomes a vector of ids
// directly, where a tree of JSON values would take four times the memory. Only runs of plain integers in a list are
// read here, five times as fast: the first pass over tens of gigabytes of token ids is spent on nothing else.
#include "io/rows.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "base/error.h"
#include "io/dataset.h"
#include "io/json.h"

namespace untied {
namespace {

constexpr int kMaxDepth = 64;  // as in parse_json

enum class Column { kIds, kLabels, kMask, kText, kRefused, kOther };

// Columns that some trainer reads and this one does not: to ignore them would train on something else without a word.
struct RefusedColumn {
  std::string_view name, why;
};
constexpr std::array kRefusedColumns = {
    RefusedColumn{"position_ids", "positions run from 0 in each document"},
    RefusedColumn{"seq_lengths", "one row is one document, and packing is done here"},
    RefusedColumn{"loss_mask", "mark ignored tokens by -100 in labels"},
    RefusedColumn{"completion_mask", "mark ignored tokens by -100 in labels"},
    RefusedColumn{"assistant_masks", "mark ignored tokens by -100 in labels"},
};

Column column_of(std::string_view name) {
  if (name == "input_ids") return Column::kIds;
  if (name == "labels") return Column::kLabels;
  if (name == "attention_mask") return Column::kMask;
  if (name == "text") return Column::kText;
  const bool refused = std::any_of(kRefusedColumns.begin(), kRefusedColumns.end(),
                                   [&](const RefusedColumn& column) { return column.name == name; });
  return refused ? Column::kRefused : Column::kOther;
}

bool is_list(Column column) { return column == Column::kIds || column == Column::kLabels || column == Column::kMask; }

std::string shortened(const std::string& text) { return text.size() <= 60 ? text : text.substr(0, 57) + "..."; }

// Where the parser is in the row, shared with whoever reads ahead for it.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  explicit Cursor(const char** at) : at_(at) {}
  reference operator*() const { return **at_; }
  Cursor& operator++() {
    ++*at_;
    return *this;
  }
  bool operator==(const Cursor& other) const { return *at_ == *other.at_; }
  bool operator!=(const Cursor& other) const { return *at_ != *other.at_; }

 private:
  const char** at_;
};

// Receives the events of one row. depth_ 0 is outside the row's object, 1 in it, 2 in a list of ids (or in any other
// value, which is passed over).
class RowHandler {
 public:
  RowHandler(std::string_view row, const TokenRules& rules, const std::string& where)
      : begin_(row.data()), end_(row.data() + row.size()), at_(row.data()), rules_(rules), where_(where) {}

  Document parse() {
    Json::sax_parse(Cursor(&at_), Cursor(&end_), this);
    return finish();
  }

  // --- what sax_parse calls ---

  bool null() {
    if (in_list()) wrong_element("null");
    if (depth_ == 0) not_an_object();
    return true;
  }
  bool boolean(bool value) {
    scalar(value ? "true" : "false");
    return true;
  }
  bool number_integer(std::int64_t value) {
    in_list() ? integer(value) : scalar("a number");
    return true;
  }
  bool number_unsigned(std::uint64_t value) {
    if (!in_list()) {
      scalar("a number");
    } else if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      wrong_element(format("{}", value));
    } else {
      integer(static_cast<std::int64_t>(value));
    }
    return true;
  }
  bool number_float(double, const std::string& text) {  // also an integer beyond 64 bits
    in_list() ? wrong_element(shortened(text)) : scalar("a number");
    return true;
  }
  bool string(std::string& value) {
    if (depth_ == 1 && column_ == Column::kText) {
      text_ = std::move(value);
      text_seen_ = true;
    } else {
      scalar("a string");
    }
    return true;
  }
  bool binary(Json::binary_t&) { return true; }  // not in JSON

  bool start_object(std::size_t) {
    if (depth_ > 0) scalar("an object");
    return enter();
  }
  bool start_array(std::size_t) {
    if (depth_ == 1 && is_list(column_)) {
      list_open_ = true;
      (column_ == Column::kIds ? ids_seen_ : column_ == Column::kLabels ? labels_seen_ : mask_seen_) = true;
      ++depth_;
      take_integers();
      return true;
    }
    scalar("a list");
    return enter();
  }
  bool end_object() { return leave(); }
  bool end_array() { return leave(); }

  bool key(std::string& name) {
    if (depth_ != 1) return true;
    if (std::find(columns_seen_.begin(), columns_seen_.end(), name) != columns_seen_.end())
      fail("column {} is there twice", shown(name));
    columns_seen_.push_back(name);
    column_ = column_of(name);
    return true;
  }

  template <class Exception>
  bool parse_error(std::size_t, const std::string&, const Exception& error) {
    // "[json.exception...] parse error at line 1, column 5: syntax error ...; last read: '<all of a long token>'"
    std::string_view what = error.what();
    if (const auto start = what.find("syntax error"); start != what.npos) what.remove_prefix(start);
    if (const auto end = what.find("; last read"); end != what.npos) what = what.substr(0, end);
    throw InputError("{}, byte {}: {}", where_, at_ - begin_, what);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw InputError("{}: {}", where_, format(text, std::forward<Args>(args)...));
  }
  [[noreturn]] void not_an_object() const {
    fail("a row is an object, {{\"input_ids\": [...]}} or {{\"text\": \"...\"}}");
  }

  bool in_list() const { return list_open_ && depth_ == 2; }
  const std::string& name() const { return columns_seen_.back(); }
  dim_t index() const {  // of the element at hand
    if (column_ == Column::kMask) return mask_size_;
    return static_cast<dim_t>((column_ == Column::kIds ? document_.ids : document_.labels).size());
  }

  // A value that is none of the integers of a list, nor the text: right only in columns that are passed over.
  void scalar(std::string_view kind) {
    if (depth_ == 0) not_an_object();
    if (in_list()) wrong_element(kind);
    if (depth_ != 1) return;
    if (is_list(column_)) fail("{} is {} where a list of integers is due", name(), kind);
    if (column_ == Column::kText) fail("text is {} where a string is due", kind);
    if (column_ == Column::kRefused) {
      for (const auto& [refused, why] : kRefusedColumns)
        if (refused == name()) fail("{} is not supported: {}", refused, why);
    }
    if (name() == "prompt" || name() == "completion") unsupported_ = "{\"prompt\", \"completion\"}";
    if (name() == "messages") unsupported_ = "{\"messages\"}";
  }

  [[noreturn]] void wrong_element(std::string_view value) const {
    if (column_ == Column::kMask)
      fail("attention_mask[{}] is {}: only ones are legal, so leave padding out of input_ids", index(), value);
    if (column_ == Column::kLabels)
      fail("labels[{}] is {}: a label is {} (ignored) or an id in [0, {})", index(), value, kIgnored, rules_.vocab);
    fail("input_ids[{}] is {}: an id is an integer in [0, {}), the vocabulary", index(), value, rules_.vocab);
  }

  void integer(std::int64_t value) {
    const bool is_id = value >= 0 && value < rules_.vocab;
    if (column_ == Column::kMask ? value != 1 : !is_id && !(column_ == Column::kLabels && value == kIgnored))
      wrong_element(format("{}", value));
    if (column_ == Column::kMask) {
      ++mask_size_;
    } else {
      (column_ == Column::kIds ? document_.ids : document_.labels).push_back(static_cast<std::int32_t>(value));
    }
  }

  // Reads integers of the list that has just been opened, as long as they are plain: digits, then a comma and something
  // behind it, or the end of the list. The parser goes on from there, and alone judges whatever was not plain.
  void take_integers() {
    const auto skip_space = [this](const char* at) {
      while (at < end_ && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n')) ++at;
      return at;
    };
    for (;;) {
      const char* const start = skip_space(at_);
      const char* const digits = start < end_ && *start == '-' ? start + 1 : start;
      const char* stop = digits;
      std::int64_t value = 0;
      while (stop < end_ && *stop >= '0' && *stop <= '9' && stop - digits < 18) value = 10 * value + (*stop++ - '0');
      if (stop == digits || (*digits == '0' && stop - digits > 1)) return;

      const char* const behind = skip_space(stop);
      if (behind == end_ || (*behind != ',' && *behind != ']')) return;
      if (*behind == ',') {
        const char* const next = skip_space(behind + 1);
        if (next == end_ || *next == ']') return;  // without this element the parser would miss that comma
      }
      integer(digits == start ? value : -value);
      at_ = *behind == ',' ? behind + 1 : behind;
      if (*behind == ']') return;
    }
  }

  bool enter() {
    if (++depth_ > kMaxDepth) fail("nested deeper than {}", kMaxDepth);
    return true;
  }
  bool leave() {
    if (--depth_ == 1) list_open_ = false;
    return true;
  }

  Document finish() {
    if (ids_seen_) {
      if (labels_seen_ && document_.labels.size() != document_.ids.size())
        fail("{} labels for {} input_ids: labels are one for each id, not shifted", document_.labels.size(),
             document_.ids.size());
      if (mask_seen_ && mask_size_ != static_cast<dim_t>(document_.ids.size()))
        fail("attention_mask has {} entries for {} input_ids", mask_size_, document_.ids.size());
      return std::move(document_);
    }
    if (labels_seen_ || mask_seen_) fail("{} without input_ids", labels_seen_ ? "labels" : "attention_mask");
    if (text_seen_) {
      if (!rules_.byte_tokenizer)
        fail("text without a tokenizer: `--tokenizer bytes` trains on its bytes, or give token ids as input_ids");
      check_bytes(text_, rules_, where_ + ", text", 0);
      const auto* bytes = reinterpret_cast<const unsigned char*>(text_.data());
      document_.ids.assign(bytes, bytes + text_.size());
      return std::move(document_);
    }
    if (!unsupported_.empty())
      fail("rows of {} are not supported yet: give input_ids (with labels), or text", unsupported_);
    fail("the row has neither input_ids nor text");
  }

  const char* const begin_;
  const char* end_;
  const char* at_;  // where the parser is
  const TokenRules& rules_;
  const std::string& where_;
  int depth_ = 0;
  bool list_open_ = false;
  Column column_ = Column::kOther;
  std::vector<std::string> columns_seen_;

  Document document_;
  std::string text_;
  dim_t mask_size_ = 0;
  bool ids_seen_ = false, labels_seen_ = false, mask_seen_ = false, text_seen_ = false;
  std::string_view unsupported_;
};

}  // namespace

Document parse_row(std::string_view row, const TokenRules& rules, const std::string& where) {
  // nlohmann takes a zero byte for the end of its input and would drop what follows.
  if (const auto zero = row.find('\0'); zero != row.npos)
    throw InputError("{}, byte {}: a zero byte in JSON", where, zero + 1);
  return RowHandler(row, rules, where).parse();
}

void check_bytes(std::string_view text, const TokenRules& rules, const std::string& where, dim_t offset) {
  if (rules.vocab >= 256) return;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int byte = static_cast<unsigned char>(text[i]);
    if (byte >= rules.vocab)
      throw InputError("{}: byte {} is {}, and the vocabulary [0, {}) does not hold all bytes", where,
                       offset + static_cast<dim_t>(i), byte, rules.vocab);
  }
}

}  // namespace untied
