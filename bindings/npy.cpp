#include "bindings/npy.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "bindings/stored.h"

namespace moonflow {

namespace {

constexpr int64_t kHeaderBytes = 10000;  // NumPy's own limit

struct Header {
  const Stored* stored = nullptr;
  bool swapped = false;
  bool fortran = false;
  Shape shape;
};

// Reads the header, which is a Python dictionary literal with three known keys and no others.
class HeaderReader {
 public:
  HeaderReader(const ByteSource& source, std::string_view text, int64_t offset, bool may_be_long)
      : source_(source), text_(text), offset_(offset), may_be_long_(may_be_long) {}

  Header read() {
    expect('{');
    bool has_descr = false, has_order = false, has_shape = false;
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      bool& has = key == "descr" ? has_descr : key == "fortran_order" ? has_order : has_shape;
      if (key != "descr" && key != "fortran_order" && key != "shape") fault("unknown key '", key, "'");
      if (has) fault("key '", key, "' twice");
      has = true;
      if (key == "descr")
        descr();
      else if (key == "fortran_order")
        order();
      else
        shape();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ < text_.size()) fault("text after the dictionary");
    if (!has_descr || !has_order || !has_shape) fault("descr, fortran_order and shape are not all there");
    return header_;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fault(const Parts&... parts) const {
    source_.fail_at(offset_ + static_cast<int64_t>(at_), "bad npy header: ", parts...);
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool accept(char wanted) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fault("'", wanted, "' is missing");
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  std::string quoted() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fault("a quoted string is missing");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == text_.npos) fault("a string does not end");
    const std::string string(text_.substr(at_ + 1, end - at_ - 1));
    for (const char c : string)
      if (c < ' ' || c > '~' || c == '\\') fault("a string with bytes other than plain text");
    at_ = end + 1;
    return string;
  }

  void descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[') fault("structured arrays are not supported");
    const std::string descr = quoted();
    std::string_view kind = descr;
    char order = '=';
    if (!kind.empty() && (kind[0] == '<' || kind[0] == '>' || kind[0] == '|' || kind[0] == '=')) {
      order = kind[0];
      kind.remove_prefix(1);
    }
    if (!kind.empty() && kind[0] == 'O') fault("object arrays hold Python pickles and are refused");
    header_.stored = stored_in_npy(kind);
    if (header_.stored != nullptr) {
      header_.swapped = order == '>' && header_.stored->size > 1;
      return;
    }
    if (!kind.empty() && (kind[0] == 'U' || kind[0] == 'S')) {
      fault("dtype '", descr,
            "' is text, which no array holds; np.load(path, { names = { ... } }) reads the other arrays "
            "of a file, and text goes beside them in a file of lines");
    }
    fault("dtype '", descr,
          "' is not supported; there are f2, f4, f8, i1, u1, i2, u2, i4, u4, i8, u8, b1. In Python, "
          "a.astype('float32') is one that is");
  }

  void order() {
    if (accept_word("True"))
      header_.fortran = true;
    else if (!accept_word("False"))
      fault("fortran_order is neither True nor False");
  }

  void shape() {
    expect('(');
    bool comma = true;
    while (!accept(')')) {
      if (!comma) fault("',' is missing in the shape");
      header_.shape = with(header_.shape, size());
      comma = accept(',');
    }
    if (header_.shape.rank() == 1 && !comma) fault("the shape is no tuple");
  }
  Shape with(Shape shape, int64_t size) {
    if (shape.rank() == Shape::kMaxRank) fault("more than ", Shape::kMaxRank, " axes");
    shape.push_back(size);
    return shape;
  }
  int64_t size() {
    skip_space();
    const size_t first = at_;
    int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value))
        fault("a size overflows");
    if (at_ == first) fault("a size is missing or negative");
    if (text_[first] == '0' && at_ > first + 1) fault("a size begins with 0");
    if (may_be_long_ && at_ < text_.size() && text_[at_] == 'L') ++at_;  // as Python 2 wrote them
    return value;
  }

  const ByteSource& source_;
  std::string_view text_;
  int64_t offset_;
  bool may_be_long_;
  size_t at_ = 0;
  Header header_;
};

Header read_header(ByteSource& source) {
  unsigned char start[8];
  if (source.remaining() < static_cast<int64_t>(sizeof start))
    source.fail_at(0, "no npy file: it has ", source.remaining(), " bytes");
  source.read(start, sizeof start);
  if (std::memcmp(start, "\x93NUMPY", 6) != 0) source.fail_at(0, "no npy file: it does not start with \\x93NUMPY");
  const int major = start[6], minor = start[7];
  if (major < 1 || major > 3 || minor != 0) source.fail_at(6, "npy version ", major, ".", minor, " is unknown");
  unsigned char length[4] = {};
  source.read(length, major == 1 ? 2 : 4);
  const int64_t bytes = length[0] | length[1] << 8 | length[2] << 16 | static_cast<int64_t>(length[3]) << 24;
  if (bytes > kHeaderBytes)
    source.fail_at(8, "the npy header has ", bytes, " bytes, at most ", kHeaderBytes, " are read");
  if (bytes > source.remaining()) source.fail_at(8, "the npy header has ", bytes, " bytes, the file ends before");
  const int64_t offset = source.position();
  std::string text(static_cast<size_t>(bytes), '\0');
  source.read(text.data(), bytes);
  return HeaderReader(source, text, offset, major < 3).read();
}

// From Fortran order, first axis fastest, to row-major.
Tensor from_fortran(const Tensor& stored, const Shape& shape, const std::shared_ptr<HostMemory>& memory) {
  Tensor result = Tensor::allocate({stored.dtype(), shape}, memory);
  const int rank = shape.rank();
  std::vector<int64_t> index(static_cast<size_t>(rank), 0), strides(static_cast<size_t>(rank), 1);
  for (int axis = 1; axis < rank; ++axis) strides[axis] = strides[axis - 1] * shape[axis - 1];
  visit_stored(stored.dtype(), [&](auto like) {
    using T = decltype(like);
    const T* from = stored.data<T>();
    T* to = result.data<T>();
    const int64_t count = shape.count();
    for (int64_t i = 0, at = 0; i < count; ++i) {
      to[i] = from[at];
      for (int axis = rank - 1; axis >= 0; --axis) {
        at += strides[axis];
        if (++index[axis] < shape[axis]) break;
        at -= strides[axis] * shape[axis];
        index[axis] = 0;
      }
    }
  });
  return result;
}

}  // namespace

Tensor read_npy(ByteSource& source, const std::shared_ptr<HostMemory>& memory) {
  const Header header = read_header(source);
  const Stored& stored = *header.stored;
  const TensorType type{stored.dtype, header.shape};
  int64_t bytes = 0;
  try {
    bytes = type.bytes() / size_of(stored.dtype) * stored.size;
  } catch (const Error& error) {
    source.fail_at(8, "the shape ", header.shape, " is too large");
  }
  const int64_t begin = source.position();
  if (bytes > source.remaining())
    source.fail_at(begin, "the array ", type, " needs ", bytes, " bytes, the file has ", source.remaining());
  Tensor array = Tensor::allocate(type, memory);
  const std::optional<int64_t> beyond = read_stored(source, stored, header.swapped, array);
  source.expect_end();
  if (beyond)
    source.fail_at(begin + *beyond * stored.size, "the uint64 ", static_cast<uint64_t>(array.data<int64_t>()[*beyond]),
                   " is beyond int64");
  return header.fortran && header.shape.rank() > 1 ? from_fortran(array, header.shape, memory) : array;
}

Tensor read_npy(const std::string& path, const std::shared_ptr<HostMemory>& memory) {
  FileSource source(path);
  return read_npy(source, memory);
}

std::string npy_header(const TensorType& type) {
  require(type.dtype != DType::BFloat16, ErrorCode::Unsupported,
          "npy and npz have no bfloat16; save a:astype(\"float32\"), which holds the same values");
  std::string shape;
  for (const int64_t size : type.shape) shape += std::to_string(size) + ", ";
  if (type.shape.rank() == 1) shape.pop_back();               // "5,"
  if (type.shape.rank() > 1) shape.resize(shape.size() - 2);  // "3, 4"
  const Stored& stored = stored_as(type.dtype);
  std::string text = std::string("{'descr': '") + (stored.size == 1 ? '|' : '<') + std::string(stored.npy) +
                     "', 'fortran_order': False, 'shape': (" + shape + "), }";
  constexpr size_t kStart = 10;                        // magic, version, length
  text.append(63 - (kStart + text.size()) % 64, ' ');  // the elements begin at a multiple of 64
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

void write_npy(const std::string& path, const Tensor& array) {
  replace_file(path, npy_header(array.type()), array.data(), array.bytes());
}

}  // namespace moonflow
