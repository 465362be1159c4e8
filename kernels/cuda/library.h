// NVIDIA's libraries, opened when something first needs one: they are hundreds of megabytes, and a machine without them
// can do everything else. Their headers are read only by the files that call them.
#pragma once

#include <string>

namespace moonflow::cuda {

class Library {
 public:
  // Opened by its soname, such as "libcudnn.so.9": where the loader looks, then in the folder MOONFLOW_CUDA_PATH with
  // its lib and lib64 (a toolkit, or the folder `nvidia` of Python's packages), then in the toolkit's usual place.
  // Throws Unsupported with all of that. It is never closed: its threads may run until the process ends.
  explicit Library(std::string soname);

  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {  // NOLINT: whoever asks knows what it is
      return reinterpret_cast<Function*>(address);
    }
  };
  // Throws Unsupported when the library lacks it: it is older than what we were built for.
  Symbol symbol(const char* name) const;
  const std::string& path() const { return path_; }  // what opened

 private:
  std::string soname_, path_;
  void* handle_ = nullptr;
};

// In a struct with a Library `library` before it: the library's function of this name.
#define MOONFLOW_SYMBOL(name) decltype(&::name) name = library.symbol(#name)

}  // namespace moonflow::cuda
