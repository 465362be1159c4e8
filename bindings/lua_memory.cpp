#include "bindings/lua_memory.h"

#include <algorithm>
#include <cstring>

#include "bindings/status.h"

namespace moonflow::host {

namespace {

constexpr size_t kAlign = 16;
constexpr size_t kFirstBytes = 1 << 17;  // less than half of it is needed

}  // namespace

int open_libraries(lua_State* L) {
  luaL_openlibs(L);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "ffi");
  lua_call(L, 1, 0);
  return 0;
}

LuaMemory::LuaMemory(std::shared_ptr<HostAllocator> memory)
    : memory_(std::move(memory)), first_(static_cast<char*>(memory_->allocate(kFirstBytes, kAlign))) {
  if (first_ == nullptr) refuse(MF_OUT_OF_MEMORY, "no memory for a lua_State");
}

lua_State* LuaMemory::make_state() {
  lua_State* const L = lua_newstate(reallocate, this);
  const bool opened = L && lua_cpcall(L, open_libraries, nullptr) == 0;
  is_made_ = true;
  if (opened || !L) return L;
  lua_close(L);
  return nullptr;
}

void* LuaMemory::reallocate(void* user, void* memory, size_t old_bytes, size_t bytes) {
  auto* self = static_cast<LuaMemory*>(user);
  void* fresh = bytes > 0 ? self->allocate(bytes) : nullptr;
  if (fresh && memory) std::memcpy(fresh, memory, std::min(old_bytes, bytes));
  if (!fresh && bytes > 0) return bytes <= old_bytes ? memory : nullptr;  // making a block smaller never fails
  if (memory) self->release(memory);
  return fresh;
}

void* LuaMemory::allocate(size_t bytes) {
  const size_t rounded = (bytes + kAlign - 1) / kAlign * kAlign;
  if (is_made_ || rounded > kFirstBytes - used_) return memory_->allocate(bytes, kAlign);
  used_ += rounded;
  return first_ + used_ - rounded;
}

void LuaMemory::release(void* memory) {
  if (memory < first_ || memory >= first_ + kFirstBytes) memory_->release(memory);
}

}  // namespace moonflow::host
