// From options to the parts of a run, as train, plan, verify and bench need them.
#pragma once

#include "app/commands.h"
#include "io/checkpoint.h"
#include "plan/choose.h"
#include "train/run.h"

namespace untied {

struct Prepared {
  RunConfig config;  // degrees and method worked out
  ModelConfig model;
  std::shared_ptr<const CheckpointReader> checkpoint;  // null for a preset
  Backend target = Backend::kCpu;
  MemoryLimits limits;
};

// Reads the model's config (not its weights) and settles devices and ranks.
Prepared prepare(const Invocation& invocation);

// What computes: auto takes what it finds.
Backend backend_here(DeviceKind asked);

// What there is on this machine for each of config.ranks ranks, or what the user says; config.ranks is known.
MemoryLimits limits_here(const RunConfig& config, Backend target);

// Chooses the layout; throws DoesNotFitError when nothing fits.
Choice choose_or_throw(const Prepared& prepared);

// A run with the chosen layout's memory and the model's weights; data and log are left to the caller.
Run planned_run(const Prepared& prepared, const Choice& choice);

}  // namespace untied
