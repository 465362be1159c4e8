#include "bindings/idx.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "bindings/file.h"
#include "bindings/stored.h"

namespace moonflow {

namespace {

// Deflate gives at most 1032 bytes for one; whatever announces more than that is a lie, seen before memory is taken.
constexpr int64_t kDeflateRatio = 1032;

// A gzip file, which may have several members. zlib checks the CRC and the length of each.
class GzipSource : public ByteSource {
 public:
  explicit GzipSource(FileSource compressed)
      : ByteSource(compressed.path(), checked_product(checked_sum(compressed.size(), 1), kDeflateRatio)),
        compressed_(std::move(compressed)),
        buffer_(1 << 16) {
    require(inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK, ErrorCode::OutOfMemory, "no memory to inflate '", path_,
            "'");
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  void expect_end() override {
    char more;
    if (fetch(&more, 1) != 0) fail_at(position_, "more bytes than announced");
  }

 private:
  int64_t fetch(void* to, int64_t bytes) override {
    stream_.next_out = static_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(bytes);
    while (stream_.avail_out == static_cast<uInt>(bytes)) {
      if (stream_.avail_in == 0 && compressed_.remaining() > 0) {
        const int64_t chunk = std::min(static_cast<int64_t>(buffer_.size()), compressed_.remaining());
        compressed_.read(buffer_.data(), chunk);
        stream_.next_in = buffer_.data();
        stream_.avail_in = static_cast<uInt>(chunk);
      }
      const int64_t offset = compressed_.position() - stream_.avail_in;
      if (stream_.avail_in == 0) {
        if (!member_ended_) compressed_.fail_at(offset, "the gzip data ends too early");
        return 0;
      }
      if (member_ended_) {  // what follows must be another member; anything else fails as one
        inflateReset(&stream_);
        member_ended_ = false;
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      member_ended_ = result == Z_STREAM_END;
      if (result != Z_OK && result != Z_STREAM_END)
        compressed_.fail_at(offset, "bad gzip data: ", stream_.msg != nullptr ? stream_.msg : "corrupt");
    }
    return bytes - stream_.avail_out;
  }

  FileSource compressed_;
  std::vector<unsigned char> buffer_;
  z_stream stream_{};
  bool member_ended_ = false;
};

// Leaves the file at its start.
bool is_gzip(FileSource& file) {
  unsigned char magic[2] = {};
  file.read(magic, std::min<int64_t>(sizeof magic, file.size()));
  file.seek(0);
  return magic[0] == 0x1f && magic[1] == 0x8b;
}

Tensor read_idx(ByteSource& source, const std::shared_ptr<HostMemory>& memory) {
  unsigned char magic[4];
  source.read(magic, sizeof magic);
  if (magic[0] != 0 || magic[1] != 0) source.fail_at(0, "no IDX file: it does not start with two zero bytes");
  DType dtype = DType::UInt8;
  switch (magic[2]) {
    case 0x08:
      break;
    case 0x09:
      dtype = DType::Int8;
      break;
    case 0x0C:
      dtype = DType::Int32;
      break;
    case 0x0D:
      dtype = DType::Float32;
      break;
    case 0x0E:
      dtype = DType::Float64;
      break;
    default:
      source.fail_at(2, "IDX type ", static_cast<int>(magic[2]), " is not supported");
  }
  if (magic[3] > Shape::kMaxRank)
    source.fail_at(3, "more than ", Shape::kMaxRank, " axes: ", static_cast<int>(magic[3]));
  Shape shape;
  for (int axis = 0; axis < magic[3]; ++axis) {
    unsigned char size[4];
    source.read(size, sizeof size);
    shape.push_back(static_cast<int64_t>(size[0]) << 24 | size[1] << 16 | size[2] << 8 | size[3]);
  }
  const TensorType type{dtype, shape};
  int64_t bytes = 0;
  try {
    bytes = type.bytes();
  } catch (const Error&) {
    source.fail_at(4, "the shape ", shape, " is too large");
  }
  if (bytes > source.remaining())
    source.fail_at(4, "the array ", type, " needs ", bytes, " bytes, the file cannot hold more than ",
                   source.remaining());
  Tensor array = Tensor::allocate(type, memory);
  source.read(array.data(), bytes);
  source.expect_end();
  if (size_of(dtype) > 1) swap_bytes(array);
  return array;
}

}  // namespace

Tensor read_idx(const std::string& path, const std::shared_ptr<HostMemory>& memory) {
  FileSource file(path);
  if (!is_gzip(file)) return read_idx(file, memory);
  GzipSource source(std::move(file));
  return read_idx(source, memory);
}

}  // namespace moonflow
