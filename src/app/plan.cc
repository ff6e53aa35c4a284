// `untied plan`: where every byte of a run goes, and the longest context that fits.
#include <fmt/core.h>

#include "app/prepare.h"
#include "base/error.h"
#include "plan/report.h"

namespace untied {

int run_plan(const Invocation& invocation) {
  if (!invocation.html.empty()) throw ConfigError("--html: the plan as a page is not available yet; --json is");
  if (!invocation.trace.empty()) throw ConfigError("--trace: the simulated step is not available yet; --json is");
  const Prepared prepared = prepare(invocation);
  PlanReport report{.model = prepared.model, .limits = prepared.limits};
  report.choice = choose_layout(prepared.config, prepared.model, prepared.target, prepared.limits);
  report.longest = longest_context(prepared.config, prepared.model, prepared.target, prepared.limits);
  if (invocation.json) fmt::print("{}\n", plan_json(report).dump(2));
  else fmt::print("{}", plan_text(report));
  return static_cast<int>(report.choice.fits ? ExitCode::kOk : ExitCode::kDoesNotFit);
}

}  // namespace untied
