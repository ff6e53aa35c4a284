// How options go together. app/options.h has seen to it that each is legal by itself.
#pragma once

#include "app/options.h"

namespace untied {

// Throws ConfigError: what is missing, what contradicts what, what would do nothing, what this version cannot do yet.
// Needs no model, and of the machine only whether it has a GPU: the rest is left to apply_method and train/layout.h.
void validate(const Invocation& invocation);

// Turns --method into numbers and fills in the degrees that were left to auto, so that ranks = C * data_parallel with
// C = ring * ulysses, the ranks of one sequence. `config.ranks` must be known by now; `heads` are the model's.
//
//   method     ring  ulysses  heads per stage  query tile
//   ulysses    1     C        all              all rows of a rank
//   upipe      1     C        C                all rows of a rank
//   ring       C     1        all              all rows of a rank
//   usp        > 1   > 1      all              all rows of a rank
//   untied     as asked for; what is left to auto is chosen later
//
// A query tile of all rows is written as config.context rows: tiles are cut to the rank's. Throws ConfigError when the
// numbers that the user gave say otherwise.
void apply_method(RunConfig& config, dim_t heads);

}  // namespace untied
