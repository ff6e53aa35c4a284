// The checks that front halves share. Each message names the tensors with their types and shapes.
#pragma once

#include "ops/op.h"

namespace untied {

// The elements of a row lie side by side and rows do not run into each other: what kernels assume of every view.
bool has_plain_rows(const Tensor& t);

// Whether two views share memory. Exact for views with plain rows of one pitch (column slices of one buffer are apart);
// otherwise by the range of addresses, which may call views shared that only interleave.
bool overlap(const Tensor& a, const Tensor& b);

// Apart, or the very same view: what an element-wise op may work in place on.
bool apart_or_same(const Tensor& a, const Tensor& b);

}  // namespace untied

#define CHECK_RANK(tensor, dims) \
  CHECK((tensor).rank() == (dims), "{} is {}, not of {} dimensions", #tensor, (tensor).str(), dims)

#define CHECK_ACTIVATION(tensor) \
  CHECK(is_activation(tensor), "{} is {}, neither fp32 nor bf16", #tensor, (tensor).str())

#define CHECK_DTYPE(tensor, wanted) \
  CHECK((tensor).dtype() == (wanted), "{} is {}, not {}", #tensor, (tensor).str(), name_of(wanted))

#define CHECK_SAME_DTYPE(a, b) CHECK((a).dtype() == (b).dtype(), "{} is {} but {} is {}", #a, (a).str(), #b, (b).str())

#define CHECK_ROWS(tensor) CHECK(has_plain_rows(tensor), "{} {}: its rows are not contiguous", #tensor, (tensor).str())

#define CHECK_APART(a, b) CHECK(!overlap(a, b), "{} {} shares memory with {} {}", #a, (a).str(), #b, (b).str())

#define CHECK_IN_PLACE(a, b) \
  CHECK(apart_or_same(a, b), "{} {} shares memory with {} {} and is not the same view", #a, (a).str(), #b, (b).str())
