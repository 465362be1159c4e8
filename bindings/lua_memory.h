// The memory of a host that has its own allocator: for arrays, and for the lua_State that a session makes in it.
#pragma once

#include <lua.hpp>

#include <cstddef>
#include <memory>

#include "bindings/moonflow.h"
#include "engine/tensor.h"

namespace moonflow::host {

class HostAllocator final : public HostMemory {
 public:
  explicit HostAllocator(const mf_allocator& allocator) : allocator_(allocator) {}

  void* allocate(size_t bytes) noexcept override { return allocate(bytes, kAlignment); }
  void release(void* memory) noexcept override { allocator_.release(allocator_.user, memory); }
  void* allocate(size_t bytes, size_t alignment) noexcept {
    return allocator_.allocate(allocator_.user, bytes, alignment);
  }

 private:
  const mf_allocator allocator_;
};

// Opens Lua's libraries; a lua_CFunction. The ffi library too, which a later `require` would open at a worse time.
int open_libraries(lua_State* L);

// lua_Alloc over a host's memory. LuaJIT falls over when memory runs out while it makes a lua_State, and when it does
// so in the middle of opening its ffi library, whose half-made state lua_close then follows. So that much is taken
// beforehand, in one block, and both are served from there.
class LuaMemory {
 public:
  // Throws a Status where there is not even that much.
  explicit LuaMemory(std::shared_ptr<HostAllocator> memory);
  ~LuaMemory() { memory_->release(first_); }
  LuaMemory(const LuaMemory&) = delete;

  // A state with its libraries, or nullptr.
  lua_State* make_state();

 private:
  static void* reallocate(void* user, void* memory, size_t old_bytes, size_t bytes);
  void* allocate(size_t bytes);
  void release(void* memory);

  const std::shared_ptr<HostAllocator> memory_;
  char* const first_;
  size_t used_ = 0;
  bool is_made_ = false;
};

}  // namespace moonflow::host
