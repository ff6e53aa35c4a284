// A view of memory: address, element type, up to four dimensions with strides. Owns nothing (memory/arena.h owns).
// On the meta backend the address is an arena offset that nobody reads.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "base/size.h"
#include "tensor/dtype.h"

namespace untied {

inline constexpr int kMaxDims = 4;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<dim_t> dims);
  int rank() const { return rank_; }
  dim_t operator[](int i) const { return dims_[i]; }
  dim_t& operator[](int i) { return dims_[i]; }
  dim_t size() const;  // number of elements
  bool operator==(const Shape& other) const;
  std::string str() const;  // "[4096, 32, 128]"

 private:
  std::array<dim_t, kMaxDims> dims_{};
  int rank_ = 0;
};

class Tensor {
 public:
  Tensor() = default;
  // Contiguous, row major.
  Tensor(void* data, DType dtype, const Shape& shape);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  dim_t dim(int i) const { return shape_[i]; }
  dim_t stride(int i) const { return strides_[i]; }  // in elements
  dim_t size() const { return shape_.size(); }
  dim_t bytes() const { return size() * static_cast<dim_t>(size_of(dtype_)); }
  bool defined() const { return shape_.rank() > 0; }
  bool is_contiguous() const;

  void* raw() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  float* f32() const { return as<float>(); }

  // Views. `slice` narrows one dimension to [range), keeping the strides; `rows` is dimension 0.
  Tensor slice(int dim, Range range) const;
  Tensor rows(Range range) const { return slice(0, range); }
  Tensor rows(dim_t begin, dim_t end) const { return slice(0, {begin, end}); }
  Tensor index(dim_t i) const;               // drops dimension 0
  Tensor reshape(const Shape& shape) const;  // contiguous tensors only; same number of elements
  Tensor flat() const { return reshape({size()}); }

  std::string str() const;  // "bf16[4096, 128]"

 private:
  void* data_ = nullptr;
  Shape shape_;
  std::array<dim_t, kMaxDims> strides_{};
  DType dtype_ = DType::kF32;
};

}  // namespace untied

// Checks a tensor's whole shape; the message names the tensor and both shapes.
#define CHECK_SHAPE(tensor, ...)                                                                         \
  CHECK((tensor).shape() == ::untied::Shape({__VA_ARGS__}), "{} is {}, not {}", #tensor, (tensor).str(), \
        ::untied::Shape({__VA_ARGS__}).str())
