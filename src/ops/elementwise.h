// The small ones, over flat or row-strided tensors.
#pragma once

#include "ops/op.h"

namespace untied {

// dst = src with conversion between fp32 and bf16 (to the nearest, ties to even; NaN stays NaN); any equal shapes, last
// dimension contiguous.     alias: none.
void cast(Ctx& ctx, const Tensor& dst, const Tensor& src);

// dst += src; each fp32 or bf16; the sum is formed in fp32. Shapes as for cast.     alias: src may be dst (doubles it).
void add(Ctx& ctx, const Tensor& dst, const Tensor& src);

// sum (fp64[1]) += sum of squares of x (fp32, contiguous), formed in double in a fixed order.
// scratch: partial sums, at most fp64[1024] from the arena, a function of x's size alone.
void sum_of_squares(Ctx& ctx, const Tensor& sum, const Tensor& x);

// dst = 0 on the compute stream, counted.
void zero(Ctx& ctx, const Tensor& dst);

}  // namespace untied
