#include "kernels/run_time_module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>

#include "engine/error.h"
#include "kernels/build.h"

namespace moonflow {
namespace {

// The folder of the library that this code is in, whatever links led there; empty when it cannot be told.
std::string own_folder() {
  Dl_info info;
  char path[PATH_MAX];
  if (!dladdr(reinterpret_cast<void*>(&open_module), &info) || !realpath(info.dli_fname, path)) return "";
  const std::string file = path;
  return file.substr(0, file.rfind('/'));
}

void* try_to_open(const std::string& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

[[noreturn]] void refuse(const ModuleName& name, const std::string& path, const std::string& problem) {
  fail(ErrorCode::Unsupported, "the ", name.what, " ", path, " ", problem);
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

Opened open_file(const ModuleName& name, const std::string& path) {
  void* const handle = try_to_open(path);
  if (!handle) refuse(name, path, "cannot be opened: " + loaders_word(path));
  return {handle, path};
}

Opened find(const ModuleName& name) {
  const char* const named = std::getenv(name.variable);
  if (named && *named) {
    if (std::strchr(named, '/') && access(named, F_OK) != 0)
      refuse(name, named, text("that ", name.variable, " names is not there"));
    return open_file(name, named);
  }
  const std::string folder = own_folder(), beside = folder + "/" + name.file;
  if (!folder.empty() && access(beside.c_str(), F_OK) == 0) return open_file(name, beside);
  if (void* const handle = try_to_open(name.file)) return {handle, name.file};
  const std::string word = loaders_word(name.file);
  if (word.find("No such file") == std::string::npos) refuse(name, name.file, "cannot be opened: " + word);
  fail(ErrorCode::Unsupported, "there is no ", name.what, " (", name.file, ") ",
       folder.empty() ? "" : "in " + folder + " or ", "on the loader's path; ", name.how, ", or name it in ",
       name.variable);
}

}  // namespace

const ModuleHead& open_module(const ModuleName& name) {
  const Opened module = find(name);
  const auto door = reinterpret_cast<const ModuleHead* (*)()>(dlsym(module.handle, name.door));
  if (!door) refuse(name, module.path, text("is none: it has no symbol ", name.door));
  const ModuleHead* const head = door();
  if (head->version != name.version)
    refuse(name, module.path,
           text("has version ", head->version, " of the table, and this library wants ", name.version,
                "; take both from one build"));
  if (std::strcmp(head->build, kBuild) != 0)
    refuse(
        name, module.path,
        text("is from another build (", head->build, ") than this library (", kBuild, "); take both from one build"));
  return *head;
}

}  // namespace moonflow
