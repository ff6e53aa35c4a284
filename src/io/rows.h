// One row of a JSONL file as a document: what a row may say, checked to the last number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/size.h"

namespace untied {

struct Document {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;  // unshifted, as many as ids; empty when the row has none: then they are the ids
};

// What tokens may be.
struct TokenRules {
  dim_t vocab = 0;              // V; ids lie in [0, V)
  bool byte_tokenizer = false;  // text is its UTF-8 bytes; without it text is refused
};

// Parses {"input_ids": [...], "labels": [...]?} or {"text": "..."}. With both, the ids are what counts.
//  - "attention_mask" may be there if it is all ones; null is as good as absent; other columns are ignored.
//  - Columns that would change the meaning ("position_ids", "loss_mask", ...) are refused by name, and so are
//    {"prompt", "completion"} and {"messages"}, which are not supported yet.
//  - Strict JSON: an unknown escape, invalid UTF-8, a column named twice or anything behind the object is an error.
// Throws InputError that starts with `where` and names the column and the index, or the byte, of the fault.
Document parse_row(std::string_view row, const TokenRules& rules, const std::string& where);

// Throws InputError for a byte that is no id of the vocabulary (V < 256). `offset` is that of text[0], for the message.
void check_bytes(std::string_view text, const TokenRules& rules, const std::string& where, dim_t offset);

}  // namespace untied
