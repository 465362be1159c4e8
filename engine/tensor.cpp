#include "engine/tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace moonflow {

namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  int64_t size;
};

constexpr DTypeRow kDTypes[] = {
    {DType::Float32, "float32", 4},   {DType::Float64, "float64", 8}, {DType::Int8, "int8", 1},
    {DType::UInt8, "uint8", 1},       {DType::Int32, "int32", 4},     {DType::Int64, "int64", 8},
    {DType::BFloat16, "bfloat16", 2}, {DType::Float16, "float16", 2},
};
// The table is indexed by the enumerators.
static_assert(kDTypes[static_cast<int>(DType::Float16)].dtype == DType::Float16);
static_assert(kDTypes[static_cast<int>(DType::UInt8)].dtype == DType::UInt8);

const DTypeRow& row(DType dtype) { return kDTypes[static_cast<int>(dtype)]; }

}  // namespace

int64_t size_of(DType dtype) { return row(dtype).size; }
const char* name(DType dtype) { return row(dtype).name; }
bool is_floating(DType dtype) { return dtype == DType::Float32 || dtype == DType::Float64 || is_narrow(dtype); }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }

std::optional<DType> dtype_named(std::string_view wanted) {
  for (const DTypeRow& candidate : kDTypes)
    if (wanted == candidate.name) return candidate.dtype;
  return std::nullopt;
}

int64_t checked_product(int64_t a, int64_t b) {
  int64_t product;
  require(!__builtin_mul_overflow(a, b, &product), ErrorCode::OutOfRange, "a size overflows: ", a, " times ", b);
  return product;
}

int64_t checked_sum(int64_t a, int64_t b) {
  int64_t sum;
  require(!__builtin_add_overflow(a, b, &sum), ErrorCode::OutOfRange, "a size overflows: ", a, " plus ", b);
  return sum;
}

int64_t checked_aligned(int64_t bytes) { return checked_sum(bytes, kAlignment - 1) / kAlignment * kAlignment; }

void Shape::push_back(int64_t dim) { insert(rank_, dim); }

void Shape::insert(int axis, int64_t dim) {
  require(rank_ < kMaxRank, ErrorCode::InvalidArgument, "more than ", kMaxRank, " axes");
  require(dim >= 0, ErrorCode::InvalidArgument, "axis ", axis, " has the negative size ", dim);
  std::copy_backward(dims_.begin() + axis, dims_.begin() + rank_, dims_.begin() + rank_ + 1);
  dims_[axis] = dim;
  ++rank_;
}

void Shape::erase(int axis) {
  std::copy(dims_.begin() + axis + 1, dims_.begin() + rank_, dims_.begin() + axis);
  dims_[--rank_] = 0;
}

int64_t Shape::count(int first, int last) const {
  int64_t count = 1;
  for (int axis = first; axis < last; ++axis) count = checked_product(count, dims_[axis]);
  return count;
}

std::string Shape::str() const {
  std::string line = "(";
  for (int axis = 0; axis < rank_; ++axis) line += (axis ? ", " : "") + std::to_string(dims_[axis]);
  return line + ")";
}

bool operator==(const Shape& a, const Shape& b) {
  return a.rank_ == b.rank_ && std::equal(a.begin(), a.end(), b.begin());
}
std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.str(); }

int wrap_axis(int64_t axis, int rank) {
  require(axis >= -rank && axis < rank, ErrorCode::OutOfRange, "axis ", axis, " is outside rank ", rank,
          " (axes count from 0; -1 is the last)");
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Shape broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape result = longer;
  const int offset = longer.rank() - shorter.rank();
  for (int axis = 0; axis < shorter.rank(); ++axis) {
    int64_t& dim = result[axis + offset];
    if (dim == 1) dim = shorter[axis];
    require(shorter[axis] == dim || shorter[axis] == 1, ErrorCode::ShapeMismatch, "shapes ", a, " and ", b,
            " do not broadcast: axis ", axis + offset, " is ", longer[axis + offset], " against ", shorter[axis]);
  }
  return result;
}

std::string TensorType::str() const { return std::string(name(dtype)) + " " + shape.str(); }
std::ostream& operator<<(std::ostream& out, const TensorType& type) { return out << type.str(); }

void check_size(const TensorType& type) {
  int64_t bytes = size_of(type.dtype);
  for (const int64_t dim : type.shape) bytes = checked_product(bytes, std::max<int64_t>(dim, 1));
}

// glibc keeps small blocks at hand for malloc, but not for those who want them aligned: it cuts each out of a larger
// one. So this aligns within what malloc gives, and notes that in the word before the block. The word before that is
// RecyclingMemory's.
void* HostMemory::allocate(size_t bytes) noexcept {
  if (bytes > SIZE_MAX - kAlignment) return nullptr;
  char* const whole = static_cast<char*>(std::malloc(bytes + kAlignment));
  if (whole == nullptr) return nullptr;
  char* const block = whole + kAlignment - reinterpret_cast<uintptr_t>(whole) % kAlignment;
  static_assert(alignof(std::max_align_t) >= 2 * sizeof(void*));  // so there is room for both words
  reinterpret_cast<void**>(block)[-1] = whole;
  return block;
}

void HostMemory::release(void* block) noexcept {
  if (block != nullptr) std::free(static_cast<void**>(block)[-1]);
}

namespace {

// What lies before the elements of a tensor, so that it is one block with them: whose memory it is, and the record of
// the pointers that share it.
struct Head {
  std::shared_ptr<HostMemory> source;
  HostMemory* memory;
  int64_t bytes;  // of the block
  alignas(void*) char record[32];
};
static_assert(sizeof(Head) == kAlignment);

// AddressSanitizer watches the ends of blocks, and a write in front of the elements would reach the head. There a line
// that nobody may touch lies between them.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kFence = kAlignment;
void close_fence(Head* head) { ASAN_POISON_MEMORY_REGION(head + 1, kFence); }
void open_fence(Head* head) { ASAN_UNPOISON_MEMORY_REGION(head + 1, kFence); }
#else
constexpr int64_t kFence = 0;
void close_fence(Head*) {}
void open_fence(Head*) {}
#endif

// Gives a shared_ptr the place of its record. It wants no memory for anything else, and gives the place back when
// nobody shares the block any longer.
template <class T>
struct InHead {
  using value_type = T;

  explicit InHead(Head* head) : head(head) {}
  template <class U>
  InHead(const InHead<U>& other) : head(other.head) {}
  T* allocate(size_t) {
    static_assert(sizeof(T) <= sizeof(Head::record));
    return reinterpret_cast<T*>(head->record);
  }
  void deallocate(T*, size_t) noexcept {
    const std::shared_ptr<HostMemory> source = std::move(head->source);
    HostMemory* const memory = head->memory;
    memory->live_bytes.fetch_sub(head->bytes, std::memory_order_relaxed);
    open_fence(head);
    head->~Head();
    memory->release(head);
  }

  Head* head;
};

}  // namespace

Tensor Tensor::allocate(const TensorType& type, std::shared_ptr<HostMemory> source) {
  static HostMemory* const unaccounted = new HostMemory();  // never destroyed: blocks may outlive every static object
  HostMemory* const memory = source ? source.get() : unaccounted;
  const int64_t bytes = type.bytes();
  // Rounded up to whole lines, so vector loops may read past the last element.
  const int64_t reserved = checked_sum(bytes, sizeof(Head) + kFence + kAlignment) / kAlignment * kAlignment;
  void* const block = memory->allocate(static_cast<size_t>(reserved));
  require(block != nullptr, ErrorCode::OutOfMemory, "no memory for ", type, " (", bytes, " bytes)");
  memory->live_bytes.fetch_add(reserved, std::memory_order_relaxed);
  Head* const head = new (block) Head{std::move(source), memory, reserved, {}};
  close_fence(head);
  Tensor tensor;
  tensor.type_ = type;
  tensor.data_ = reinterpret_cast<char*>(head + 1) + kFence;
  tensor.block_ = std::shared_ptr<void>(
      tensor.data_, [](void*) {}, InHead<void*>(head));
  return tensor;
}

Tensor Tensor::zeros(const TensorType& type, std::shared_ptr<HostMemory> memory) {
  Tensor tensor = allocate(type, std::move(memory));
  std::memset(tensor.data(), 0, static_cast<size_t>(type.bytes()));
  return tensor;
}

Tensor Tensor::reshaped(const Shape& shape) const {
  require(shape.count() == count(), ErrorCode::ShapeMismatch, "shape ", this->shape(), " has ", count(),
          " elements, shape ", shape, " has ", shape.count());
  Tensor view = *this;
  view.type_.shape = shape;
  return view;
}

Tensor Tensor::rows(int64_t first, int64_t rows) const {
  require(shape().rank() > 0, ErrorCode::InvalidArgument, "a scalar has no rows");
  require(first >= 0 && rows >= 0 && first <= shape()[0] - rows, ErrorCode::OutOfRange, rows, " rows from row ", first,
          " on are outside axis 0 of size ", shape()[0]);
  Tensor view = *this;
  view.type_.shape[0] = rows;
  const int64_t row_bytes = shape().count(1, shape().rank()) * size_of(dtype());
  view.data_ = static_cast<char*>(data_) + first * row_bytes;
  return view;
}

Tensor Tensor::copy(std::shared_ptr<HostMemory> memory) const {
  Tensor result = allocate(type_, std::move(memory));
  std::memcpy(result.data(), data_, static_cast<size_t>(bytes()));
  return result;
}

}  // namespace moonflow
