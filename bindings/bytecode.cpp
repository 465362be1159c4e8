#include "bindings/bytecode.h"

#include <cstring>

#include "bindings/checksum.h"

// What bytecode_writer has written.
asm(".pushsection .rodata\n"
    "moonflow_bytecode:\n"
    ".incbin \"" MOONFLOW_BYTECODE
    "\"\n"
    "moonflow_bytecode_end:\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char moonflow_bytecode[], moonflow_bytecode_end[];

namespace moonflow {

Bytecode bytecode_of(std::string_view text) {
  const std::string checksum = checksum_of(text.data(), text.size());
  BytecodeEntry entry;
  for (const char* at = moonflow_bytecode; at < moonflow_bytecode_end; at += entry.head + entry.tail) {
    std::memcpy(&entry, at, sizeof entry);
    at += sizeof entry;
    if (checksum.compare(0, std::string::npos, entry.text, sizeof entry.text) == 0)
      return {{at, entry.head}, {at + entry.head, entry.tail}};
  }
  return {};
}

}  // namespace moonflow
