#include "bindings/safetensors.h"

#include <cstring>
#include <nlohmann/json.hpp>

namespace moonflow {

namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100 * 1000 * 1000;  // as other readers of the format have it

struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr DTypeName kNames[] = {{DType::Float32, "F32"},  {DType::Float64, "F64"}, {DType::Int8, "I8"},
                                {DType::UInt8, "U8"},     {DType::Int32, "I32"},   {DType::Int64, "I64"},
                                {DType::BFloat16, "BF16"}};

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
uint64_t whole(const json& value, const std::string& what) {
  if (!value.is_number_unsigned()) damaged(what + " is no whole number");
  return value.get<uint64_t>();
}

Tensor read_tensor(const std::string& name, const json& entry, std::string_view data,
                   const std::shared_ptr<HostMemory>& memory) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() || !entry.contains("shape") ||
      !entry["shape"].is_array() || !entry.contains("data_offsets") || !entry["data_offsets"].is_array() ||
      entry["data_offsets"].size() != 2)
    damaged("tensor '" + name + "' lacks dtype, shape or data_offsets");
  TensorType type{dtype_of(name, entry["dtype"].get<std::string>()), {}};
  for (const json& dim : entry["shape"]) {
    const uint64_t size = whole(dim, "a dimension of '" + name + "'");
    if (size > static_cast<uint64_t>(INT64_MAX)) damaged("a dimension of '" + name + "' is too large");
    type.shape.push_back(static_cast<int64_t>(size));
  }
  check_size(type);
  const uint64_t begin = whole(entry["data_offsets"][0], "an offset of '" + name + "'");
  const uint64_t end = whole(entry["data_offsets"][1], "an offset of '" + name + "'");
  if (begin > end || end > data.size()) damaged("the bytes of '" + name + "' lie outside the data");
  if (end - begin != static_cast<uint64_t>(type.bytes()))
    damaged(text("'", name, "' is ", type, ", but has ", end - begin, " bytes"));
  Tensor tensor = Tensor::allocate(type, memory);
  if (tensor.bytes() > 0) std::memcpy(tensor.data(), data.data() + begin, static_cast<size_t>(tensor.bytes()));
  return tensor;
}

}  // namespace

std::string write_safetensors(const std::map<std::string, Tensor>& tensors, const Metadata& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", name_of(tensor.dtype())},
                    {"shape", tensor.shape().dims()},
                    {"data_offsets", {end, end + tensor.bytes()}}};
    end += tensor.bytes();
  }
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');  // so that the data is aligned
  const uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  bytes.reserve(kLengthBytes + text.size() + static_cast<size_t>(end));
  std::memcpy(bytes.data(), &length, kLengthBytes);
  bytes += text;
  for (const auto& [name, tensor] : tensors) bytes.append(tensor.data<char>(), static_cast<size_t>(tensor.bytes()));
  return bytes;
}

Safetensors read_safetensors(std::string_view bytes, const std::shared_ptr<HostMemory>& memory) {
  if (bytes.size() < kLengthBytes) damaged("they are shorter than the length of the header");
  uint64_t length;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kMaxHeader || length > bytes.size() - kLengthBytes) damaged("the header is longer than the file");
  const std::string_view text = bytes.substr(kLengthBytes, static_cast<size_t>(length));
  const std::string_view data = bytes.substr(kLengthBytes + static_cast<size_t>(length));
  const json header = json::parse(text.begin(), text.end(), nullptr, false);
  if (!header.is_object()) damaged("the header is no JSON object");
  Safetensors result;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      result.tensors.emplace(name, read_tensor(name, entry, data, memory));
    } else if (entry.is_object()) {
      for (const auto& [key, value] : entry.items())
        if (value.is_string()) result.metadata.emplace(key, value.get<std::string>());
    }
  }
  return result;
}

}  // namespace moonflow
