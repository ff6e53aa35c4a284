#include "io/inspect.h"

#include <algorithm>

#include "base/format.h"

namespace untied {
namespace {

std::string byte_text(std::int32_t id) {
  switch (id) {
    case '\n': return "'\\n'";
    case '\r': return "'\\r'";
    case '\t': return "'\\t'";
    case '\'': return "'\\''";
    case '\\': return "'\\\\'";
  }
  if (id < 0 || id > 255) return "";
  return id >= 32 && id < 127 ? format("'{}'", static_cast<char>(id)) : format("'\\x{:02x}'", id);
}

// The documents of the sequence, without the padding behind them.
dim_t count_documents(const Sequence& s) {
  const auto& starts = s.document_starts;
  return std::lower_bound(starts.begin(), starts.end(), s.tokens) - starts.begin();
}

}  // namespace

std::string inspect(const Sequence& s, Range range, bool bytes) {
  const dim_t length = static_cast<dim_t>(s.ids.size());
  range = intersect(range, {0, length});
  std::string out = format("{} positions: {} tokens in {} documents, {} targets, {} of padding\n", length, s.tokens,
                           count_documents(s), s.valid_targets, length - s.tokens);
  const auto row = [&](auto index, auto document, auto position, auto id, auto byte, auto target) {
    out += format("{:>10} {:>8} {:>10} {:>10} ", index, document, position, id);
    if (bytes) out += format("{:>7} ", byte);
    out += format("{:>10}", target);
  };
  row("index", "document", "position", "id", "byte", "target");
  out += '\n';
  const auto& starts = s.document_starts;
  for (dim_t i = range.begin; i < range.end; ++i) {
    const bool padding = i >= s.tokens, ignored = s.targets[i] == kIgnored;
    const dim_t document = std::upper_bound(starts.begin(), starts.end(), i) - starts.begin() - 1;
    row(i, padding ? "padding" : format("{}", document), s.positions[i], s.ids[i], padding ? "" : byte_text(s.ids[i]),
        ignored ? "ignored" : format("{}", s.targets[i]));
    if (const std::string target = bytes && !ignored ? byte_text(s.targets[i]) : ""; !target.empty())
      out += ' ' + target;
    out += '\n';
  }
  return out;
}

}  // namespace untied
