#include "bindings/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <utility>

#include "bindings/checkpoint_directory.h"
#include "bindings/checkpoint_meta.h"
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

// A file in the folder, or none when there is no such file.
std::optional<FileSource> open_file(const Descriptor& folder, const char* name, const std::string& file_path) {
  try {
    return FileSource(folder, name, file_path);
  } catch (const Error& error) {
    if (error.code != ErrorCode::NotFound) throw;
    return std::nullopt;
  }
}

// Of what the original system wrote there is only its mark, an empty file. A folder without either is no checkpoint:
// reading one would quietly find every variable missing.
void require_mark(const Descriptor& directory, const std::string& path) {
  if (!open_file(directory, kDone, path + "/" + kDone))
    fail(ErrorCode::Io, "'", path, "' is no checkpoint: it has neither ", kManifest, " nor ", kDone);
}

Json read_manifest(const Descriptor& directory, const std::string& path) {
  std::optional<FileSource> opened = open_file(directory, kManifest, path + "/" + kManifest);
  if (!opened) {
    require_mark(directory, path);
    return Json();
  }
  FileSource& source = *opened;
  if (source.size() > kManifestBytes) source.fail_at(0, source.size(), " bytes, at most ", kManifestBytes, " are read");
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

// The folder of a variable, or none when there is no such folder.
Descriptor open_folder(const Descriptor& directory, const std::string& path, const std::string& folder) {
  Descriptor opened(::openat(directory.get(), folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened && errno != ENOENT)
    fail(ErrorCode::Io, "'", path, "/", folder, "' is no folder, or a link, which is not followed here");
  return opened;
}

// The value in a variable's folder, in the file `out`, or none when there is no such file.
Tensor read_value(const Descriptor& directory, const std::string& path, const std::string& folder_name,
                  const TensorType& type, const std::shared_ptr<HostMemory>& memory) {
  const std::string file_path = path + "/" + folder_name + "/out";
  const Descriptor folder = open_folder(directory, path, folder_name);
  std::optional<FileSource> source;
  if (folder) source = open_file(folder, "out", file_path);
  if (!source) return Tensor();
  require(source->size() == type.bytes(), ErrorCode::ShapeMismatch, "file '", file_path, "' has ", source->size(),
          " bytes, ", type, " has ", type.bytes());
  Tensor value = Tensor::allocate(type, memory);
  source->read(value.data(), type.bytes());
  source->expect_end();
  return value;
}

void expect_type(const std::string& where, const TensorType& type, const TensorType& wanted) {
  require(type == wanted, type.shape != wanted.shape ? ErrorCode::ShapeMismatch : ErrorCode::DtypeMismatch, where,
          " is ", type, ", the program wants ", wanted);
}

// ---- what the original system wrote -------------------------------------------------------------------------------

// The type that is noted beside a variable's value, if it is.
std::optional<TensorType> noted_type(const Descriptor& directory, const std::string& path, const std::string& folder) {
  constexpr int64_t kMetaBytes = 4096;
  const std::string file_path = path + "/" + folder + "/" + kMeta;
  const Descriptor opened = open_folder(directory, path, folder);
  std::optional<FileSource> source;
  if (opened) source = open_file(opened, kMeta, file_path);
  if (!source) return std::nullopt;
  require(source->size() <= kMetaBytes, ErrorCode::Io, "file '", file_path, "' has ", source->size(),
          " bytes, at most ", kMetaBytes, " are read");
  return type_in_meta(source->read_rest(), "file '" + file_path + "'");
}

// All variables, where types are noted.
std::vector<NamedType> noted_variables(const Descriptor& directory, const std::string& path) {
  std::vector<NamedType> found;
  std::string unknown;
  for (const std::string& name : names_in(directory, path)) {
    struct stat facts {};
    const bool is_there = ::fstatat(directory.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0;
    if (name[0] == '.' || !is_there || !S_ISDIR(facts.st_mode)) continue;
    if (const auto type = noted_type(directory, path, name))
      found.push_back({name, *type});
    else
      unknown = name;
  }
  require(unknown.empty() || found.empty(), ErrorCode::Io, "checkpoint '", path, "' has no ", kMeta, " beside '",
          unknown,
          "', as others have, so its type is not known; flow.train.CheckPoint():load takes it from the jobs defined so "
          "far");
  return found;
}

std::map<std::string, Tensor> read_original(const Descriptor& directory, const std::string& path,
                                            const std::optional<std::vector<NamedType>>& wanted,
                                            const std::shared_ptr<HostMemory>& memory) {
  std::map<std::string, Tensor> values;
  const std::vector<NamedType> variables = wanted ? *wanted : noted_variables(directory, path);
  require(wanted || !variables.empty(), ErrorCode::Io, "checkpoint '", path, "' has no ", kManifest, ", nor a ", kMeta,
          " beside its values, so their types must be given; flow.train.CheckPoint():load takes them from the jobs "
          "defined so far");
  for (const NamedType& variable : variables) {
    // A name that was found is that of the folder: the original system escapes nothing.
    const std::string folder = wanted ? folder_of(variable.name) : variable.name;
    if (wanted) {
      const auto type = noted_type(directory, path, folder);
      if (type) expect_type("variable '" + variable.name + "' of checkpoint '" + path + "'", *type, variable.type);
    }
    const Tensor value = read_value(directory, path, folder, variable.type, memory);
    if (value) values.emplace(variable.name, value);
  }
  return values;
}

}  // namespace

void write_checkpoint(const std::string& path, const std::map<std::string, Tensor>& values, const Json& meta,
                      bool overwrite) {
  Json::Object variables;
  for (const auto& [name, value] : values) {
    folder_of(name);  // before anything is written
    prefixing([&, name = name] { write_json(name, JsonStyle::Line); }, "the name '", name, "' of a variable");
    const std::vector<int64_t> dims = value.shape().dims();
    variables[name] = Json::Object{{"dtype", moonflow::name(value.dtype())},
                                   {"shape", Json::Array(dims.begin(), dims.end())},
                                   {"bytes", value.bytes()},
                                   {"xxh3_64", checksum_of(value.data(), static_cast<size_t>(value.bytes()))}};
  }
  const std::string text =
      sealed({{"format", kFormat}, {"version", kVersion}, {"meta", meta}, {"variables", std::move(variables)}});
  require(static_cast<int64_t>(text.size()) <= kManifestBytes, ErrorCode::InvalidArgument, "the manifest would have ",
          text.size(), " bytes, at most ", kManifestBytes, " are allowed");

  NewDirectory directory(path, overwrite);
  for (const auto& [name, value] : values) {
    const std::string folder = folder_of(name);
    directory.make_folder(folder);
    directory.write(folder + "/out", value.data(), value.bytes());
  }
  directory.write(kManifest, text.data(), static_cast<int64_t>(text.size()));
  directory.write(kDone, nullptr, 0);
  directory.publish();
}

namespace {

Checkpoint read_from(const Descriptor& directory, const std::string& path,
                     const std::optional<std::vector<NamedType>>& wanted, const std::shared_ptr<HostMemory>& memory) {
  Checkpoint checkpoint;
  checkpoint.manifest = read_manifest(directory, path);
  if (checkpoint.manifest.is_null()) {
    checkpoint.values = read_original(directory, path, wanted, memory);
    return checkpoint;
  }
  const auto* variables = checkpoint.manifest.find<Json::Object>("variables");
  require(variables != nullptr, ErrorCode::Io, "file '", path, "/", kManifest, "': no list of variables");

  const auto read_known = [&](const std::string& name, const Json& facts, const TensorType* type) {
    const std::string where = "variable '" + name + "' of checkpoint '" + path + "'";
    const Entry entry = entry_of(facts, where);
    if (type != nullptr) expect_type(where, entry.type, *type);
    const Tensor value = read_value(directory, path, folder_of(name), entry.type, memory);
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
    const auto found = variables->find(variable.name);
    if (found != variables->end()) read_known(variable.name, found->second, &variable.type);
  }
  return checkpoint;
}

bool is_same(const Descriptor& a, const Descriptor& b) {
  struct stat one, other;
  return ::fstat(a.get(), &one) == 0 && ::fstat(b.get(), &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

}  // namespace

Checkpoint read_checkpoint(const std::string& path, const std::optional<std::vector<NamedType>>& wanted,
                           const std::shared_ptr<HostMemory>& memory) {
  constexpr int kMostTimes = 100;
  Descriptor directory = open_checkpoint(path);
  for (int times = 1;; ++times) {
    Checkpoint checkpoint;
    std::exception_ptr problem;
    try {
      checkpoint = read_from(directory, path, wanted, memory);
    } catch (const Error&) {
      problem = std::current_exception();
    }
    if (!problem && !checkpoint.manifest.is_null()) return checkpoint;
    // Another one may have been put in its place, and this one's files removed while they were read.
    Descriptor now = open_checkpoint(path);
    if (times == kMostTimes || is_same(directory, now)) {
      if (problem) std::rethrow_exception(problem);
      return checkpoint;
    }
    directory = std::move(now);
  }
}

}  // namespace moonflow
