#pragma once

#include "ops/op.h"

namespace untied {

// Table look-up.  x_TE = table_VE[ids_T].    x, table of one activation type.
// ids int32 in [0, V): checked when the data is read, and again by the cpu kernel, which throws InputError with the token.
// alias: none.     cost: T*E elements read and written.
void embedding_forward(Ctx& ctx, const Tensor& x_TE, const Tensor& ids_T, const Tensor& table_VE);

// dtable_VE[ids_T] += dx_TE.    dtable fp32, cleared or written by the caller before; dx an activation.
// determinism on the cpu: tokens are added in order, for any number of threads.
// alias: none.     cost: dx read; a row of dtable read and written per token.
void embedding_backward(Ctx& ctx, const Tensor& dtable_VE, const Tensor& ids_T, const Tensor& dx_TE);

}  // namespace untied
