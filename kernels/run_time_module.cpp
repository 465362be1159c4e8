#include "kernels/run_time_module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "engine/error.h"
#include "kernels/build.h"

namespace moonflow {
namespace {

// The file that is mapped at an address, by the system's list: lines of first-last, rights, offset, device, number and
// path. Empty when it cannot be told.
std::string mapped_at(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    char* rest = nullptr;
    const uintptr_t first = std::strtoul(line.c_str(), &rest, 16);
    const uintptr_t last = *rest == '-' ? std::strtoul(rest + 1, nullptr, 16) : 0;
    const size_t path = line.find('/');
    if (first <= address && address < last && path != std::string::npos) return line.substr(path);
  }
  return "";
}

}  // namespace

// The loader knows the library by the name that it was given. Where that begins nowhere, the process may have gone to
// another folder since.
std::string own_folder() {
  Dl_info info;
  char path[PATH_MAX];
  void* const here = reinterpret_cast<void*>(&open_module);
  if (!dladdr(here, &info)) return "";
  const std::string name = *info.dli_fname == '/' ? info.dli_fname : mapped_at(reinterpret_cast<uintptr_t>(here));
  if (!realpath(name.empty() ? info.dli_fname : name.c_str(), path)) return "";
  const std::string file = path;
  return file.substr(0, file.rfind('/'));
}

namespace {

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
