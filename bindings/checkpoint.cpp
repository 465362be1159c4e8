#include "bindings/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "bindings/checkpoint_directory.h"
#include "bindings/checksum.h"
#include "bindings/file.h"

namespace moonflow {

namespace {

constexpr const char* kFormat = "moonflow checkpoint";
constexpr int kVersion = 1;
constexpr int64_t kManifestBytes = int64_t{16} << 20;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are written as they lie in memory");

// The name of a variable's folder: its own, with what leads elsewhere, or means something else here, as % and two
// hexadecimal digits.
std::string folder_of(const std::string& name) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  constexpr size_t kLongest = 255;  // of file systems
  const bool is_taken = name == kManifest || name == kDone;
  std::string folder;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_first = folder.empty();
    if (byte < ' ' || byte == 127 || c == '/' || c == '\\' || c == '%' || (is_first && (c == '.' || is_taken)))
      folder.append({'%', kDigits[byte >> 4], kDigits[byte & 15]});
    else
      folder += c;
  }
  require(!folder.empty() && folder.size() <= kLongest, ErrorCode::InvalidArgument, "the name '", name.substr(0, 300),
          "' of a variable cannot be that of a folder, which has 1 to ", kLongest,
          " bytes; a checkpoint in one file, whose name ends in .safetensors, takes it");
  return folder;
}

// The manifest carries the checksum of itself, taken while that field is empty.
std::string sealed(Json::Object manifest) {
  manifest["checksum"] = "";
  const std::string open = write_json(manifest, JsonStyle::Indented);
  manifest["checksum"] = checksum_of(open.data(), open.size());
  return write_json(manifest, JsonStyle::Indented) + "\n";
}

// Of what the original system wrote there is only its mark, an empty file. A folder without either is no checkpoint:
// reading one would quietly find every variable missing.
void require_mark(const Descriptor& directory, const std::string& path) {
  try {
    int64_t size = 0;
    open_for_reading(directory.get(), kDone, path + "/" + kDone, size);
  } catch (const Error& error) {
    if (error.code != ErrorCode::NotFound) throw;
    fail(ErrorCode::Io, "'", path, "' is no checkpoint: it has neither ", kManifest, " nor ", kDone);
  }
}

Json read_manifest(const Descriptor& directory, const std::string& path) {
  const std::string file_path = path + "/" + kManifest;
  int64_t size = 0;
  Descriptor file;
  try {
    file = open_for_reading(directory.get(), kManifest, file_path, size);
  } catch (const Error& error) {
    if (error.code != ErrorCode::NotFound) throw;
    require_mark(directory, path);
    return Json();
  }
  FileSource source(std::move(file), file_path, size);
  if (size > kManifestBytes) source.fail_at(0, size, " bytes, at most ", kManifestBytes, " are read");
  const std::string text = source.read_rest();
  Json manifest;
  JsonFault fault;
  if (!read_json(text, manifest, fault)) source.fail_at(fault.position, fault.what);
  const auto* object = manifest.as<Json::Object>();
  const auto* format = manifest.find<std::string>("format");
  if (format == nullptr || *format != kFormat) source.fail_at(0, "no manifest of a checkpoint");
  const Json* version = manifest.find("version");
  if (version == nullptr || version->as<int64_t>() == nullptr || *version->as<int64_t>() != kVersion)
    source.fail_at(0, "checkpoint version ", write_json(version != nullptr ? *version : Json(), JsonStyle::Line),
                   ", this build reads ", kVersion);
  if (sealed(*object) != text) source.fail_at(0, "the manifest does not match its checksum");
  return manifest;
}

// What the manifest says of one variable.
struct Entry {
  TensorType type;
  std::string checksum;
};

Entry entry_of(const Json& facts, const std::string& where) {
  const auto bad = [&](const char* what) { fail(ErrorCode::Io, where, ": bad ", what, " in the manifest"); };
  Entry entry;
  if (facts.as<Json::Object>() == nullptr) bad("entry");
  const auto* dtype = facts.find<std::string>("dtype");
  const std::optional<DType> named = dtype != nullptr ? dtype_named(*dtype) : std::nullopt;
  if (!named) bad("dtype");
  entry.type.dtype = *named;
  const auto* shape = facts.find<Json::Array>("shape");
  if (shape == nullptr || shape->size() > Shape::kMaxRank) bad("shape");
  for (const Json& dim : *shape) {
    const auto* size = dim.as<int64_t>();
    if (size == nullptr || *size < 0) bad("shape");
    entry.type.shape.push_back(*size);
  }
  const auto* checksum = facts.find<std::string>("xxh3_64");
  if (checksum == nullptr) bad("checksum");
  entry.checksum = *checksum;
  return entry;
}

// The value in the variable's folder, in the file `out`, or none when there is no such file.
Tensor read_value(const Descriptor& directory, const std::string& path, const std::string& name, const TensorType& type,
                  const std::shared_ptr<HostMemory>& memory) {
  const std::string folder_name = folder_of(name), file_path = path + "/" + folder_name + "/out";
  const Descriptor folder(
      ::openat(directory.get(), folder_name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder && errno == ENOENT) return Tensor();
  if (!folder)
    fail(ErrorCode::Io, "'", path, "/", folder_name, "' is no folder, or a link, which is not followed here");
  int64_t size = 0;
  Descriptor file;
  try {
    file = open_for_reading(folder.get(), "out", file_path, size);
  } catch (const Error& error) {
    if (error.code == ErrorCode::NotFound) return Tensor();
    throw;
  }
  require(size == type.bytes(), ErrorCode::ShapeMismatch, "file '", file_path, "' has ", size, " bytes, ", type,
          " has ", type.bytes());
  FileSource source(std::move(file), file_path, size);
  Tensor value = Tensor::allocate(type, memory);
  source.read(value.data(), size);
  source.expect_end();
  return value;
}

}  // namespace

void write_checkpoint(const std::string& path, const std::map<std::string, Tensor>& values, const Json& meta,
                      bool overwrite) {
  Json::Object variables;
  for (const auto& [name, value] : values) {
    folder_of(name);  // before anything is written
    const std::vector<int64_t> dims = value.shape().dims();
    variables[name] = Json::Object{{"dtype", moonflow::name(value.dtype())},
                                   {"shape", Json::Array(dims.begin(), dims.end())},
                                   {"bytes", value.bytes()},
                                   {"xxh3_64", checksum_of(value.data(), static_cast<size_t>(value.bytes()))}};
  }
  std::string text;
  try {
    text = sealed({{"format", kFormat}, {"version", kVersion}, {"meta", meta}, {"variables", std::move(variables)}});
  } catch (const Error&) {
    fail(ErrorCode::InvalidArgument, "names and meta of a checkpoint must be UTF-8 text");
  }
  require(static_cast<int64_t>(text.size()) <= kManifestBytes, ErrorCode::InvalidArgument, "the manifest would have ",
          text.size(), " bytes, at most ", kManifestBytes, " are allowed");

  NewDirectory directory(path, overwrite);
  for (const auto& [name, value] : values) {
    const std::string folder = folder_of(name);
    directory.make_folder(folder);
    directory.write(folder + "/out", value.data(), value.bytes());
    directory.sync_folder(folder);
  }
  directory.write(kManifest, text.data(), static_cast<int64_t>(text.size()));
  directory.write(kDone, nullptr, 0);
  directory.publish();
}

Checkpoint read_checkpoint(const std::string& path, const std::optional<std::vector<NamedType>>& wanted,
                           const std::shared_ptr<HostMemory>& memory) {
  const Descriptor directory = open_checkpoint(path);
  Checkpoint checkpoint;
  checkpoint.manifest = read_manifest(directory, path);
  const Json::Object* variables = nullptr;
  if (!checkpoint.manifest.is_null()) {
    variables = checkpoint.manifest.find<Json::Object>("variables");
    require(variables != nullptr, ErrorCode::Io, "file '", path, "/", kManifest, "': no list of variables");
  }
  require(variables != nullptr || wanted, ErrorCode::Io, "checkpoint '", path, "' has no ", kManifest,
          ", so the types of its variables must be given");

  const auto read_known = [&](const std::string& name, const Json& facts, const TensorType* type) {
    const std::string where = "variable '" + name + "' of checkpoint '" + path + "'";
    const Entry entry = entry_of(facts, where);
    require(type == nullptr || *type == entry.type,
            type != nullptr && type->shape != entry.type.shape ? ErrorCode::ShapeMismatch : ErrorCode::DtypeMismatch,
            where, " is ", entry.type, ", the program wants ", type != nullptr ? *type : entry.type);
    const Tensor value = read_value(directory, path, name, entry.type, memory);
    require(static_cast<bool>(value), ErrorCode::Io, where, " is in the manifest, but its file is missing");
    require(checksum_of(value.data(), static_cast<size_t>(value.bytes())) == entry.checksum, ErrorCode::Io, where,
            ": the bytes do not match their checksum");
    checkpoint.values.emplace(name, value);
  };

  if (!wanted) {
    for (const auto& [name, facts] : *variables) read_known(name, facts, nullptr);
    return checkpoint;
  }
  for (const NamedType& variable : *wanted) {
    if (variables != nullptr) {
      const auto found = variables->find(variable.name);
      if (found != variables->end()) read_known(variable.name, found->second, &variable.type);
      continue;
    }
    const Tensor value = read_value(directory, path, variable.name, variable.type, memory);
    if (value) checkpoint.values.emplace(variable.name, value);
  }
  return checkpoint;
}

}  // namespace moonflow
