// What lies in a library of its own, which is opened when somebody first asks for it and never closed: without it all
// else works and costs nothing. It shows one symbol, a function that gives a table, which begins with a ModuleHead.
// What goes through are objects of C++, so it must come from the build of this library.
#pragma once

#include <cstdint>
#include <string>

namespace moonflow {

// The folder of the library that this code is in, whatever links led there; empty when it cannot be told.
std::string own_folder();

struct ModuleHead {
  uint32_t version;   // of the table; stands first in every version
  const char* build;  // kBuild of kernels/build.h; stands second in every version
};

struct ModuleName {
  const char* what;      // "CUDA module"
  const char* file;      // is looked for beside this library, then on the loader's path
  const char* variable;  // of the environment, which names another file
  const char* door;      // the symbol
  uint32_t version;      // of the table that is wanted
  const char* how;       // how to come by it
};

// The table. Throws Unsupported, with the reason in one line without a full stop, where there is none, or one of
// another build. There is no state here: the dynamic loader knows what is open, and gives it again. Any thread may call
// it.
const ModuleHead& open_module(const ModuleName& name);

}  // namespace moonflow
