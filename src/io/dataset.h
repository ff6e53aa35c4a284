// Training data: documents from files, packed into sequences of exactly `context` positions.
// Everything the trainer knows of a sequence is in `Sequence`; `untied data inspect` prints the same thing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/size.h"

namespace untied {

inline constexpr std::int32_t kIgnored = -100;  // a label, or a target, that is not trained on

enum class LongDocuments { kSplit, kTruncate, kDrop, kError };
enum class Packing { kDocuments, kConcat };

struct DataOptions {
  dim_t context = 0;            // S
  dim_t vocab = 0;              // ids must lie in [0, vocab)
  bool byte_tokenizer = false;  // text becomes bytes; otherwise text rows are refused (no tokenizer yet)
  LongDocuments long_documents = LongDocuments::kSplit;
  Packing packing = Packing::kDocuments;
  bool shuffle = false;
  std::uint64_t seed = 0;
};

// One packed sequence. Labels are shifted here, once, on the whole sequence and inside each document: sharding never
// sees an unshifted label. The last token of a document has no target, and a piece of a split document is a document of
// its own: the label behind the cut is nobody's target. Under kConcat the whole sequence is one document and labels are
// shifted on the stream, so the last position's target is the label of the next sequence's first token.
struct Sequence {
  std::vector<std::int32_t> ids;        // [S]; padding is id 0
  std::vector<std::int32_t> targets;    // [S]; what position i should predict, or kIgnored
  std::vector<std::int32_t> positions;  // [S]; from 0 in each document
  std::vector<dim_t> document_starts;   // ascending, the first is 0; padding is a document of its own
  dim_t tokens = 0;                     // positions that are not padding
  dim_t valid_targets = 0;              // targets that are not kIgnored
};

// What was read, dropped, split and padded: said once before training.
struct DataReport {
  dim_t files = 0, repeated_files = 0;       // repeated: named again, and read again
  dim_t documents = 0, empty_documents = 0;  // of some token, of none (those are passed over)
  dim_t tokens = 0;                          // of all documents, before anything was dropped
  dim_t split_documents = 0, truncated_documents = 0, dropped_documents = 0, dropped_tokens = 0;
  dim_t sequences = 0, padding = 0, valid_targets = 0;  // of one epoch, in file order
  std::string str() const;                              // a few lines for the log
};

class Dataset {
 public:
  // `files` may be patterns ("data/*.jsonl"). Reads and validates every row (io/rows.h says what a row may be). Throws
  // InputError with file, row and position: a missing file, a pattern that matches nothing, broken JSON, an id outside
  // the vocabulary, labels of another length, text without a tokenizer, no valid target in all of the data.
  static std::shared_ptr<const Dataset> open(const std::vector<std::string>& files, const DataOptions& options);
  virtual ~Dataset() = default;

  // The sequence number `index` since the start of training; wraps, and with shuffle reorders documents by (seed,
  // epoch). Any index in any order of calls: the same index always gives the same sequence. Reads the documents from
  // their files again: InputError if those have changed. Thread safe; the ranks of a process share the returned object.
  virtual std::shared_ptr<const Sequence> sequence(dim_t index) const = 0;
  virtual const DataReport& report() const = 0;
};

}  // namespace untied
