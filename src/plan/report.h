// A plan as a person and as a program reads it.
#pragma once

#include "io/json.h"
#include "plan/choose.h"

namespace untied {

struct PlanReport {
  ModelConfig model;
  MemoryLimits limits;
  Choice choice;
  LongestContext longest;
};

std::string plan_text(const PlanReport& report);
Json plan_json(const PlanReport& report);  // the contract's `plan --json`
// One line for the start of a run.
std::string plan_summary(const Choice& choice);
Json layout_json(const Layout& layout);

}  // namespace untied
