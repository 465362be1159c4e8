// Counts what a thread asks of the C library's heap, whoever asks: the program, operator new, or a library it uses.
#pragma once

#include <cstdint>

// Starts counting the calls of malloc, free and their kin on the calling thread.
void count_allocations();
// How many there were since then; -1 where the program is built with a sanitizer, which has a heap of its own.
int64_t allocations();
