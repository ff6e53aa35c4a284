// What the trainer sees of a sequence, token by token, for `untied data inspect`.
#pragma once

#include <string>

#include "base/size.h"
#include "io/dataset.h"

namespace untied {

// A summary line, and a row for each of the positions in `range` (cut to the sequence): index, document, position in
// the document, id, the byte it stands for when `bytes`, target.
std::string inspect(const Sequence& sequence, Range range, bool bytes);

}  // namespace untied
