#include "bindings/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "bindings/checksum.h"
#include "bindings/json.h"

namespace moonflow {

namespace {

constexpr size_t kLengthBytes = 8;
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kChecksum = "xxh3_64";        // of the data, in the metadata
constexpr uint64_t kMaxHeader = 100 * 1000 * 1000;  // as other readers of the format have it

struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr DTypeName kNames[] = {{DType::Float32, "F32"},   {DType::Float64, "F64"}, {DType::Int8, "I8"},
                                {DType::UInt8, "U8"},      {DType::Int32, "I32"},   {DType::Int64, "I64"},
                                {DType::BFloat16, "BF16"}, {DType::Float16, "F16"}};

const char* name_of(DType dtype) {
  for (const DTypeName& row : kNames)
    if (row.dtype == dtype) return row.name;
  return "";
}

DType dtype_of(const std::string& tensor, const std::string& name) {
  for (const DTypeName& row : kNames)
    if (name == row.name) return row.dtype;
  fail(ErrorCode::Unsupported, "tensor '", tensor, "' has dtype ", name.substr(0, 16), ", which is not supported");
}

[[noreturn]] void damaged(const std::string& what) { fail(ErrorCode::Io, "these are no safetensors: ", what); }

// A whole number from 0 on.
uint64_t whole(const Json& value, const std::string& what) {
  const auto* number = value.as<int64_t>();
  if (number == nullptr || *number < 0) damaged(what + " is no whole number");
  return static_cast<uint64_t>(*number);
}

// What the header says of one tensor; its bytes lie from begin to end of the data.
struct Entry {
  std::string name;
  TensorType type;
  uint64_t begin, end;
};

Entry read_entry(const std::string& name, const Json& entry) {
  const auto* dtype = entry.find<std::string>("dtype");
  const auto* shape = entry.find<Json::Array>("shape");
  const auto* offsets = entry.find<Json::Array>("data_offsets");
  if (dtype == nullptr || shape == nullptr || offsets == nullptr || offsets->size() != 2)
    damaged("tensor '" + name + "' lacks dtype, shape or data_offsets");
  TensorType type{dtype_of(name, *dtype), {}};
  for (const Json& dim : *shape)
    type.shape.push_back(static_cast<int64_t>(whole(dim, "a dimension of '" + name + "'")));
  check_size(type);
  const uint64_t begin = whole((*offsets)[0], "an offset of '" + name + "'");
  const uint64_t end = whole((*offsets)[1], "an offset of '" + name + "'");
  if (begin > end || end - begin != static_cast<uint64_t>(type.bytes()))
    damaged(text("'", name, "' is ", type, ", but lies from byte ", begin, " to ", end));
  return {name, type, begin, end};
}

// The format has tensors side by side, without overlaps and holes. With overlaps a small file would need any amount of
// memory; with holes a damaged header could pass.
void check_places(std::vector<Entry>& entries, uint64_t data_bytes) {
  const auto place = [](const Entry& entry) { return std::pair(entry.begin, entry.end); };
  std::sort(entries.begin(), entries.end(),
            [&](const Entry& one, const Entry& other) { return place(one) < place(other); });
  uint64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.begin < end) damaged("the bytes of '" + entry.name + "' belong to another tensor too");
    if (entry.begin > end) damaged("nothing is said of the bytes before '" + entry.name + "'");
    end = entry.end;
    if (end > data_bytes) damaged("the bytes of '" + entry.name + "' lie outside the data");
  }
  if (end < data_bytes) damaged(text("nothing is said of the last ", data_bytes - end, " bytes"));
}

// The header, as long for one checksum as for any other.
std::string header_of(const std::map<std::string, Tensor>& tensors, Metadata metadata, const std::string& checksum) {
  metadata[kChecksum] = checksum;
  Json::Object header{{kMetadata, Json::Object(metadata.begin(), metadata.end())}};
  int64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::vector<int64_t> dims = tensor.shape().dims();
    header[name] = Json::Object{{"dtype", name_of(tensor.dtype())},
                                {"shape", Json::Array(dims.begin(), dims.end())},
                                {"data_offsets", Json::Array{end, end + tensor.bytes()}}};
    end += tensor.bytes();
  }
  std::string text = write_json(header, JsonStyle::Line);
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');  // so that the data is aligned
  return text;
}

// Takes the checksum out of the metadata, and looks at it.
void check_sum(Metadata& metadata, std::string_view data) {
  const auto checksum = metadata.find(kChecksum);
  if (checksum == metadata.end()) return;
  if (checksum->second != checksum_of(data.data(), data.size()))
    fail(ErrorCode::Io, "the bytes do not match their checksum, ", kChecksum,
         " of the metadata. Whoever has changed "
         "them on purpose leaves it out");
  metadata.erase(checksum);
}

}  // namespace

std::string write_safetensors(const std::map<std::string, Tensor>& tensors, const Metadata& metadata) {
  require(tensors.count(kMetadata) == 0, ErrorCode::InvalidArgument, "the format keeps the name '", kMetadata,
          "' for itself, so no array can have it");
  size_t data_bytes = 0;
  for (const auto& [name, tensor] : tensors) data_bytes += static_cast<size_t>(tensor.bytes());
  const std::string any = header_of(tensors, metadata, checksum_of(nullptr, 0));
  const uint64_t length = any.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  bytes.reserve(kLengthBytes + any.size() + data_bytes);
  bytes += any;
  for (const auto& [name, tensor] : tensors) bytes.append(tensor.data<char>(), static_cast<size_t>(tensor.bytes()));
  const std::string checksum = checksum_of(bytes.data() + kLengthBytes + any.size(), data_bytes);
  bytes.replace(kLengthBytes, any.size(), header_of(tensors, metadata, checksum));
  return bytes;
}

Safetensors read_safetensors(std::string_view bytes, const std::shared_ptr<HostMemory>& memory) {
  if (bytes.size() < kLengthBytes) damaged("they are shorter than the length of the header");
  uint64_t length;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kMaxHeader || length > bytes.size() - kLengthBytes) damaged("the header is longer than the file");
  const std::string_view text = bytes.substr(kLengthBytes, static_cast<size_t>(length));
  const std::string_view data = bytes.substr(kLengthBytes + static_cast<size_t>(length));
  Json header;
  JsonFault fault;
  const bool is_json = read_json(text, header, fault);
  const auto* entries = header.as<Json::Object>();
  if (!is_json || entries == nullptr) damaged("the header is no JSON object");
  Safetensors result;
  std::vector<Entry> tensors;
  for (const auto& [name, entry] : *entries) {
    if (name != kMetadata) {
      tensors.push_back(read_entry(name, entry));
    } else if (const auto* metadata = entry.as<Json::Object>()) {
      for (const auto& [key, value] : *metadata)
        if (const auto* string = value.as<std::string>()) result.metadata.emplace(key, *string);
    }
  }
  check_places(tensors, data.size());
  check_sum(result.metadata, data);
  for (const Entry& entry : tensors) {
    const Tensor tensor = Tensor::allocate(entry.type, memory);
    if (tensor.bytes() > 0) std::memcpy(tensor.data(), data.data() + entry.begin, static_cast<size_t>(tensor.bytes()));
    result.tensors.emplace(entry.name, tensor);
  }
  return result;
}

}  // namespace moonflow
