#include "ops/check.h"

namespace untied {
namespace {

// Bytes from the first element to the end of the last one, over dimensions [first_dim, rank).
dim_t extent(const Tensor& t, int first_dim) {
  dim_t elements = 1;
  for (int i = first_dim; i < t.rank(); ++i) elements += (t.dim(i) - 1) * t.stride(i);
  return elements * static_cast<dim_t>(size_of(t.dtype()));
}

dim_t pitch(const Tensor& t) { return t.stride(0) * static_cast<dim_t>(size_of(t.dtype())); }

}  // namespace

bool has_plain_rows(const Tensor& t) {
  if (t.size() == 0) return true;
  dim_t inside = 1;  // elements that one index of the dimension before spans
  for (int i = t.rank() - 1; i >= 0; --i) {
    if (t.dim(i) <= 1) continue;
    const bool last = i == t.rank() - 1;
    if (last ? t.stride(i) != 1 : t.stride(i) < inside) return false;
    inside = (t.dim(i) - 1) * t.stride(i) + inside;
  }
  return true;
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  const auto begin_a = reinterpret_cast<std::intptr_t>(a.raw()), begin_b = reinterpret_cast<std::intptr_t>(b.raw());
  if (begin_a + extent(a, 0) <= begin_b || begin_b + extent(b, 0) <= begin_a) return false;
  if (a.rank() < 2 || b.rank() < 2 || pitch(a) != pitch(b) || !has_plain_rows(a) || !has_plain_rows(b)) return true;
  if (extent(a, 1) > pitch(a) || extent(b, 1) > pitch(b)) return true;  // a single row, of another pitch in truth
  const dim_t between =
      ((begin_b - begin_a) % pitch(a) + pitch(a)) % pitch(a);  // from a's row to b's, within one pitch
  return between < extent(a, 1) || between + extent(b, 1) > pitch(a);
}

bool apart_or_same(const Tensor& a, const Tensor& b) {
  bool same = a.raw() == b.raw() && a.dtype() == b.dtype() && a.shape() == b.shape();
  for (int i = 0; same && i < a.rank(); ++i) same = a.dim(i) <= 1 || a.stride(i) == b.stride(i);
  return same || !overlap(a, b);
}

}  // namespace untied
