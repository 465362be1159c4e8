// A file for each, whose name is a digest of its key, and which holds the key itself.
#include "kernels/cuda/code_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace moonflow::cuda {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[24] = "moonflow kernel 1\n";  // of a size that leaves no gap behind it
constexpr off_t kLargest = 64 << 20;                // bytes of a file; kernels have some thousand

// FNV-1a; only to tell texts apart, of which nobody has an interest to make two alike: the key is compared too.
uint64_t digest(const std::string& bytes, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u ^ seed;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string file_of(const std::string& folder, const std::string& key) {
  char name[48];
  std::snprintf(name, sizeof name, "%016llx%016llx.kernel", static_cast<unsigned long long>(digest(key, 0)),
                static_cast<unsigned long long>(digest(key, 1)));
  return folder + "/" + name;
}

// What a file holds: the magic, the sizes of key and code, a checksum of both, then both.
struct Header {
  char magic[sizeof kMagic];
  uint64_t key_bytes, code_bytes, check;
};

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  explicit operator bool() const { return descriptor_ >= 0; }
  // A plain file that belongs to this user and that nobody else may write.
  bool is_ours(struct stat& found) const {
    return fstat(descriptor_, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid() &&
           (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  }
  std::string read(size_t bytes) const {
    std::string content(bytes, '\0');
    size_t done = 0;
    while (done < bytes) {
      const ssize_t got = ::read(descriptor_, content.data() + done, bytes - done);
      if (got <= 0) return {};
      done += static_cast<size_t>(got);
    }
    return content;
  }
  bool write(const std::string& content) const {
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t put = ::write(descriptor_, content.data() + done, content.size() - done);
      if (put <= 0) return false;
      done += static_cast<size_t>(put);
    }
    return true;
  }

 private:
  const int descriptor_;
};

}  // namespace

std::string cache_folder() {
  if (const char* const said = std::getenv("MOONFLOW_CACHE")) return said;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache && *cache == '/') return std::string(cache) + "/moonflow";
  const char* const home = std::getenv("HOME");
  return home && *home == '/' ? std::string(home) + "/.cache/moonflow" : std::string();
}

std::string read_cached(const std::string& folder, const std::string& key) {
  if (folder.empty()) return {};
  const File file(::open(file_of(folder, key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat found;
  if (!file || !file.is_ours(found) || found.st_size > kLargest) return {};
  if (found.st_size < static_cast<off_t>(sizeof(Header))) return {};
  const std::string content = file.read(static_cast<size_t>(found.st_size));
  if (content.size() < sizeof(Header)) return {};
  Header header;
  std::memcpy(&header, content.data(), sizeof header);
  const uint64_t rest = content.size() - sizeof header;
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.key_bytes > rest ||
      header.code_bytes != rest - header.key_bytes)
    return {};
  if (content.compare(sizeof header, header.key_bytes, key) != 0) return {};
  if (header.check != digest(content.substr(sizeof header), 2)) return {};
  return content.substr(sizeof header + header.key_bytes);
}

void write_cached(const std::string& folder, const std::string& key, const std::string& code) {
  if (folder.empty()) return;
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) return;
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.key_bytes = key.size();
  header.code_bytes = code.size();
  header.check = digest(key + code, 2);
  std::string name = file_of(folder, key) + ".XXXXXX";
  const File file(mkostemp(name.data(), O_CLOEXEC));  // for this user alone
  if (!file) return;
  const std::string start(reinterpret_cast<const char*>(&header), sizeof header);
  const bool whole = file.write(start + key + code);
  if (!whole || std::rename(name.c_str(), file_of(folder, key).c_str()) != 0) ::unlink(name.c_str());
}

}  // namespace moonflow::cuda
