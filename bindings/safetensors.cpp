#include "bindings/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "bindings/checksum.h"
#include "bindings/file.h"
#include "bindings/json.h"
#include "bindings/stored.h"

namespace moonflow {

namespace {

constexpr size_t kLengthBytes = 8;
constexpr const char* kMetadata = "__metadata__";
// In the metadata: of all that is written, with zeros in its own place; and, as files had it before, of the data alone.
constexpr const char* kChecksum = "xxh3_64_of_all";
constexpr const char* kDataChecksum = "xxh3_64";
constexpr uint64_t kMaxHeader = 100 * 1000 * 1000;  // as other readers of the format have it

[[noreturn]] void damaged(const std::string& what) { fail(ErrorCode::Io, "these are no safetensors: ", what); }

// A whole number from 0 on.
uint64_t whole(const Json& value, const std::string& what) {
  const auto* number = value.as<int64_t>();
  if (number == nullptr || *number < 0) damaged(what + " is no whole number");
  return static_cast<uint64_t>(*number);
}

// What the header says of one tensor; its bytes lie from begin to end of the data.
struct Entry {
  std::string name, dtype;
  const Stored* stored;  // none of a dtype that cannot be had
  Shape shape;
  uint64_t begin, end;
};

Entry read_entry(const std::string& name, const Json& entry) {
  const auto* dtype = entry.find<std::string>("dtype");
  const auto* shape = entry.find<Json::Array>("shape");
  const auto* offsets = entry.find<Json::Array>("data_offsets");
  if (dtype == nullptr || shape == nullptr || offsets == nullptr || offsets->size() != 2)
    damaged("tensor '" + name + "' lacks dtype, shape or data_offsets");
  Entry result{name, *dtype, stored_in_safetensors(*dtype), {}, 0, 0};
  for (const Json& dim : *shape)
    result.shape.push_back(static_cast<int64_t>(whole(dim, "a dimension of '" + name + "'")));
  const uint64_t begin = result.begin = whole((*offsets)[0], "an offset of '" + name + "'");
  const uint64_t end = result.end = whole((*offsets)[1], "an offset of '" + name + "'");
  const auto misplaced = [&](const auto& type) {
    damaged(text("'", name, "' is ", type, ", but lies from byte ", begin, " to ", end));
  };
  if (begin > end) misplaced(result.shape);
  if (result.stored == nullptr) return result;
  const TensorType type{result.stored->dtype, result.shape};
  check_size(type);
  if (end - begin != static_cast<uint64_t>(type.shape.count() * result.stored->size)) misplaced(type);
  return result;
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

std::string header_of(const std::map<std::string, Tensor>& tensors, Metadata metadata, const std::string& checksum) {
  metadata[kChecksum] = checksum;
  Json::Object header{{kMetadata, Json::Object(metadata.begin(), metadata.end())}};
  int64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::vector<int64_t> dims = tensor.shape().dims();
    header[name] = Json::Object{{"dtype", std::string(stored_as(tensor.dtype()).safetensors)},
                                {"shape", Json::Array(dims.begin(), dims.end())},
                                {"data_offsets", Json::Array{end, end + tensor.bytes()}}};
    end += tensor.bytes();
  }
  std::string text = write_json(header, JsonStyle::Line);
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');  // so that the data is aligned
  return text;
}

std::string_view bytes_of(const Tensor& tensor) { return {tensor.data<char>(), static_cast<size_t>(tensor.bytes())}; }

// Of what is said as we write it, however others have put it.
std::string checksum_of_all(const std::map<std::string, Tensor>& tensors, const Metadata& metadata) {
  const std::string header = header_of(tensors, metadata, std::string(16, '0'));
  std::vector<std::string_view> parts{header};
  for (const auto& [name, tensor] : tensors) parts.push_back(bytes_of(tensor));
  return checksum_of(parts);
}

// All that stands before the data.
std::string head_of(const std::map<std::string, Tensor>& tensors, const Metadata& metadata) {
  require(tensors.count(kMetadata) == 0, ErrorCode::InvalidArgument, "the format keeps the name '", kMetadata,
          "' for itself, so no array can have it");
  const std::string header = header_of(tensors, metadata, checksum_of_all(tensors, metadata));
  const uint64_t length = header.size();
  std::string head(kLengthBytes, '\0');
  std::memcpy(head.data(), &length, kLengthBytes);
  return head + header;
}

// Takes the key out, and gives its value.
std::string taken(Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return "";
  const std::string value = found->second;
  metadata.erase(found);
  return value;
}

// Others write none. What Moonflow writes beside it is its version and a seed, so with its version any other key was
// one.
void check_whole(Safetensors& read, const std::vector<std::string_view>& data) {
  Metadata& metadata = read.metadata;
  const std::string of_data = taken(metadata, kDataChecksum), of_all = taken(metadata, kChecksum);
  const bool is_own = metadata.count("moonflow") > 0;
  const bool lost = of_data.empty() && of_all.empty() && is_own && metadata.size() > 1 + metadata.count("seed");
  const bool fits = (of_data.empty() || of_data == checksum_of(data)) &&
                    (of_all.empty() || of_all == checksum_of_all(read.tensors, metadata));
  if (fits && !lost) return;
  fail(ErrorCode::Io, "the bytes do not match their checksum, ", of_all.empty() && !lost ? kDataChecksum : kChecksum,
       " of the metadata. Whoever has changed them on purpose leaves the metadata out");
}

Json read_header(ByteSource& source) {
  if (source.remaining() < static_cast<int64_t>(kLengthBytes))
    damaged("they are shorter than the length of the header");
  uint64_t length;
  source.read(&length, kLengthBytes);
  if (length > kMaxHeader || length > static_cast<uint64_t>(source.remaining()))
    damaged("the header is longer than the file");
  std::string text(static_cast<size_t>(length), '\0');
  source.read(text.data(), static_cast<int64_t>(length));
  Json header;
  JsonFault fault;
  if (!read_json(text, header, fault) || header.as<Json::Object>() == nullptr) damaged("the header is no JSON object");
  return header;
}

// What the header says, in the order in which the tensors lie behind it.
struct Head {
  std::vector<Entry> tensors;
  Metadata metadata;
};

Head read_head(ByteSource& source) {
  const Json header = read_header(source);
  Head head;
  for (const auto& [name, entry] : *header.as<Json::Object>()) {
    if (name != kMetadata) {
      head.tensors.push_back(read_entry(name, entry));
    } else if (const auto* metadata = entry.as<Json::Object>()) {
      for (const auto& [key, value] : *metadata)
        if (const auto* string = value.as<std::string>()) head.metadata.emplace(key, *string);
    }
  }
  check_places(head.tensors, static_cast<uint64_t>(source.remaining()));
  return head;
}

void pass_over(ByteSource& source, int64_t bytes) {
  std::vector<char> passed(static_cast<size_t>(std::min<int64_t>(bytes, 1 << 16)));
  for (int64_t part; bytes > 0; bytes -= part) {
    part = std::min(bytes, static_cast<int64_t>(passed.size()));
    source.read(passed.data(), part);
  }
}

Safetensors read_from(ByteSource& source, const std::shared_ptr<HostMemory>& memory) {
  Head head = read_head(source);
  Safetensors result;
  result.metadata = std::move(head.metadata);
  std::vector<std::string_view> data;
  for (const Entry& entry : head.tensors) {
    if (entry.stored == nullptr) {
      pass_over(source, static_cast<int64_t>(entry.end - entry.begin));
      result.left_out[entry.name] =
          text("tensor '", entry.name, "' has dtype ", entry.dtype.substr(0, 16), ", which is not supported");
      continue;
    }
    const Tensor tensor = Tensor::allocate({entry.stored->dtype, entry.shape}, memory);
    if (const auto beyond = read_stored(source, *entry.stored, false, tensor)) {
      const auto number = static_cast<uint64_t>(tensor.data<int64_t>()[*beyond]);
      result.left_out[entry.name] =
          text("tensor '", entry.name, "' has the uint64 ", number, ", which is beyond int64");
      continue;
    }
    data.push_back(bytes_of(tensor));
    result.tensors.emplace(entry.name, tensor);
  }
  check_whole(result, data);
  return result;
}

// What `read` makes of the file.
template <class Read>
auto from_file(const std::string& path, const Read& read) {
  FileSource source(path);
  return prefixing([&] { return read(source); }, "file '", path, "'");
}

}  // namespace

std::string write_safetensors(const std::map<std::string, Tensor>& tensors, const Metadata& metadata) {
  std::string bytes = head_of(tensors, metadata);
  size_t whole = bytes.size();
  for (const auto& [name, tensor] : tensors) whole += bytes_of(tensor).size();
  bytes.reserve(whole);
  for (const auto& [name, tensor] : tensors) bytes += bytes_of(tensor);
  return bytes;
}

void save_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors, const Metadata& metadata) {
  const std::string head = head_of(tensors, metadata);
  replace_file(path, [&](int file, const std::string& where) {
    write_all(file, where, head.data(), static_cast<int64_t>(head.size()));
    for (const auto& [name, tensor] : tensors) write_all(file, where, tensor.data(), tensor.bytes());
  });
}

Safetensors read_safetensors(std::string_view bytes, const std::shared_ptr<HostMemory>& memory) {
  MemorySource source(bytes, "");
  return read_from(source, memory);
}

Safetensors load_safetensors(const std::string& path, const std::shared_ptr<HostMemory>& memory) {
  return from_file(path, [&](ByteSource& source) { return read_from(source, memory); });
}

Metadata load_safetensors_metadata(const std::string& path) {
  return from_file(path, [](ByteSource& source) {
    Metadata metadata = read_head(source).metadata;
    for (const char* key : {kDataChecksum, kChecksum}) metadata.erase(key);
    return metadata;
  });
}

}  // namespace moonflow
