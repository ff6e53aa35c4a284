#include "model/head_order.h"

#include <algorithm>

namespace untied {

std::vector<OrderRun> order_runs(const Parameter& parameter, const HeadSchedule& heads, dim_t head_dim, Range range) {
  std::vector<OrderRun> runs;
  if (parameter.heads == HeadAxis::kNone) {
    if (!range.empty()) runs.push_back({range.begin, range.begin, range.size()});
    return runs;
  }
  const std::vector<int>& order = parameter.heads == HeadAxis::kKeyRows ? heads.kv_order : heads.query_order;
  // Elements of one head that lie together: all its rows, or its columns of one row.
  const bool columns = parameter.heads == HeadAxis::kQueryCols;
  const dim_t per_head = columns ? head_dim : head_dim * (parameter.shape.rank() == 2 ? parameter.shape[1] : 1);
  const dim_t per_group = per_head * static_cast<dim_t>(order.size());  // one row (columns), or the whole parameter
  for (dim_t at = range.begin; at < range.end;) {
    const dim_t group = at / per_group, head = at % per_group / per_head, inside = at % per_head;
    const dim_t size = std::min(per_head - inside, range.end - at);
    const dim_t canonical = group * per_group + order[head] * per_head + inside;
    if (!runs.empty() && runs.back().canonical + runs.back().size == canonical) runs.back().size += size;
    else runs.push_back({at, canonical, size});
    at += size;
  }
  return runs;
}

}  // namespace untied
