#include "kernels/cuda/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "engine/error.h"

namespace moonflow::cuda {
namespace {

namespace fs = std::filesystem;

// Python's packages put each library into a folder of its own: nvidia/cudnn/lib.
void add_folders(std::vector<fs::path>& folders, const fs::path& root) {
  for (const char* below : {"", "lib64", "lib"}) folders.push_back(below[0] ? root / below : root);
  const size_t first = folders.size();
  std::error_code ignored;  // a folder that is not there holds nothing
  for (const fs::directory_entry& entry : fs::directory_iterator(root, ignored))
    if (fs::is_directory(entry.path() / "lib", ignored)) folders.push_back(entry.path() / "lib");
  std::sort(folders.begin() + static_cast<std::ptrdiff_t>(first), folders.end());
}

}  // namespace

Library::Library(std::string soname) : soname_(std::move(soname)) {
  // What has been named comes first, so that it may stand in for what the loader would find.
  std::vector<fs::path> named;
  const char* const given = std::getenv("MOONFLOW_CUDA_PATH");
  if (given && *given) add_folders(named, given);

  std::string why;
  const auto open = [&](const std::string& path) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) path_ = path;
    if (!handle_) why = dlerror();
    return handle_ != nullptr;
  };
  std::string damaged;  // why a file that is there did not open, which says more than that others are not there
  const auto open_in = [&](const fs::path& folder) {
    std::error_code ignored;
    if (!fs::exists(folder / soname_, ignored)) return false;
    if (open((folder / soname_).string())) return true;
    damaged = why;
    return false;
  };
  if (std::any_of(named.begin(), named.end(), open_in)) return;
  if (open(soname_)) return;
  const std::string not_found = why;
  if (open_in("/usr/local/cuda/lib64")) return;
  fail(ErrorCode::Unsupported, "needs ", soname_, ", which did not open: ", damaged.empty() ? not_found : damaged,
       damaged.empty()
           ? text("; looked ", given && *given ? text("in MOONFLOW_CUDA_PATH=", given, ", ") : std::string(),
                  "where the loader does and in /usr/local/cuda/lib64")
           : std::string(),
       ". Install it, and set MOONFLOW_CUDA_PATH to its folder if it is elsewhere");
}

Library::Symbol Library::symbol(const char* name) const {
  void* const address = dlsym(handle_, name);
  require(address != nullptr, ErrorCode::Unsupported, path_, " has no ", name, ": it is too old; install a newer ",
          soname_);
  return {address};
}

}  // namespace moonflow::cuda
