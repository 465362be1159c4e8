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
  std::vector<fs::path> folders;
  const char* const given = std::getenv("MOONFLOW_CUDA_PATH");
  if (given && *given) add_folders(folders, given);
  folders.emplace_back("/usr/local/cuda/lib64");

  std::string why;
  const auto open = [&](const std::string& path) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) path_ = path;
    if (!handle_) why = dlerror();
    return handle_ != nullptr;
  };
  if (open(soname_)) return;
  const std::string not_found = why;
  std::error_code ignored;
  for (const fs::path& folder : folders)
    if (fs::exists(folder / soname_, ignored) && open((folder / soname_).string())) return;
  // A file that is there but does not open says more than one that is not there.
  fail(ErrorCode::Unsupported, "needs ", soname_, ", which did not open: ", why,
       why == not_found ? text("; looked where the loader does, in ",
                               given && *given ? text("MOONFLOW_CUDA_PATH=", given, " and ") : std::string(),
                               "/usr/local/cuda/lib64")
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
