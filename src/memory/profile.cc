#include "memory/profile.h"

#include <algorithm>
#include <map>
#include <utility>

namespace untied {

ProfileSummary summarize(Device& device, const Profile& profile) {
  std::map<std::pair<std::string, StreamKind>, ProfileSummary::Row> by_op;
  ProfileSummary summary;
  const Profile::Span *first = nullptr, *last = nullptr;
  double busy = 0;
  for (const Profile::Span& span : profile.spans) {
    const double seconds = device.seconds_between(span.begin, span.end);
    ProfileSummary::Row& row = by_op[{span.op, span.stream}];
    row.op = span.op, row.stream = span.stream;
    ++row.calls;
    row.seconds += seconds;
    if (span.stream != StreamKind::kCompute) continue;
    if (!first) first = &span;
    last = &span;
    busy += seconds;
  }
  if (first) {
    summary.seconds = device.seconds_between(first->begin, last->end);
    summary.waiting = std::max(0.0, summary.seconds - busy);
  }
  for (auto& [key, row] : by_op) summary.rows.push_back(std::move(row));
  std::sort(summary.rows.begin(), summary.rows.end(),
            [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return summary;
}

}  // namespace untied
