// The files of lua/moonflow as the bytecode of LuaJIT. It is made when the library is built, and loads ten times as fast
// as they compile, which is most of the time of a start. It is found by a file's text: whoever has another text, since
// he is changing it or has it from another version, gets what his says.
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
