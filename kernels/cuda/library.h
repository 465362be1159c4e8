// NVIDIA's libraries, opened when something first needs one: they are hundreds of megabytes, and a machine without them
// can do everything else. Their headers are read only by the files that call them.
#pragma once

#include <cstdint>
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

// Libraries may count on workspace that lies as cudaMalloc gives it, and a plan's scratch lies closer. So it is asked
// for with some room, within which it begins. Only 16 bytes are documented, and only by cuBLASLt.
constexpr int64_t kWorkspaceAlignment = 256;
inline int64_t with_room_to_align(int64_t workspace_bytes) {
  return workspace_bytes > 0 ? workspace_bytes + kWorkspaceAlignment - 1 : 0;
}
inline void* aligned_workspace(void* scratch) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch) + kWorkspaceAlignment - 1) /
                                 kWorkspaceAlignment * kWorkspaceAlignment);
}

// In a struct with a Library `library` before it: the library's function of this name.
#define MOONFLOW_SYMBOL(name) decltype(&::name) name = library.symbol(#name)

}  // namespace moonflow::cuda
