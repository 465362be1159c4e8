// Files for readers that trust nothing and writers that leave either the old file or the new one. Errors name the file
// and, where one is to blame, the offset.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"

namespace moonflow {

// The message of the system for errno, as an Io error (NotFound for a missing file).
[[noreturn]] void fail_errno(const std::string& path, const char* doing);

// A file descriptor with an owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const { return fd_; }
  int release();
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A stream of bytes from a hostile place.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Reads exactly so many bytes; a stream that ends before is an error.
  void read(void* to, int64_t bytes);
  int64_t position() const { return position_; }
  const std::string& path() const { return path_; }
  // Most bytes that can still come: what may be allocated at all for what the stream announces.
  int64_t remaining() const { return size_ - position_; }
  // Throws when there are more bytes, or a checksum at the end is wrong.
  virtual void expect_end();

  // An error about what stands at `offset`.
  template <class... Parts>
  [[noreturn]] void fail_at(int64_t offset, const Parts&... parts) const {
    fail(ErrorCode::Io, "file '", path_, "', byte ", offset, ": ", parts...);
  }

 protected:
  ByteSource(std::string path, int64_t size) : path_(std::move(path)), size_(size) {}
  // As many bytes as there are, at most `bytes`; 0 at the end.
  virtual int64_t fetch(void* to, int64_t bytes) = 0;

  std::string path_;
  int64_t size_;  // exact, or an upper bound for a compressed stream
  int64_t position_ = 0;
};

struct RegularFile {
  Descriptor descriptor;
  int64_t size;
};
// A regular file, opened for reading. Anything else under the path (a pipe, a device) is refused, not waited for.
// Relative to `directory` no link is followed.
RegularFile open_for_reading(const std::string& path);
RegularFile open_for_reading(const Descriptor& directory, const std::string& name, const std::string& path);

class FileSource : public ByteSource {
 public:
  // Opened as above.
  explicit FileSource(const std::string& path) : FileSource(open_for_reading(path), path) {}
  FileSource(const Descriptor& directory, const std::string& name, const std::string& path)
      : FileSource(open_for_reading(directory, name, path), path) {}

  int64_t size() const { return size_; }
  // Reading goes on there, which is within the file.
  void seek(int64_t offset) { position_ = offset; }
  std::string read_rest();  // all bytes from here on

 private:
  FileSource(RegularFile file, const std::string& path)
      : ByteSource(path, file.size), file_(std::move(file.descriptor)) {}
  int64_t fetch(void* to, int64_t bytes) override;
  Descriptor file_;
};

// Bytes that are there already, as of a file of this name.
class MemorySource : public ByteSource {
 public:
  MemorySource(std::string_view bytes, std::string path)
      : ByteSource(std::move(path), static_cast<int64_t>(bytes.size())), bytes_(bytes) {}

 private:
  int64_t fetch(void* to, int64_t bytes) override;
  std::string_view bytes_;
};

// Writes all of `bytes`; short and interrupted writes are continued.
void write_all(int file, const std::string& path, const void* from, int64_t bytes);
// Of a folder as well, which some file systems cannot sync: that is no error.
void sync(int file, const std::string& path);

// What the names of unfinished files and folders have behind those they will get, before digits and dashes.
constexpr const char* kTemporary = ".moonflow-tmp-";
bool is_temporary(const std::string& name);

// Locks a file or a folder for whoever has made it, until it is closed. Some file systems have no locks.
enum class Lock { Ours, Anothers, Impossible };
Lock lock_for_maker(int file);
// Closes and reports what close reports: on some file systems a full disk shows only here.
void close_written(Descriptor file, const std::string& path);

// The sorted names of what is in an open folder.
std::vector<std::string> names_in(const Descriptor& folder, const std::string& path);

// The folder that holds `path`.
std::string parent_of(const std::string& path);
void sync_directory(const std::string& path);

// Replaces the file at `path` by what `write` writes to an empty one: beside it, synced, renamed. Several may do so at
// once, also in one process: the file is that of the last. The file keeps its mode, and a symbolic link to it stays
// one, which leads to the path that `write` gets for its errors. A folder, a device or a pipe is an error.
// The first one in a folder removes what killed processes have left there.
void replace_file(const std::string& path, const std::function<void(int file, const std::string& path)>& write);
// By the two parts, one after the other.
void replace_file(const std::string& path, std::string_view head, const void* body, int64_t body_bytes);

}  // namespace moonflow
