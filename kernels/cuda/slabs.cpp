#include "kernels/cuda/slabs.h"

#include <algorithm>
#include <iterator>

namespace moonflow::cuda {

namespace {
constexpr int64_t kPieceBytes = 256;
constexpr int64_t kSlabBytes = int64_t{4} << 20;  // what is larger gets a slab of its own
}  // namespace

Slabs::Slabs(std::function<void*(int64_t)> allocate, std::function<void(void*)> release)
    : allocate_(std::move(allocate)), release_(std::move(release)) {}

Slabs::~Slabs() {
  for (const auto& [start, piece] : pieces_)
    if (piece.first) release_(const_cast<char*>(start));
}

void* Slabs::take(int64_t bytes) {
  bytes = std::max(bytes + kPieceBytes - 1, kPieceBytes) / kPieceBytes * kPieceBytes;
  const std::lock_guard lock(mutex_);
  // The tightest that will do, so that large ones stay for those that need them.
  auto best = pieces_.end();
  for (auto it = pieces_.begin(); it != pieces_.end(); ++it)
    if (it->second.free && it->second.bytes >= bytes &&
        (best == pieces_.end() || it->second.bytes < best->second.bytes))
      best = it;
  if (best == pieces_.end()) {
    const int64_t slab_bytes = std::max(bytes, kSlabBytes);
    void* const slab = allocate_(slab_bytes);
    if (!slab) return nullptr;
    try {
      best = pieces_.emplace(static_cast<const char*>(slab), Piece{slab_bytes, true, true}).first;
    } catch (...) {
      release_(slab);
      throw;
    }
  }
  if (best->second.bytes > bytes) {
    pieces_.emplace_hint(std::next(best), best->first + bytes, Piece{best->second.bytes - bytes, true, false});
    best->second.bytes = bytes;
  }
  best->second.free = false;
  return const_cast<char*>(best->first);
}

// Only takes entries away, so nothing can fail.
void Slabs::give(void* memory) noexcept {
  if (!memory) return;
  const std::lock_guard lock(mutex_);
  auto piece = pieces_.find(static_cast<const char*>(memory));
  piece->second.free = true;
  const auto join_with_next = [&](Pieces::iterator it) {
    const auto next = std::next(it);
    if (next == pieces_.end() || next->second.first || !next->second.free) return;
    it->second.bytes += next->second.bytes;
    pieces_.erase(next);
  };
  join_with_next(piece);
  if (!piece->second.first && std::prev(piece)->second.free) {
    --piece;
    join_with_next(piece);
  }
  // One empty slab of the usual size is kept for whoever comes next.
  if (!is_whole_slab(piece)) return;
  bool has_another = false;
  for (auto it = pieces_.begin(); it != pieces_.end(); ++it)
    has_another |= it != piece && it->second.bytes == kSlabBytes && is_whole_slab(it);
  if (piece->second.bytes == kSlabBytes && !has_another) return;
  release_(const_cast<char*>(piece->first));
  pieces_.erase(piece);
}

bool Slabs::has(const void* memory) const {
  const auto* const at = static_cast<const char*>(memory);
  const std::lock_guard lock(mutex_);
  auto piece = pieces_.upper_bound(at);
  if (piece == pieces_.begin()) return false;
  --piece;
  return at < piece->first + piece->second.bytes;
}

bool Slabs::is_whole_slab(Pieces::iterator piece) {
  const auto next = std::next(piece);
  return piece->second.free && piece->second.first && (next == pieces_.end() || next->second.first);
}

}  // namespace moonflow::cuda
