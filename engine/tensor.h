// Typed arrays in host memory: dtype, shape, and a reference-counted block of bytes.
// Always dense and row-major; a view shares the block of its origin. Any thread may hold one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/error.h"
#include "engine/narrow.h"

namespace moonflow {

enum class DType : uint8_t { Float32, Float64, Int8, UInt8, Int32, Int64, BFloat16, Float16 };

int64_t size_of(DType dtype);
const char* name(DType dtype);  // "float32", "int8", ...
std::optional<DType> dtype_named(std::string_view name);
bool is_floating(DType dtype);
// Of two bytes: stored so, computed in float32 and rounded (engine/narrow.h).
constexpr bool is_narrow(DType dtype) { return dtype == DType::BFloat16 || dtype == DType::Float16; }
std::ostream& operator<<(std::ostream& out, DType dtype);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::Float32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::Float64;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::Int8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::UInt8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::Int32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::Int64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::BFloat16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::Float16;
};
// Whether values of T have a fraction.
template <class T>
constexpr bool kFloating = std::is_floating_point_v<T> || kNarrow<T>;

// Calls f(T{}) with the C++ type of `dtype`, of those that C++ can compute with: all but the narrow ones, which are an
// error.
template <class F>
decltype(auto) visit(DType dtype, F&& f) {
  switch (dtype) {
    case DType::Float64:
      return f(double{});
    case DType::Int8:
      return f(int8_t{});
    case DType::UInt8:
      return f(uint8_t{});
    case DType::Int32:
      return f(int32_t{});
    case DType::Int64:
      return f(int64_t{});
    case DType::BFloat16:
    case DType::Float16:
      fail(ErrorCode::DtypeMismatch, "has no kernel for ", dtype, "; cast to float32");
    case DType::Float32:
      break;
  }
  return f(float{});
}

// Of the narrow ones alone.
template <class F>
decltype(auto) visit_narrow(DType dtype, F&& f) {
  return dtype == DType::Float16 ? f(Float16{}) : f(BFloat16{});
}

// Of all: for what stores, prints or converts single values.
template <class F>
decltype(auto) visit_stored(DType dtype, F&& f) {
  return is_narrow(dtype) ? visit_narrow(dtype, f) : visit(dtype, f);
}

// Of float32 and float64; any other dtype is an error.
template <class F>
decltype(auto) visit_floating(DType dtype, F&& f) {
  if (dtype == DType::Float64) return f(double{});
  require(dtype == DType::Float32, ErrorCode::DtypeMismatch, "needs float32 or float64, got ", dtype);
  return f(float{});
}

// The one place where sizes are multiplied or added: an overflow is an error, never a wrapped number.
int64_t checked_product(int64_t a, int64_t b);
int64_t checked_sum(int64_t a, int64_t b);

// Sizes of the axes, outermost first. No allocation, so types are cheap to copy.
class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(dims.begin(), dims.end()) {}
  explicit Shape(const std::vector<int64_t>& dims) : Shape(dims.begin(), dims.end()) {}
  template <class It>
  Shape(It first, It last) {
    for (; first != last; ++first) push_back(*first);
  }

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[axis]; }
  int64_t& operator[](int axis) { return dims_[axis]; }
  int64_t back() const { return dims_[rank_ - 1]; }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }
  void push_back(int64_t dim);
  void insert(int axis, int64_t dim);
  void erase(int axis);

  int64_t count() const { return count(0, rank_); }
  int64_t count(int first, int last) const;  // product of the axes [first, last)
  std::vector<int64_t> dims() const { return {begin(), end()}; }
  std::string str() const;  // "(100, 10)", "(5)", "()"

  friend bool operator==(const Shape& a, const Shape& b);
  friend bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

// Wraps a negative axis and checks it: axis -1 of rank 4 is 3.
int wrap_axis(int64_t axis, int rank);

// NumPy broadcasting of two shapes; an error names both.
Shape broadcast(const Shape& a, const Shape& b);

struct TensorType {
  DType dtype = DType::Float32;
  Shape shape;

  int64_t count() const { return shape.count(); }
  int64_t bytes() const { return checked_product(shape.count(), size_of(dtype)); }
  std::string str() const;  // "float32 (100, 10)"

  friend bool operator==(const TensorType& a, const TensorType& b) { return a.dtype == b.dtype && a.shape == b.shape; }
  friend bool operator!=(const TensorType& a, const TensorType& b) { return !(a == b); }
};

std::ostream& operator<<(std::ostream& out, const TensorType& type);

// Throws when the bytes of a type overflow, an empty axis counted as one: kernels may then compute strides unchecked.
void check_size(const TensorType& type);

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector register
// Bytes rounded up to whole lines. Of sizes that a script may have given, the checked one.
constexpr int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
int64_t checked_aligned(int64_t bytes);

// Where arrays and the memory of CPU plans come from, and how much of what a script can drop is alive, arrays and
// prepared calls, for whoever decides when to collect garbage. Shared with the blocks it gave. Called from any thread.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  virtual void* allocate(size_t bytes) noexcept;  // kAlignment-aligned, not initialised; nullptr when there is none
  virtual void release(void* memory) noexcept;

  std::atomic<int64_t> live_bytes{0};
};

class Tensor {
 public:
  Tensor() = default;  // no value

  // Fresh memory, 64-byte aligned, not initialised. Throws OutOfMemory.
  static Tensor allocate(const TensorType& type, std::shared_ptr<HostMemory> memory = nullptr);
  static Tensor zeros(const TensorType& type, std::shared_ptr<HostMemory> memory = nullptr);

  template <class T>
  static Tensor of(const Shape& shape, std::initializer_list<T> values) {
    Tensor tensor = allocate({DTypeOf<T>::value, shape});
    require(shape.count() == static_cast<int64_t>(values.size()), ErrorCode::ShapeMismatch, "shape ", shape,
            " does not hold ", values.size(), " values");
    std::copy(values.begin(), values.end(), tensor.data<T>());
    return tensor;
  }

  explicit operator bool() const { return block_ != nullptr; }
  const TensorType& type() const { return type_; }
  const Shape& shape() const { return type_.shape; }
  DType dtype() const { return type_.dtype; }
  int64_t count() const { return type_.count(); }
  int64_t bytes() const { return type_.bytes(); }
  void* data() const { return data_; }
  template <class T>
  T* data() const {
    return static_cast<T*>(data_);
  }

  // The same elements under another shape of equal count.
  Tensor reshaped(const Shape& shape) const;
  // Rows [first, first + rows) of axis 0, sharing memory.
  Tensor rows(int64_t first, int64_t rows) const;
  Tensor copy(std::shared_ptr<HostMemory> memory = nullptr) const;
  bool shares_memory(const Tensor& other) const { return block_ && block_ == other.block_; }

 private:
  TensorType type_;
  void* data_ = nullptr;
  std::shared_ptr<void> block_;  // shared: views and completions outlive whoever made the block
};

}  // namespace moonflow
