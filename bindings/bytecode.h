// The files of lua/moonflow as the bytecode of LuaJIT. It is made when the library is built, and loads ten times as fast
// as they compile, which would be most of the time of a start. It is found by a file's text, so a file that has been
// changed, or is of another version, has none here and is compiled.
#pragma once

#include <string_view>

namespace moonflow {

// What string.dump gives of a chunk, around the chunk's name, which stands in it as a size and that many bytes. That it
// may be another one here than where the library was built, it is left out.
struct Bytecode {
  std::string_view head, tail;  // both empty for a text that the library has nothing of
};

Bytecode bytecode_of(std::string_view text);

// How the library has them, one after the other: this, then the head, then the tail.
struct BytecodeEntry {
  char text[16];  // its checksum
  unsigned head, tail;
};

}  // namespace moonflow
