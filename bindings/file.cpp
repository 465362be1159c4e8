#include "bindings/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

namespace moonflow {

namespace {

constexpr int64_t kChunk = int64_t{1} << 30;  // one read or write; the kernel takes no more than 2 GiB at once

RegularFile open_regular(int directory, const std::string& name, int flags, const std::string& path) {
  // Without O_NONBLOCK the open of a pipe would wait for its other end.
  Descriptor file(::openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags));
  if (!file && errno == ELOOP) fail(ErrorCode::Io, "file '", path, "' is a symbolic link, which is not followed here");
  if (!file) fail_errno(path, "open");
  struct stat facts;
  if (::fstat(file.get(), &facts) != 0) fail_errno(path, "look at");
  require(S_ISREG(facts.st_mode), ErrorCode::Io, "file '", path, "' is no regular file");
  return {std::move(file), facts.st_size};
}

}  // namespace

void fail_errno(const std::string& path, const char* doing) {
  const int error = errno;
  fail(error == ENOENT ? ErrorCode::NotFound : ErrorCode::Io, "cannot ", doing, " '", path,
       "': ", std::generic_category().message(error));
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int Descriptor::release() { return std::exchange(fd_, -1); }

void ByteSource::read(void* to, int64_t bytes) {
  auto* out = static_cast<char*>(to);
  while (bytes > 0) {
    const int64_t got = fetch(out, std::min(bytes, kChunk));
    if (got == 0) fail_at(position_, "the file ends, but ", bytes, " more bytes are announced");
    out += got;
    bytes -= got;
    position_ += got;
  }
}

RegularFile open_for_reading(const std::string& path) { return open_regular(AT_FDCWD, path, 0, path); }

RegularFile open_for_reading(const Descriptor& directory, const std::string& name, const std::string& path) {
  return open_regular(directory.get(), name, O_NOFOLLOW, path);
}

void ByteSource::expect_end() {
  if (position_ != size_) fail_at(position_, size_ - position_, " bytes too many");
}

int64_t FileSource::fetch(void* to, int64_t bytes) {
  for (;;) {
    const ssize_t got = ::pread(file_.get(), to, static_cast<size_t>(bytes), position_);
    if (got >= 0) return got;
    if (errno != EINTR) fail_errno(path_, "read");
  }
}

std::string FileSource::read_rest() {
  std::string bytes(static_cast<size_t>(remaining()), '\0');
  read(bytes.data(), remaining());
  return bytes;
}

int64_t MemorySource::fetch(void* to, int64_t bytes) {
  const int64_t got = std::min(bytes, remaining());
  std::copy_n(bytes_.data() + position_, got, static_cast<char*>(to));
  return got;
}

void write_all(int file, const std::string& path, const void* from, int64_t bytes) {
  const auto* rest = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t written = ::write(file, rest, static_cast<size_t>(std::min(bytes, kChunk)));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno(path, "write");
    rest += written;
    bytes -= written;
  }
}

void sync(int file, const std::string& path) {
  while (::fsync(file) != 0) {
    if (errno == EINVAL) return;
    if (errno != EINTR) fail_errno(path, "sync");
  }
}

bool is_temporary(const std::string& name) {
  const size_t mark = name.rfind(kTemporary);
  return mark != std::string::npos &&
         name.find_first_not_of("0123456789-", mark + std::strlen(kTemporary)) == name.npos;
}

Lock lock_for_maker(int file) {
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return Lock::Ours;
  return errno == EWOULDBLOCK ? Lock::Anothers : Lock::Impossible;
}

void close_written(Descriptor file, const std::string& path) {
  // After EINTR the descriptor is gone on Linux; closing again could hit another thread's file.
  if (::close(file.release()) != 0 && errno != EINTR) fail_errno(path, "close");
}

std::vector<std::string> names_in(const Descriptor& folder, const std::string& path) {
  struct Close {
    void operator()(DIR* listing) const { ::closedir(listing); }
  };
  Descriptor own(::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));  // with a place of its own in it
  const std::unique_ptr<DIR, Close> listing(own ? ::fdopendir(own.get()) : nullptr);
  if (!listing) fail_errno(path, "list");
  own.release();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(listing.get());
    if (!entry && errno != 0) fail_errno(path, "list");
    if (!entry) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == path.npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

void sync_directory(const std::string& path) {
  const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory && errno == EACCES) return;  // one may write into a folder that one may not read
  if (!directory) fail_errno(path, "open");
  sync(directory.get(), path);
}

namespace {

// Is it still at this path, and what a writer of ours has made? Where another name leads to it, or it is somebody
// else's, it is not.
bool is_left(int file, const std::string& path) {
  struct stat own, there;
  return ::fstat(file, &own) == 0 && ::lstat(path.c_str(), &there) == 0 && own.st_ino == there.st_ino &&
         S_ISREG(own.st_mode) && own.st_nlink == 1 && own.st_uid == ::geteuid();
}

// Removes what killed writers have left in the folder, whatever it was to become: a name of its own for each save would
// otherwise never be cleaned up. Whoever writes holds the lock of its file, and one that has just made it finds it
// locked, or gone, and takes another. Once for each folder, as a process that is killed leaves its own to the next one.
void remove_leftovers(const std::string& folder) {
  static std::mutex mutex;
  static std::set<std::pair<dev_t, ino_t>> seen;
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat facts;
  if (!directory || ::fstat(directory.get(), &facts) != 0) return;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!seen.insert({facts.st_dev, facts.st_ino}).second) return;
  }
  for (const std::string& name : names_in(directory, folder)) {
    if (!is_temporary(name)) continue;
    const std::string path = folder + "/" + name;
    const Descriptor left(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (left && lock_for_maker(left.get()) == Lock::Ours && is_left(left.get(), path)) ::unlink(path.c_str());
  }
}

// An empty file beside `path`, locked while its maker lives. What a killed one has left is taken over, so that no save
// leaves more behind than the next one clears away; where files cannot be locked it has a name that nobody else takes.
Descriptor open_beside(const std::string& path, std::string& beside) {
  constexpr int kMostWriters = 1000;
  std::string process;
  int new_alone = 0;
  for (int number = 0; number < kMostWriters; ++number) {
    beside = path + kTemporary + process + std::to_string(number);
    Descriptor file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | new_alone, 0666));
    struct stat there;
    if (!file) {
      const int error = errno;
      if (::lstat(beside.c_str(), &there) == 0) continue;  // not for us to write
      errno = error;
      fail_errno(path, "write");
    }
    if (new_alone != 0) return file;
    const Lock lock = lock_for_maker(file.get());
    if (lock == Lock::Anothers) continue;
    if (lock == Lock::Impossible) {
      ::unlink(beside.c_str());
      process = std::to_string(::getpid()) + "-";
      new_alone = O_EXCL;
      continue;
    }
    // Its maker may have put it in place, or removed it, before it was locked here.
    if (is_left(file.get(), beside) && ::ftruncate(file.get(), 0) == 0) return file;
  }
  fail(ErrorCode::Io, "cannot write '", path, "': there are ", kMostWriters, " unfinished files beside it");
}

// What the symbolic links at `path` lead to, which need not be there yet; `path` itself where it is none.
std::string behind_links(std::string path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  for (int links = 0; links < kMostLinks; ++links) {
    char target[PATH_MAX];
    const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
    if (length < 0) return path;
    const std::string next(target, static_cast<size_t>(length));
    path = next.front() == '/' ? next : parent_of(path) + "/" + next;
  }
  errno = ELOOP;
  fail_errno(path, "write");
}

}  // namespace

void replace_file(const std::string& named, const std::function<void(int file, const std::string& path)>& write) {
  const std::string path = behind_links(named);
  // A rename takes the place of a device or a pipe as well, and of all that others write to it.
  struct stat there;
  const bool exists = ::stat(path.c_str(), &there) == 0;
  require(!exists || S_ISREG(there.st_mode), ErrorCode::Io, "cannot write '", path, "': it is no regular file");
  if (exists && ::access(path.c_str(), W_OK) != 0) fail_errno(path, "write");  // who protects a file means it
  remove_leftovers(parent_of(path));
  std::string beside;
  Descriptor file = open_beside(path, beside);
  try {
    const Descriptor lock(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));  // until the file is in place
    if (!lock) fail_errno(path, "write");
    if (exists) ::fchmod(file.get(), there.st_mode & 07777);  // as far as the file system has modes
    write(file.get(), path);
    sync(file.get(), path);
    close_written(std::move(file), path);
    if (::rename(beside.c_str(), path.c_str()) != 0) fail_errno(path, "replace");
  } catch (...) {
    ::unlink(beside.c_str());
    throw;
  }
  sync_directory(parent_of(path));
}

void replace_file(const std::string& path, std::string_view head, const void* body, int64_t body_bytes) {
  replace_file(path, [&](int file, const std::string& where) {
    write_all(file, where, head.data(), static_cast<int64_t>(head.size()));
    write_all(file, where, body, body_bytes);
  });
}

}  // namespace moonflow
