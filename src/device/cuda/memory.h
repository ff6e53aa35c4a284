// The blocks that arenas live in: one plain allocation each, of exactly the size asked for.
#pragma once

#include <functional>

#include "device/device.h"

namespace untied {

// Of the current GPU, which is number `gpu`. Throws OutOfMemoryError saying what is free.
std::byte* reserve_on_device(int gpu, dim_t bytes);
void free_on_device(std::byte* block);

// Pinned, from memory node `node` if it can be (negative: any). `progress`, if set, is told of bytes done and in all.
// Throws OutOfMemoryError saying what is available.
std::byte* reserve_on_host(int node, dim_t bytes, const std::function<void(dim_t, dim_t)>& progress);
void free_on_host(std::byte* block, dim_t bytes);

}  // namespace untied
