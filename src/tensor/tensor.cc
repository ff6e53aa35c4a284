#include "tensor/tensor.h"

namespace untied {

Shape::Shape(std::initializer_list<dim_t> dims) {
  CHECK(dims.size() >= 1 && dims.size() <= kMaxDims, "a shape has 1 to {} dimensions, not {}", kMaxDims, dims.size());
  for (dim_t d : dims) {
    CHECK(d >= 0, "negative dimension {}", d);
    dims_[rank_++] = d;
  }
}

dim_t Shape::size() const {
  if (rank_ == 0) return 0;
  dim_t product = 1;
  for (int i = 0; i < rank_; ++i) product *= dims_[i];
  return product;
}

bool Shape::operator==(const Shape& other) const {
  if (rank_ != other.rank_) return false;
  for (int i = 0; i < rank_; ++i)
    if (dims_[i] != other.dims_[i]) return false;
  return true;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(dims_[i]);
  return text + "]";
}

Tensor::Tensor(void* data, DType dtype, const Shape& shape) : data_(data), shape_(shape), dtype_(dtype) {
  dim_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides_[i] = stride;
    stride *= shape[i];
  }
}

bool Tensor::is_contiguous() const {
  dim_t stride = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != stride) return false;
    stride *= shape_[i];
  }
  return true;
}

Tensor Tensor::slice(int dim, Range range) const {
  CHECK(dim >= 0 && dim < rank(), "slice of dimension {} of {}", dim, str());
  CHECK(0 <= range.begin && range.begin <= range.end && range.end <= shape_[dim],
        "slice [{}, {}) of dimension {} of {}", range.begin, range.end, dim, str());
  Tensor view = *this;
  view.shape_[dim] = range.size();
  view.data_ = static_cast<std::byte*>(data_) + range.begin * strides_[dim] * static_cast<dim_t>(size_of(dtype_));
  return view;
}

Tensor Tensor::index(dim_t i) const {
  CHECK(rank() >= 2 && i >= 0 && i < shape_[0], "index {} into {}", i, str());
  Tensor view;
  view.dtype_ = dtype_;
  view.data_ = static_cast<std::byte*>(data_) + i * strides_[0] * static_cast<dim_t>(size_of(dtype_));
  switch (rank()) {
    case 2: view.shape_ = {shape_[1]}; break;
    case 3: view.shape_ = {shape_[1], shape_[2]}; break;
    default: view.shape_ = {shape_[1], shape_[2], shape_[3]}; break;
  }
  for (int d = 1; d < rank(); ++d) view.strides_[d - 1] = strides_[d];
  return view;
}

Tensor Tensor::reshape(const Shape& shape) const {
  CHECK(is_contiguous(), "reshape of the strided view {}", str());
  CHECK(shape.size() == size(), "reshape of {} to {}", str(), shape.str());
  return Tensor(data_, dtype_, shape);
}

std::string Tensor::str() const { return name_of(dtype_) + shape_.str(); }

}  // namespace untied
