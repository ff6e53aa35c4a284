// Joins the parts: documents.h says where documents are, packing.h which of their tokens make a sequence.
#include "io/dataset.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "io/documents.h"
#include "io/packing.h"

namespace untied {
namespace {

// The values of the last few keys.
template <class Key, class Value>
class Recent {
 public:
  explicit Recent(std::size_t capacity) : capacity_(capacity) {}

  const Value* find(const Key& key) const {
    for (const auto& [known, value] : entries_)
      if (known == key) return &value;
    return nullptr;
  }
  const Value& add(const Key& key, Value value) {
    if (entries_.size() == capacity_) entries_.pop_back();
    return entries_.emplace_front(key, std::move(value)).second;
  }

 private:
  std::size_t capacity_;
  std::deque<std::pair<Key, Value>> entries_;
};

// Enough for the data-parallel groups of a process, in at most 48 MiB, or two sequences when they are longer.
std::size_t sequences_kept(dim_t context) { return std::clamp((dim_t{1} << 22) / context, dim_t{2}, dim_t{8}); }

// What the first pass leaves: 32 bytes per document.
struct Documents {
  std::vector<DataFile> files;
  std::vector<Place> places;
  std::vector<dim_t> lengths;
};

class PackedDataset final : public Dataset {
 public:
  PackedDataset(Documents documents, const DataOptions& options, const PackOptions& pack_options, DataReport report)
      : options_(options), pack_options_(pack_options), report_(report), lengths_(std::move(documents.lengths)),
        places_(std::move(documents.places)),
        reader_(std::move(documents.files), {options.vocab, options.byte_tokenizer}),
        sequences_(sequences_kept(options.context)) {}

  std::shared_ptr<const Sequence> sequence(dim_t index) const override {
    CHECK(index >= 0, "sequence {}", index);
    const std::lock_guard lock(mutex_);
    if (const auto* known = sequences_.find(index)) return *known;
    const auto [epoch, i] = locate(index);
    return sequences_.add(index, std::make_shared<const Sequence>(build(packed(epoch), i)));
  }

  const DataReport& report() const override { return report_; }

 private:
  struct Location {
    dim_t epoch, sequence;
  };

  // Next-fit of another order may fill another number of sequences: with shuffle an epoch's first index is known only
  // when all epochs before it have been packed. That costs a fraction of a second per epoch and million documents,
  // once, on resume.
  Location locate(dim_t index) const {
    if (!options_.shuffle) return {0, index % report_.sequences};
    if (options_.packing == Packing::kConcat) return {index / report_.sequences, index % report_.sequences};
    while (epoch_starts_.back() <= index) {
      const dim_t epoch = static_cast<dim_t>(epoch_starts_.size()) - 1;
      epoch_starts_.push_back(epoch_starts_.back() + packed(epoch).sequences());
    }
    const auto after = std::upper_bound(epoch_starts_.begin(), epoch_starts_.end(), index);
    return {after - epoch_starts_.begin() - 1, index - *(after - 1)};
  }

  const Packed& packed(dim_t epoch) const {
    if (const Packed* known = packings_.find(epoch)) return *known;
    std::vector<dim_t> order;
    if (options_.shuffle) order = shuffled_order(static_cast<dim_t>(lengths_.size()), options_.seed, epoch);
    return packings_.add(epoch, pack(lengths_, order, pack_options_));
  }

  void append(const Piece& piece, std::vector<std::int32_t>& ids, std::vector<std::int32_t>& labels) const {
    reader_.append(places_[piece.document], lengths_[piece.document], piece.tokens, ids, labels);
  }

  Sequence build(const Packed& packed, dim_t i) const {
    const bool concat = options_.packing == Packing::kConcat;
    Sequence out;
    out.ids.reserve(options_.context);
    out.targets.reserve(options_.context + 1);
    for (const Piece& piece : packed.sequence(i)) {
      if (!concat || out.ids.empty()) out.document_starts.push_back(static_cast<dim_t>(out.ids.size()));
      append(piece, out.ids, out.targets);  // labels, not yet shifted
    }
    out.tokens = static_cast<dim_t>(out.ids.size());

    // The shift: position i predicts what stands at i + 1, if that is of the same document.
    std::int32_t next_label = kIgnored;
    if (concat && i + 1 < packed.sequences()) next_label = first_label(packed.sequence(i + 1).front());
    out.targets.erase(out.targets.begin());
    out.targets.push_back(next_label);
    for (const dim_t start : out.document_starts)
      if (start > 0) out.targets[start - 1] = kIgnored;
    out.valid_targets =
        static_cast<dim_t>(out.targets.size()) - std::count(out.targets.begin(), out.targets.end(), kIgnored);

    if (out.tokens < options_.context) out.document_starts.push_back(out.tokens);
    out.ids.resize(options_.context, 0);
    out.targets.resize(options_.context, kIgnored);
    fill_positions(out);
    return out;
  }

  std::int32_t first_label(Piece piece) const {
    piece.tokens.end = piece.tokens.begin + 1;
    std::vector<std::int32_t> ids, labels;
    append(piece, ids, labels);
    return labels.front();
  }

  static void fill_positions(Sequence& out) {
    out.positions.resize(out.ids.size());
    auto start = out.document_starts.begin();
    std::int32_t position = 0;
    for (dim_t i = 0; i < static_cast<dim_t>(out.positions.size()); ++i) {
      if (start != out.document_starts.end() && *start == i) position = 0, ++start;
      out.positions[i] = position++;
    }
  }

  const DataOptions options_;
  const PackOptions pack_options_;
  const DataReport report_;
  const std::vector<dim_t> lengths_;
  const std::vector<Place> places_;

  mutable std::mutex mutex_;  // of all below
  mutable DocumentReader reader_;
  mutable std::vector<dim_t> epoch_starts_ = {0};  // the first index of each epoch known so far, and of the next one
  mutable Recent<dim_t, Packed> packings_{2};      // two: around an epoch's end the ranks are in both
  mutable Recent<dim_t, std::shared_ptr<const Sequence>> sequences_;
};

void check_options(const DataOptions& options) {
  constexpr dim_t kMax = std::numeric_limits<std::int32_t>::max();  // ids and positions are 32-bit
  if (options.context < 1 || options.context > kMax)
    throw ConfigError("--context {}: legal are 1 to {}", options.context, kMax);
  if (options.vocab < 1 || options.vocab > kMax)
    throw ConfigError("a vocabulary of {}: legal are 1 to {}", options.vocab, kMax);
}

dim_t count_valid(std::span<const std::int32_t> labels) {
  return static_cast<dim_t>(labels.size()) - std::count(labels.begin(), labels.end(), kIgnored);
}

// Targets that training will see of a document packed by itself.
dim_t count_targets(const FoundDocument& document, const PackOptions& options) {
  dim_t count = 0;
  for_each_piece(document.tokens, options, [&](Range piece) {
    const auto followers = piece.size() - 1;  // all but a piece's first label are some position's target
    count += document.labels.empty() ? followers : count_valid(document.labels.subspan(piece.begin + 1, followers));
  });
  return count;
}

std::string plural(dim_t n, std::string_view noun) { return format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

}  // namespace

std::shared_ptr<const Dataset> Dataset::open(const std::vector<std::string>& files, const DataOptions& options) {
  check_options(options);
  const PackOptions pack_options{options.context, options.packing, options.long_documents};
  const bool concat = options.packing == Packing::kConcat;

  Documents documents{.files = find_data_files(files), .places = {}, .lengths = {}};
  DataReport report;
  report.files = static_cast<dim_t>(documents.files.size());
  std::set<std::string> distinct;
  for (const DataFile& file : documents.files) distinct.insert(file.path);
  report.repeated_files = report.files - static_cast<dim_t>(distinct.size());

  const TokenRules rules{options.vocab, options.byte_tokenizer};
  scan_documents(documents.files, rules, [&](const FoundDocument& document) {
    if (document.tokens == 0) {
      ++report.empty_documents;
      return;
    }
    if (!concat && options.long_documents == LongDocuments::kError && document.tokens > options.context)
      throw InputError("{}: {} tokens, more than the context of {}: `--long-documents` split, truncate or drop",
                       document.where, document.tokens, format_tokens(options.context));
    if (concat) {  // on the stream, every label but the very first is a target
      report.valid_targets += document.labels.empty() ? document.tokens : count_valid(document.labels);
      const bool stream_start = report.documents == 0;
      if (stream_start && (document.labels.empty() || document.labels[0] != kIgnored)) --report.valid_targets;
    } else {
      report.valid_targets += count_targets(document, pack_options);
    }
    ++report.documents;
    report.tokens += document.tokens;
    documents.places.push_back(document.place);
    documents.lengths.push_back(document.tokens);
  });

  const Packed packed = pack(documents.lengths, {}, pack_options);
  report.sequences = packed.sequences();
  report.padding = packed.padding;
  report.split_documents = packed.split_documents;
  report.truncated_documents = packed.truncated_documents;
  report.dropped_documents = packed.dropped_documents;
  report.dropped_tokens = packed.dropped_tokens;
  if (report.valid_targets == 0)
    throw InputError("no target to train on in {} with {} ({} dropped): all labels are {}, or first of a document",
                     plural(report.documents, "document"), plural(report.tokens, "token"), report.dropped_tokens,
                     kIgnored);
  return std::make_shared<PackedDataset>(std::move(documents), options, pack_options, report);
}

std::string DataReport::str() const {
  std::string out =
      format("data: {}, {}, {}", plural(files, "file"), plural(documents, "document"), plural(tokens, "token"));
  out +=
      format("\npacked: {} per epoch, {} to train on", plural(sequences, "sequence"), plural(valid_targets, "target"));
  if (padding > 0) {
    const double share = static_cast<double>(padding) / static_cast<double>(tokens - dropped_tokens + padding);
    out += format(", {} of padding ({:.2g} %)", plural(padding, "position"), 100 * share);
  }
  const auto line = [&out](dim_t n, std::string_view noun, std::string_view what) {
    if (n > 0) out += format("\n{} {}", plural(n, noun), what);
  };
  line(repeated_files, "file", "named more than once: read as often");
  line(empty_documents, "empty document", "skipped");
  line(split_documents, "document", "longer than the context: split");
  line(truncated_documents, "document", "longer than the context: truncated");
  line(dropped_documents, "document", "longer than the context: dropped");
  line(dropped_tokens, "token", "lost by that");
  return out;
}

}  // namespace untied
