#include "bindings/npz.h"

#include <unistd.h>
#include <zip.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <unordered_set>
#include <vector>

#include "bindings/file.h"
#include "bindings/npy.h"

namespace moonflow {

namespace {

constexpr zip_int64_t kMembers = 1 << 16;
constexpr std::string_view kSuffix = ".npy";

struct DiscardZip {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
using Zip = std::unique_ptr<zip_t, DiscardZip>;

struct CloseMember {
  void operator()(zip_file_t* member) const { zip_fclose(member); }
};
using Member = std::unique_ptr<zip_file_t, CloseMember>;

// One member of an archive, with the size that the directory gives it.
class MemberSource : public ByteSource {
 public:
  MemberSource(Member member, std::string path, int64_t size)
      : ByteSource(std::move(path), size), member_(std::move(member)) {}

  void expect_end() override {
    ByteSource::expect_end();
    char more;  // reading on past the last byte is what makes libzip check the CRC
    if (fetch(&more, 1) != 0) fail_at(position_, "more bytes than its directory says");
  }

 private:
  int64_t fetch(void* to, int64_t bytes) override {
    const zip_int64_t got = zip_fread(member_.get(), to, static_cast<zip_uint64_t>(bytes));
    if (got < 0) fail_at(position_, "bad zip data: ", zip_error_strerror(zip_file_get_error(member_.get())));
    return got;
  }
  Member member_;
};

// The archive that make(error) gives the source of; `path` is its name.
template <class Make>
Zip open_zip(const std::string& path, const Make& make) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* const source = make(&error);
  Zip archive(source != nullptr ? zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error) : nullptr);
  if (archive == nullptr) {
    const std::string why = zip_error_strerror(&error);
    zip_error_fini(&error);
    if (source != nullptr) zip_source_free(source);
    fail(ErrorCode::Io, "file '", path, "': no npz archive: ", why);
  }
  return archive;
}

bool leaves_folder(const std::string& name) {
  return name.empty() || name[0] == '/' || name.find('\\') != name.npos || name == ".." || name.substr(0, 3) == "../" ||
         name.find("/../") != name.npos;
}

// The directory of the archive, with everything refused that no honest npz has.
std::vector<zip_stat_t> checked_members(zip_t* archive, const std::string& path, int64_t file_bytes, int64_t budget) {
  const zip_int64_t count = zip_get_num_entries(archive, 0);
  require(count >= 0 && count <= kMembers, ErrorCode::Io, "file '", path, "': ", count, " members, at most ", kMembers,
          " are read");
  std::vector<zip_stat_t> members;
  std::unordered_set<std::string> names;
  int64_t compressed = 0, inflated = 0;
  for (zip_int64_t i = 0; i < count; ++i) {
    zip_stat_t member;
    zip_stat_init(&member);
    const int result = zip_stat_index(archive, static_cast<zip_uint64_t>(i), 0, &member);
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    require(result == 0 && (member.valid & kNeeded) == kNeeded, ErrorCode::Io, "file '", path, "': member ", i,
            " has no complete entry in the directory");
    const auto refuse = [&](const auto&... why) {
      fail(ErrorCode::Io, "file '", path, "', member '", member.name, "': ", why...);
    };
    const std::string name = member.name;
    if (leaves_folder(name)) refuse("the name leaves the archive");
    if (name.size() <= kSuffix.size() || name.substr(name.size() - kSuffix.size()) != kSuffix)
      refuse("is no .npy array");
    if (member.comp_method != ZIP_CM_STORE && member.comp_method != ZIP_CM_DEFLATE)
      refuse("compression method ", member.comp_method, " is not supported");
    if ((member.valid & ZIP_STAT_ENCRYPTION_METHOD) && member.encryption_method != ZIP_EM_NONE) refuse("is encrypted");
    if (!names.insert(name).second) refuse("there are two of this name");
    // Members that overlap in the file are the way to bombs of unbounded size; their sum shows them.
    if (member.comp_size > static_cast<zip_uint64_t>(file_bytes - compressed)) refuse("overlaps other members");
    compressed += static_cast<int64_t>(member.comp_size);
    if (member.size > static_cast<zip_uint64_t>(budget - inflated))
      refuse("the arrays need more than the ", budget, " bytes that are allowed for this file");
    inflated += static_cast<int64_t>(member.size);
    members.push_back(member);
  }
  return members;
}

}  // namespace

int64_t npz_budget(int64_t file_bytes) {
  constexpr int64_t kSmall = int64_t{1} << 30;
  return std::max(kSmall, std::min(file_bytes, int64_t{1} << 50) * 100);
}

namespace {

std::map<std::string, Tensor> read_arrays(const Zip& archive, const std::string& path, int64_t size, int64_t budget,
                                          const std::set<std::string>& names,
                                          const std::shared_ptr<HostMemory>& memory) {
  std::map<std::string, Tensor> arrays;
  std::string passed_over;
  for (const zip_stat_t& entry : checked_members(archive.get(), path, size, budget < 0 ? npz_budget(size) : budget)) {
    const std::string name = entry.name, array = name.substr(0, name.size() - kSuffix.size());
    if (!names.empty() && names.count(array) == 0) {
      passed_over += (passed_over.empty() ? "" : ", ") + array;
      continue;
    }
    Member member(zip_fopen_index(archive.get(), entry.index, 0));
    if (member == nullptr)
      fail(ErrorCode::Io, "file '", path, "', member '", name, "': ", zip_error_strerror(zip_get_error(archive.get())));
    MemberSource source(std::move(member), path + "/" + name, static_cast<int64_t>(entry.size));
    arrays.emplace(array, read_npy(source, memory));
  }
  for (const std::string& name : names) {
    require(arrays.count(name) > 0, ErrorCode::NotFound, "file '", path, "' has no array '", name, "'",
            passed_over.empty() ? "" : "; it has ", passed_over);
  }
  return arrays;
}

}  // namespace

std::map<std::string, Tensor> read_npz(const std::string& path, int64_t budget_bytes,
                                       const std::set<std::string>& names, const std::shared_ptr<HostMemory>& memory) {
  RegularFile file = open_for_reading(path);
  std::FILE* const stream = ::fdopen(file.descriptor.get(), "rb");
  if (stream == nullptr) fail_errno(path, "open");
  file.descriptor.release();
  const Zip archive = open_zip(path, [&](zip_error_t* error) {
    zip_source_t* const source = zip_source_filep_create(stream, 0, -1, error);
    if (source == nullptr) std::fclose(stream);
    return source;
  });
  return read_arrays(archive, path, file.size, budget_bytes, names, memory);
}

std::map<std::string, Tensor> read_npz(std::string_view bytes, const std::string& name,
                                       const std::set<std::string>& names, const std::shared_ptr<HostMemory>& memory) {
  const Zip archive = open_zip(
      name, [&](zip_error_t* error) { return zip_source_buffer_create(bytes.data(), bytes.size(), 0, error); });
  return read_arrays(archive, name, static_cast<int64_t>(bytes.size()), -1, names, memory);
}

namespace {

// An open file, empty so far, that libzip writes an archive to.
struct NewFile {
  const int file;
  zip_error_t error;

  explicit NewFile(int file) : file(file) { zip_error_init(&error); }
  ~NewFile() { zip_error_fini(&error); }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
};

zip_int64_t write_to(void* user, void* data, zip_uint64_t length, zip_source_cmd_t command) {
  zip_error_t& error = static_cast<NewFile*>(user)->error;
  const int file = static_cast<NewFile*>(user)->file;
  const auto checked = [&error](int64_t result, int code) -> zip_int64_t {
    if (result < 0) zip_error_set(&error, code, errno);
    return result;
  };
  switch (command) {
    case ZIP_SOURCE_SUPPORTS:
      return ZIP_SOURCE_SUPPORTS_WRITABLE;
    case ZIP_SOURCE_STAT:
      zip_stat_init(static_cast<zip_stat_t*>(data));
      return sizeof(zip_stat_t);
    case ZIP_SOURCE_ERROR:
      return zip_error_to_data(&error, data, length);
    case ZIP_SOURCE_WRITE: {
      // All of it: of less the library says that it was interrupted, and not why.
      zip_uint64_t done = 0;
      while (done < length) {
        const ssize_t written = ::write(file, static_cast<const char*>(data) + done, length - done);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return checked(written, ZIP_ER_WRITE);
        done += static_cast<zip_uint64_t>(written);
      }
      return static_cast<zip_int64_t>(done);
    }
    case ZIP_SOURCE_SEEK_WRITE: {
      const auto* seek = ZIP_SOURCE_GET_ARGS(zip_source_args_seek_t, data, length, &error);
      if (seek == nullptr) return -1;
      return std::min<int64_t>(checked(::lseek(file, seek->offset, seek->whence), ZIP_ER_SEEK), 0);
    }
    case ZIP_SOURCE_TELL_WRITE:
      return checked(::lseek(file, 0, SEEK_CUR), ZIP_ER_TELL);
    case ZIP_SOURCE_OPEN:
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
    case ZIP_SOURCE_BEGIN_WRITE:
    case ZIP_SOURCE_COMMIT_WRITE:
    case ZIP_SOURCE_ROLLBACK_WRITE:
      return 0;
    default:
      zip_error_set(&error, ZIP_ER_OPNOTSUPP, 0);
      return -1;
  }
}

// `whole` is where the archive goes, and is freed; `error` is that of making it.
void write_members(zip_source_t* whole, zip_error_t& error, const std::string& path,
                   const std::map<std::string, Tensor>& arrays) {
  std::vector<std::string> headers;  // kept until the archive is written
  headers.reserve(arrays.size());
  Zip archive(whole != nullptr ? zip_open_from_source(whole, ZIP_CREATE | ZIP_TRUNCATE, &error) : nullptr);
  if (archive == nullptr) {
    const std::string why = zip_error_strerror(&error);
    if (whole != nullptr) zip_source_free(whole);
    fail(ErrorCode::Io, "cannot write '", path, "': ", why);
  }
  const auto check = [&](bool holds) {
    if (!holds) fail(ErrorCode::Io, "cannot write '", path, "': ", zip_error_strerror(zip_get_error(archive.get())));
  };
  for (const auto& [name, array] : arrays) {
    headers.push_back(npy_header(array.type()));
    const zip_buffer_fragment_t parts[] = {
        {reinterpret_cast<zip_uint8_t*>(headers.back().data()), headers.back().size()},
        {array.data<zip_uint8_t>(), static_cast<zip_uint64_t>(array.bytes())}};
    zip_source_t* source = zip_source_buffer_fragment(archive.get(), parts, array.bytes() > 0 ? 2 : 1, 0);
    check(source != nullptr);
    const zip_int64_t index = zip_file_add(archive.get(), (name + ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) zip_source_free(source);
    check(index >= 0);
    check(zip_set_file_compression(archive.get(), static_cast<zip_uint64_t>(index), ZIP_CM_STORE, 0) == 0);
    constexpr zip_uint16_t kFirstDay = 1 << 5 | 1;  // 1980-01-01, where zip begins to count
    check(zip_file_set_dostime(archive.get(), static_cast<zip_uint64_t>(index), 0, kFirstDay, 0) == 0);
  }
  check(zip_close(archive.get()) == 0);
  archive.release();  // closing it has freed it
}

void check_members(const std::map<std::string, Tensor>& arrays) {
  for (const auto& [name, array] : arrays)
    require(!leaves_folder(name) && name.find('\0') == name.npos, ErrorCode::InvalidArgument, "'", name,
            "' cannot name an array in an archive");
  require(!arrays.empty(), ErrorCode::InvalidArgument, "an archive needs at least one array");
}

struct FreeSource {
  void operator()(zip_source_t* source) const { zip_source_free(source); }
};

}  // namespace

void write_npz(const std::string& path, const std::map<std::string, Tensor>& arrays) {
  check_members(arrays);
  replace_file(path, [&](int file, const std::string& where) {
    NewFile to(file);
    write_members(zip_source_function_create(write_to, &to, &to.error), to.error, where, arrays);
  });
}

std::string encode_npz(const std::map<std::string, Tensor>& arrays) {
  check_members(arrays);
  NewFile to(-1);
  zip_source_t* const memory = zip_source_buffer_create(nullptr, 0, 0, &to.error);
  require(memory != nullptr, ErrorCode::OutOfMemory, "no memory for an archive");
  const std::unique_ptr<zip_source_t, FreeSource> kept(memory);
  zip_source_keep(memory);  // beside the archive, which frees it when it is closed
  write_members(memory, to.error, "the bytes of an archive", arrays);
  zip_stat_t is;
  require(zip_source_stat(memory, &is) == 0 && zip_source_open(memory) == 0, ErrorCode::Internal,
          "libzip does not give the archive that it has written");
  std::string bytes(is.size, '\0');
  const zip_int64_t read = zip_source_read(memory, bytes.data(), bytes.size());
  zip_source_close(memory);
  require(read == static_cast<zip_int64_t>(bytes.size()), ErrorCode::Internal, "libzip gives ", read,
          " bytes of an archive of ", bytes.size());
  return bytes;
}

}  // namespace moonflow
