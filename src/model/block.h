// A decoder block, forward and backward (Llama):  x += Wo attention(norm1(x));  x += Wd swiglu(Wg n, Wu n), n = norm2(x).
#pragma once

#include "model/execution.h"

namespace untied {

enum class Keep { kForBackward, kNothing };

// x_TE in place. With kForBackward the block's input and attention output are saved.
void block_forward(const Execution& run, const RankBatch& batch, int block, const Held& x, Keep keep);

// dx_TE in place: dL/dx_out -> dL/dx_in. Reduces the gradients of the block's two units.
void block_backward(const Execution& run, const RankBatch& batch, int block, const Tensor& dx_TE);

// The units of a block in the order in which either pass uses them.
void append_walk(const ParameterTable& table, int block, std::vector<int>& walk);

}  // namespace untied
