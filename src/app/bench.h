// The parts of `untied bench`. A bench other than `step` runs on every rank that takes part and measures row by row.
#pragma once

#include "app/bench_rank.h"
#include "app/options.h"

namespace untied {

void bench_ops(BenchRank& rank);
void bench_attention(BenchRank& rank);
void bench_comm(BenchRank& rank);
void bench_copies(BenchRank& rank);

int bench_step(const Invocation& invocation);

}  // namespace untied
