// Finds the CUDA module. There is no state here: the dynamic loader knows what is open, and gives it again.
#include "kernels/cuda.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/build.h"
#include "kernels/cuda/module.h"

namespace moonflow {
namespace {

constexpr const char* kFile = "libmoonflow_cuda.so";
constexpr const char* kVariable = "MOONFLOW_CUDA_MODULE";

// The folder of the library that this code is in, whatever links led there; empty when it cannot be told.
std::string own_folder() {
  Dl_info info;
  char path[PATH_MAX];
  if (!dladdr(reinterpret_cast<void*>(&probe_cuda), &info) || !realpath(info.dli_fname, path)) return "";
  const std::string file = path;
  return file.substr(0, file.rfind('/'));
}

void* try_to_open(const std::string& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  fail(ErrorCode::Unsupported, "the CUDA module ", path, " ", problem);
}

// Of the loader's last message, without the path it may begin with.
std::string loaders_word(const std::string& path) {
  const char* const message = dlerror();
  const std::string word = message ? message : "unknown fault";
  const std::string beginning = path + ": ";
  return word.compare(0, beginning.size(), beginning) == 0 ? word.substr(beginning.size()) : word;
}

struct Opened {
  void* handle;
  std::string path;
};

Opened open_file(const std::string& path) {
  void* const handle = try_to_open(path);
  if (!handle) refuse(path, "cannot be opened: " + loaders_word(path));
  return {handle, path};
}

Opened find_module() {
  const char* const named = std::getenv(kVariable);
  if (named && *named) {
    if (std::strchr(named, '/') && access(named, F_OK) != 0)
      refuse(named, text("that ", kVariable, " names is not there"));
    return open_file(named);
  }
  const std::string folder = own_folder(), beside = folder + "/" + kFile;
  if (!folder.empty() && access(beside.c_str(), F_OK) == 0) return open_file(beside);
  if (void* const handle = try_to_open(kFile)) return {handle, kFile};
  const std::string word = loaders_word(kFile);
  if (word.find("No such file") == std::string::npos) refuse(kFile, "cannot be opened: " + word);
  fail(ErrorCode::Unsupported, "there is no CUDA module (", kFile, ") ", folder.empty() ? "" : "in " + folder + " or ",
       "on the loader's path; build with -DMOONFLOW_CUDA=ON where there is a CUDA toolkit, or name it in ", kVariable);
}

const cuda::Module& open_module() {
  const Opened module = find_module();
  const auto door = reinterpret_cast<decltype(&moonflow_cuda_module)>(dlsym(module.handle, "moonflow_cuda_module"));
  if (!door) refuse(module.path, "is none: it has no symbol moonflow_cuda_module");
  const cuda::Module* const table = door();
  if (table->version != cuda::kModuleVersion)
    refuse(module.path, text("has version ", table->version, " of the table, and this library wants ",
                             cuda::kModuleVersion, "; take both from one build"));
  if (std::strcmp(table->build, cuda::kModuleBuild) != 0)
    refuse(module.path, text("is from another build (", table->build, ") than this library (", cuda::kModuleBuild,
                             "); take both from one build"));
  return *table;
}

}  // namespace

CudaProbe probe_cuda() {
  try {
    return open_module().probe();
  } catch (const Error& error) {
    return {{}, error.what()};
  }
}

std::unique_ptr<Device> open_cuda_device(int index) {
  const cuda::Module& module = open_module();
  const CudaProbe probe = module.probe();
  const int count = static_cast<int>(probe.cards.size());
  require(count > 0, ErrorCode::Unsupported, probe.reason);
  require(index >= 0 && index < count, ErrorCode::OutOfRange, "there is no gpu ", index, ": this machine has ",
          count == 1 ? "one, gpu 0" : text("gpu 0 to ", count - 1));
  return module.open(index);
}

}  // namespace moonflow
