// How a checkpoint is never half there:
//   1. Everything is written into <target>.moonflow-tmp-<process>-<number>, then each file and folder is synced.
//   2. With no target, or an empty one, rename(2) puts it in place: atomic.
//   3. With an old checkpoint in place, renameat2(RENAME_EXCHANGE) swaps the two: atomic as well. Only then is the old
//      one removed, under the temporary name.
//   4. Where the file system cannot exchange, the old one is renamed to <target>.moonflow-previous and the new one into
//      place. A crash between the two leaves the target missing and the previous one whole: reading falls back to it,
//      and the next save starts by putting it back.
//   5. Another process may save there at any moment: a folder is looked at, and removed, by its descriptor, and where
//      it is not in its place any more, what was missing in it says nothing.
//   6. One that is removed for good gets a temporary name first, so that nobody finds a part of it under its own.
//   7. The parent is synced. What a killed process left under a temporary name is not locked by anyone, and the next
//      save into the same parent removes it: a target of its own for each save would otherwise never be cleaned up.
#include "bindings/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace moonflow {

namespace {

constexpr const char* kPrevious = ".moonflow-previous";

Descriptor open_folder(int directory, const char* name, int flags = O_NOFOLLOW) {
  return Descriptor(::openat(directory, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags));
}

bool is_kind(const Descriptor& directory, const std::string& name, mode_t kind) {
  struct stat facts;
  return ::fstatat(directory.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0 && (facts.st_mode & S_IFMT) == kind;
}

bool exists(const std::string& path) {
  struct stat facts;
  return ::lstat(path.c_str(), &facts) == 0;
}

// Is the folder still where it was opened? Another process may have put its own there, and be removing this one.
bool is_in_place(const Descriptor& folder, const std::string& path) {
  struct stat own, there;
  return ::fstat(folder.get(), &own) == 0 && ::lstat(path.c_str(), &there) == 0 && own.st_dev == there.st_dev &&
         own.st_ino == there.st_ino;
}

// What is `done` to it, such as "overwritten", removes the folder, so it must be a checkpoint and nothing else:
// nobody's home is deleted by a typo.
void require_only_checkpoint(const Descriptor& directory, const std::string& path, const char* done) {
  bool complete = false;
  for (const std::string& name : names_in(directory, path)) {
    const bool is_mark = name == kManifest || name == kDone;
    complete = complete || is_mark;
    if (is_mark && is_kind(directory, name, S_IFREG)) continue;
    const Descriptor folder = open_folder(directory.get(), name.c_str());
    require(static_cast<bool>(folder), ErrorCode::Io, "'", path, "' is not ", done, ": it holds '", name,
            "', which is no part of a checkpoint");
    for (const std::string& inner : names_in(folder, path + "/" + name))
      require((inner == "out" || inner == "meta") && is_kind(folder, inner, S_IFREG), ErrorCode::Io, "'", path,
              "' is not ", done, ": it holds '", name, "/", inner, "', which is no part of a checkpoint");
  }
  require(complete, ErrorCode::Io, "'", path, "' is not ", done, ": it is no checkpoint, there is no ", kManifest);
}

// Removes a folder of the known form, the manifest first so that a rest of it is never taken for a whole. Best effort:
// anything unknown in it stays, and the folder with it.
void remove_checkpoint(const Descriptor& directory, const std::string& path) noexcept {
  try {
    ::unlinkat(directory.get(), kManifest, 0);
    ::unlinkat(directory.get(), kDone, 0);
    for (const std::string& name : names_in(directory, path)) {
      const Descriptor folder = open_folder(directory.get(), name.c_str());
      if (!folder) continue;
      ::unlinkat(folder.get(), "out", 0);
      ::unlinkat(folder.get(), "meta", 0);
      ::unlinkat(directory.get(), name.c_str(), AT_REMOVEDIR);
    }
    if (is_in_place(directory, path)) ::rmdir(path.c_str());
  } catch (const std::exception&) {
  }
}

void remove_checkpoint(const std::string& path) noexcept {
  const Descriptor directory = open_folder(AT_FDCWD, path.c_str());
  if (directory) remove_checkpoint(directory, path);
}

// Removes temporary folders whose makers are gone, which their lock tells.
void remove_leftovers(const std::string& parent) {
  const Descriptor directory = open_folder(AT_FDCWD, parent.c_str(), 0);
  if (!directory) fail_errno(parent, "open the folder");
  for (const std::string& name : names_in(directory, parent)) {
    if (!is_temporary(name)) continue;
    const Descriptor leftover = open_folder(directory.get(), name.c_str());
    if (leftover && lock_for_maker(leftover.get()) == Lock::Ours) remove_checkpoint(leftover, parent + "/" + name);
  }
}

// What is at the path may be replaced: nothing, an empty folder, or, where `overwrite` allows it, a checkpoint.
void require_replaceable(const std::string& path, bool overwrite) {
  while (exists(path)) {
    const Descriptor old = open_folder(AT_FDCWD, path.c_str());
    if (!old && errno == ENOENT) continue;
    require(old || errno != ENOTDIR, ErrorCode::Io, "'", path, "' exists and is no folder");
    if (!old) fail_errno(path, "open the folder");
    try {
      if (names_in(old, path).empty()) return;
      require(overwrite, ErrorCode::Io, "folder '", path,
              "' exists and is not empty; overwrite = true replaces the checkpoint in it");
      return require_only_checkpoint(old, path, "overwritten");
    } catch (const Error&) {
      if (!overwrite || is_in_place(old, path)) throw;
    }
  }
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// What a folder of this process beside `target` is called, of which there may be several.
std::string name_beside(const std::string& target, int number) {
  return target + kTemporary + std::to_string(::getpid()) + "-" + std::to_string(number);
}

}  // namespace

NewDirectory::NewDirectory(std::string target, bool overwrite)
    : target_(without_slashes(std::move(target))), overwrite_(overwrite) {
  const std::string previous = target_ + kPrevious;
  if (!exists(target_) && exists(previous) && ::rename(previous.c_str(), target_.c_str()) != 0)
    fail_errno(previous, "put back");
  require_replaceable(target_, overwrite);
  remove_leftovers(parent_of(target_));
  for (int number = 0; !make_beside(number); ++number)
    if (number == 1000) fail_errno(target_, "make the folder");
}

// False where there is one already, and where another process took it for a leftover before it was locked. Where there
// are no locks there is nobody who takes leftovers either.
bool NewDirectory::make_beside(int number) {
  beside_ = name_beside(target_, number);
  if (::mkdir(beside_.c_str(), 0777) != 0) {
    if (errno != EEXIST) fail_errno(target_, "make the folder");
    return false;
  }
  directory_ = open_folder(AT_FDCWD, beside_.c_str());
  if (!directory_ && errno == ENOENT) return false;
  if (directory_ && lock_for_maker(directory_.get()) == Lock::Anothers) return false;
  struct stat facts;
  if (directory_ && ::fstat(directory_.get(), &facts) == 0) return facts.st_nlink > 0;
  const int error = errno;
  ::rmdir(beside_.c_str());
  errno = error;
  fail_errno(beside_, "open");
}

NewDirectory::~NewDirectory() {
  if (!published_) remove_checkpoint(beside_);
}

void NewDirectory::make_folder(const std::string& name) {
  if (::mkdirat(directory_.get(), name.c_str(), 0777) != 0) fail_errno(target_ + "/" + name, "make the folder");
  unsynced_.push_back(name);
}

void NewDirectory::write(const std::string& name, const void* data, int64_t bytes) {
  const std::string path = target_ + "/" + name;
  Descriptor file(::openat(directory_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file) fail_errno(path, "write");
  write_all(file.get(), path, data, bytes);
  ::sync_file_range(file.get(), 0, 0, SYNC_FILE_RANGE_WRITE);  // begins, for the sync to come
  close_written(std::move(file), path);
  unsynced_.push_back(name);
}

// Where all is written already the first of them has most of the work, and the others find it done: one by one as they
// are written, each would wait for the disk.
void NewDirectory::sync_all() {
  for (const std::string& name : unsynced_) {
    const Descriptor made(::openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!made) fail_errno(target_ + "/" + name, "open");
    sync(made.get(), target_ + "/" + name);
  }
  sync(directory_.get(), target_);
}

// Swaps the new folder and the old one; false where the file system has no such call.
bool NewDirectory::exchange() {
  constexpr unsigned kExchange = 1 << 1;  // RENAME_EXCHANGE
  if (::syscall(SYS_renameat2, AT_FDCWD, beside_.c_str(), AT_FDCWD, target_.c_str(), kExchange) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) return false;
  fail_errno(target_, "replace");
}

void NewDirectory::publish() {
  sync_all();
  const std::string parent = parent_of(target_);
  // Atomic, and refused by the system when someone filled the target meanwhile.
  if (::rename(beside_.c_str(), target_.c_str()) == 0) {
    published_ = true;
    sync_directory(parent);
    return;
  }
  if (errno != ENOTEMPTY && errno != EEXIST) fail_errno(target_, "put in place");
  require(overwrite_, ErrorCode::Io, "folder '", target_,
          "' is not empty any more: somebody else has saved there while this was being saved. Of several processes one "
          "saves, where flow.distributed.rank() is 0");
  if (exchange()) {
    published_ = true;
    sync_directory(parent);
    remove_checkpoint(beside_);  // now the old one
    return;
  }
  const std::string previous = target_ + kPrevious;
  remove_checkpoint(previous);
  if (::rename(target_.c_str(), previous.c_str()) != 0) fail_errno(target_, "set aside");
  if (::rename(beside_.c_str(), target_.c_str()) != 0) {
    const int error = errno;
    ::rename(previous.c_str(), target_.c_str());
    errno = error;
    fail_errno(target_, "put in place");
  }
  published_ = true;
  sync_directory(parent);
  remove_checkpoint(previous);
}

void remove_whole_checkpoint(const std::string& path) {
  const std::string target = without_slashes(path);
  const Descriptor directory = open_folder(AT_FDCWD, target.c_str());
  if (!directory) fail_errno(target, "open the checkpoint");
  require_only_checkpoint(directory, target, "removed");
  std::string aside;
  for (int number = 0;; ++number) {
    aside = name_beside(target, number);
    if (::mkdir(aside.c_str(), 0777) == 0) break;
    if (errno != EEXIST || number == 1000) fail_errno(target, "remove");
  }
  if (::rename(target.c_str(), aside.c_str()) != 0) {
    const int error = errno;
    ::rmdir(aside.c_str());
    errno = error;
    fail_errno(target, "remove");
  }
  remove_checkpoint(directory, aside);
}

Descriptor open_checkpoint(const std::string& path) {
  const std::string target = without_slashes(path);
  Descriptor directory = open_folder(AT_FDCWD, target.c_str(), 0);
  if (directory) return directory;
  if (errno == ENOENT) {
    Descriptor previous = open_folder(AT_FDCWD, (target + kPrevious).c_str());
    if (previous && is_kind(previous, kManifest, S_IFREG)) return previous;
    errno = ENOENT;
  }
  fail_errno(target, "open the checkpoint");
}

}  // namespace moonflow
