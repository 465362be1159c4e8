// A program of the build: compiles Lua files to what bytecode.h reads.
//   bytecode_writer OUT FILE.lua...
#include <fstream>
#include <iostream>
#include <iterator>
#include <lua.hpp>
#include <string>

#include "bindings/bytecode.h"
#include "bindings/checksum.h"

namespace {

int append(lua_State*, const void* bytes, size_t count, void* to) {
  static_cast<std::string*>(to)->append(static_cast<const char*>(bytes), count);
  return 0;
}

// A dump begins with four bytes of a kind and a version, and flags, which are few: one byte. Then comes the name.
constexpr size_t kHead = 5;
constexpr char kStripped = 2;

// Adds the entry of a text. There is none for a LuaJIT that writes it otherwise.
void add(std::string& out, const std::string& text, const std::string& dump) {
  if (dump.compare(0, 3, "\x1bLJ") != 0 || (dump[4] & (kStripped | 0x80)) || dump.compare(kHead, 2, "\x01@") != 0) return;
  moonflow::BytecodeEntry entry{};
  moonflow::checksum_of(text.data(), text.size()).copy(entry.text, sizeof entry.text);
  entry.head = kHead;
  entry.tail = static_cast<unsigned>(dump.size() - kHead - 2);
  out.append(reinterpret_cast<const char*>(&entry), sizeof entry).append(dump, 0, kHead).append(dump, kHead + 2);
}

}  // namespace

int main(int count, char** arguments) {
  lua_State* const L = luaL_newstate();
  std::string out;
  for (int i = 2; L != nullptr && i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    std::string dump;
    if (luaL_loadbuffer(L, text.data(), text.size(), "@") != 0 || lua_dump(L, append, &dump) != 0) {
      std::cerr << arguments[i] << lua_tostring(L, -1) << '\n';
      return 1;
    }
    lua_settop(L, 0);
    add(out, text, dump);
  }
  if (L != nullptr) lua_close(L);
  std::ofstream file(arguments[1], std::ios::binary);
  return file << out && file.flush() ? 0 : 1;
}
