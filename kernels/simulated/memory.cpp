#include "kernels/simulated/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "engine/overlap.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define MOONFLOW_POISON(memory, bytes) __asan_poison_memory_region(memory, bytes)
#define MOONFLOW_UNPOISON(memory, bytes) __asan_unpoison_memory_region(memory, bytes)
#else
#define MOONFLOW_POISON(memory, bytes) ((void)(memory), (void)(bytes))
#define MOONFLOW_UNPOISON(memory, bytes) ((void)(memory), (void)(bytes))
#endif

namespace moonflow::cuda::simulated {

namespace {

constexpr int64_t kGrain = 256;  // CUDA aligns memory to that
constexpr int64_t kGuard = 256;  // bytes before and after each block of memory
constexpr unsigned char kCanary = 0x5a;
constexpr int kPoison = 0xff;  // of floats NaN, of integers -1

int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

char* begin_of(const Range& range) { return static_cast<char*>(const_cast<void*>(range.data)); }
char* end_of(const Range& range) { return begin_of(range) + range.bytes; }

void fill_guards(char* memory, int64_t bytes) {
  std::memset(memory - kGuard, kCanary, kGuard);
  std::memset(memory + bytes, kCanary, round_up(bytes, kGrain) - bytes + kGuard);
}

[[maybe_unused]] bool guards_whole(const char* memory, int64_t bytes) {
  const auto whole = [](const char* from, const char* to) {
    return std::all_of(from, to, [](char c) { return static_cast<unsigned char>(c) == kCanary; });
  };
  return whole(memory - kGuard, memory) && whole(memory + bytes, memory + round_up(bytes, kGrain) + kGuard);
}

// A word at a time: whole inputs go through it.
uint64_t content(const Range& range) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  const char* at = begin_of(range);
  for (int64_t left = range.bytes; left > 0; left -= 8, at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, std::min<int64_t>(left, 8));
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

template <class Blocks>
bool lies_in(const Blocks& blocks, const Range& range) {
  auto after = blocks.upper_bound(begin_of(range));
  if (after == blocks.begin()) return false;
  const auto& [memory, block] = *std::prev(after);
  return end_of(range) <= memory + block.bytes;
}

template <class Blocks>
std::optional<Range> found_in(const Blocks& blocks, void* memory) {
  const auto found = blocks.find(static_cast<char*>(memory));
  return found == blocks.end() ? std::nullopt : std::optional(Range{memory, found->second.bytes});
}

}  // namespace

Memory::Memory(int64_t bytes, std::function<void(std::string)> give_up) : give_up_(std::move(give_up)), bytes_(bytes) {
  // Twice the room, so that nothing fails for holes between blocks before the memory is really full.
  void* const memory = mmap(nullptr, 2 * bytes_ + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(memory != MAP_FAILED, ErrorCode::OutOfMemory, "no addresses for a simulated card of ", bytes_, " bytes");
  memory_ = static_cast<char*>(memory);
}

Memory::~Memory() {
  MOONFLOW_UNPOISON(memory_, touched_bytes_);  // guards and what was freed too: whoever is given these addresses next
  munmap(memory_, 2 * bytes_ + kPage);
}

// ---- blocks --------------------------------------------------------------------------------------------------

void* Memory::allocate(int64_t bytes) {
  const int64_t rounded = round_up(std::max<int64_t>(bytes, 1), kGrain);
  if (rounded > free_bytes()) return nullptr;
  // The first hole that is wide enough.
  char* at = memory_ + kGuard;
  for (const auto& [memory, block] : blocks_) {
    if (at + rounded + kGuard <= memory - kGuard) break;
    at = memory + round_up(block.bytes, kGrain) + 2 * kGuard;
  }
  if (at + rounded + kGuard > memory_ + 2 * bytes_) return nullptr;
  open();
  const int64_t end = round_up(at + rounded + kGuard - memory_, kPage);
  if (end > touched_bytes_) {
    mprotect(memory_ + touched_bytes_, end - touched_bytes_, PROT_READ | PROT_WRITE);
    touched_bytes_ = end;
  }
  MOONFLOW_UNPOISON(at - kGuard, rounded + 2 * kGuard);
  fill_guards(at, bytes);
  std::memset(at, kPoison, bytes);
  MOONFLOW_POISON(at - kGuard, rounded + 2 * kGuard);
  close();
  blocks_[at] = {bytes};
  used_bytes_ += rounded;
  return at;
}

std::optional<Range> Memory::block_at(void* memory) const { return found_in(blocks_, memory); }
std::optional<Range> Memory::staging_at(void* memory) const { return found_in(staging_, memory); }

void Memory::free(const Range& block) {
  open();
  MOONFLOW_UNPOISON(block.data, block.bytes);
  std::memset(begin_of(block), kPoison, block.bytes);
  MOONFLOW_POISON(block.data, block.bytes);
  close();
  used_bytes_ -= round_up(std::max<int64_t>(block.bytes, 1), kGrain);
  blocks_.erase(begin_of(block));
}

void* Memory::allocate_staging(int64_t bytes) {
  const int64_t rounded = round_up(std::max<int64_t>(bytes, 1), kGrain);
  void* const block = std::aligned_alloc(kGrain, rounded + 2 * kGuard);
  if (!block) return nullptr;
  char* const memory = static_cast<char*>(block) + kGuard;
  std::memset(memory, kPoison, bytes);
  fill_guards(memory, bytes);
  staging_[memory] = {bytes};
  return memory;
}

void Memory::free_staging(const Range& block) {
  uses_.erase(std::remove_if(uses_.begin(), uses_.end(), [&](const auto& use) { return overlap(use->range, block); }),
              uses_.end());
  MOONFLOW_UNPOISON(block.data, block.bytes);
  staging_.erase(begin_of(block));
  std::free(begin_of(block) - kGuard);
}

bool Memory::is_staging(const Range& range) const { return lies_in(staging_, range); }
bool Memory::is_known(const Range& range) const {
  return range.bytes <= 0 || lies_in(blocks_, range) || lies_in(staging_, range);
}

// ---- reach ---------------------------------------------------------------------------------------------------

void Memory::open() {
  if (open_++ > 0) return;
#if !defined(__SANITIZE_ADDRESS__)
  if (touched_bytes_ > 0) mprotect(memory_, touched_bytes_, PROT_READ | PROT_WRITE);
#endif
  for (const auto& [memory, block] : staging_) MOONFLOW_UNPOISON(memory, block.bytes);
}

void Memory::close() {
  if (--open_ > 0) return;
#if !defined(__SANITIZE_ADDRESS__)
  if (touched_bytes_ > 0) mprotect(memory_, touched_bytes_, PROT_NONE);
#endif
  for (const std::shared_ptr<StagingUse>& use : uses_)
    if (use->writes) MOONFLOW_POISON(begin_of(use->range), use->range.bytes);
}

void Memory::perform(const std::string& name, const std::vector<Range>& reads, const std::vector<Range>& writes,
                     const std::function<void()>& work) {
  reach(reads, writes, true);
  try {
    work();
  } catch (const Error& error) {
    give_up_(error.what());
  }
  reach(reads, writes, false);
  check_guards(name);
}

// For AddressSanitizer. Of a block in which the work has told us what it touches it may touch nothing else; other
// blocks are its own affair: a table that a kernel made when it was prepared.
void Memory::reach(const std::vector<Range>& reads, const std::vector<Range>& writes, bool within) {
#if defined(__SANITIZE_ADDRESS__)
  for (const auto& [memory, block] : blocks_) {
    bool told = false;
    for (const std::vector<Range>* ranges : {&reads, &writes})
      for (const Range& range : *ranges) told = told || overlap(range, {memory, block.bytes});
    if (within && !told)
      MOONFLOW_UNPOISON(memory, block.bytes);
    else if (!within)
      MOONFLOW_POISON(memory, block.bytes);
  }
  if (!within) return;
  for (const std::vector<Range>* ranges : {&reads, &writes})
    for (const Range& range : *ranges) MOONFLOW_UNPOISON(range.data, range.bytes);
#else
  (void)reads, (void)writes, (void)within;
#endif
}

void Memory::check_guards(const std::string& name) {
#if !defined(__SANITIZE_ADDRESS__)
  for (const Blocks* blocks : {&blocks_, &staging_})
    for (const auto& [memory, block] : *blocks)
      if (!guards_whole(memory, block.bytes))
        give_up_(text(name, " wrote beside a block of ", block.bytes, " bytes of ",
                      blocks == &staging_ ? "staging memory" : "the device's memory"));
#else
  (void)name;
#endif
}

// ---- the host and staging memory -----------------------------------------------------------------------------

Uses Memory::begin_uses(const std::string& name, const std::vector<Range>& reads, const std::vector<Range>& writes) {
  Uses uses;
  const auto begin = [&](const Range& range, bool is_written) {
    if (range.bytes <= 0 || !is_staging(range)) return;
    bool hosts = true;  // nobody else may be at it
    for (const std::shared_ptr<StagingUse>& use : uses_) {
      if (!overlap(use->range, range)) continue;
      unchanged(*use);
      if (is_written) use->content.reset();
      hosts = hosts && !use->writes;
    }
    auto use = std::make_shared<StagingUse>(StagingUse{range, is_written, std::nullopt, name});
    if (!is_written && hosts) use->content = content(range);
    uses.push_back(use);
  };
  for (const Range& range : reads) begin(range, false);
  for (const Range& range : writes) begin(range, true);
  for (const std::shared_ptr<StagingUse>& use : uses) {
    const auto touched = [&](const auto& other) { return overlap(other->range, use->range); };
    const bool first = std::none_of(uses_.begin(), uses_.end(), touched);
    if (use->writes && first) std::memset(begin_of(use->range), kPoison, use->range.bytes);
    uses_.push_back(use);
    if (use->writes && open_ == 0) MOONFLOW_POISON(begin_of(use->range), use->range.bytes);
  }
  return uses;
}

std::shared_ptr<StagingUse> Memory::last_write(const Range& range) const {
  const auto writes = [&](const auto& use) { return use->writes && overlap(use->range, range); };
  const auto found = std::find_if(uses_.rbegin(), uses_.rend(), writes);
  return found == uses_.rend() ? nullptr : *found;
}

bool Memory::unchanged(const StagingUse& use) const {
  if (!use.content || *use.content == content(use.range)) return true;
  give_up_(text("the host changed ", use.range.bytes, " bytes of staging memory before it knew that ", use.name,
                " had read them"));
  return false;
}

void Memory::end_uses(const Clock& known) {
  const auto over = [&](const std::shared_ptr<StagingUse>& use) {
    if (!use->known_to(known)) return false;
    MOONFLOW_UNPOISON(begin_of(use->range), use->range.bytes);
    return true;
  };
  uses_.erase(std::remove_if(uses_.begin(), uses_.end(), over), uses_.end());
}

}  // namespace moonflow::cuda::simulated
