// Where a step's time goes: a profile summed up.
#pragma once

#include <string>
#include <vector>

#include "memory/context.h"

namespace untied {

struct ProfileSummary {
  struct Row {
    std::string op;
    StreamKind stream;
    std::int64_t calls = 0;
    double seconds = 0;  // from the op's place in its stream to its end; of a collective also the wait for other ranks
  };
  std::vector<Row> rows;  // the longest first
  double seconds = 0;     // from the first span of the compute stream to the end of its last
  double waiting = 0;     // of it, when the compute stream had none: it waited for copies, gathers, or the host
};

// The device has reached all marks (synchronize).
ProfileSummary summarize(Device& device, const Profile& profile);

}  // namespace untied
