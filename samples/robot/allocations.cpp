#include "allocations.h"

#include <cerrno>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

void count_allocations() {}
int64_t allocations() { return -1; }

#else

// A program's own malloc takes the place of the C library's for all libraries too; glibc keeps the latter under a
// second name. operator new calls malloc.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* memory);
}

namespace {

thread_local bool counting = false;
thread_local int64_t calls = 0;

void note() { calls += counting; }

}  // namespace

void count_allocations() { counting = true; }
int64_t allocations() { return calls; }

extern "C" {

void* malloc(size_t size) { return note(), __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return note(), __libc_calloc(count, size); }
void* realloc(void* memory, size_t size) { return note(), __libc_realloc(memory, size); }
void* memalign(size_t alignment, size_t size) { return note(), __libc_memalign(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return note(), __libc_memalign(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) {
  note();
  void* const got = __libc_memalign(alignment, size);
  if (!got) return ENOMEM;
  *memory = got;
  return 0;
}
void free(void* memory) {
  note();
  __libc_free(memory);
}

}  // extern "C"

#endif
