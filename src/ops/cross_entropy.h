#pragma once

#include "ops/op.h"

namespace untied {

// Loss of one tile of rows, and its gradient in place.
// loss (fp64[1]) += sum over rows with target >= 0 of (log sum exp(logits) - logits[target]), rows in order.
// dlogits: logits_RV = scale * (softmax(logits) - onehot(target)), zero in rows whose target is negative; skipped when scale
// is 0 (evaluation), where logits are left undefined.
// in : logits activations (exp in fp32); targets_R int32 < V, checked by the cpu kernel, which throws InputError with the row.
// scale = 1 / valid targets of the whole step. The caller scales the summed loss.
// scratch: the rows' losses, fp64[R] from the arena.     cost: logits read, and written unless scale is 0.
void cross_entropy(Ctx& ctx, const Tensor& loss, const Tensor& logits_RV, const Tensor& targets_R, double scale);

}  // namespace untied
