#pragma once

#include "train/run.h"

namespace untied {

// What the run's options ask for after each step: the log, then evaluation.
std::vector<std::unique_ptr<Hook>> make_hooks(const Run& run);

}  // namespace untied
