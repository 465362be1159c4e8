// The memory of the simulated card, and the staging memory of its host: blocks between guards. A block begins and ends
// poisoned, and the card's are out of the host's reach while none of the card's work is done. AddressSanitizer is told
// of all that. Whoever calls holds a lock.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device.h"
#include "kernels/simulated/order.h"

namespace moonflow::cuda::simulated {

// What can be put out of reach: the largest page that Linux has on ARM; others divide it.
constexpr int64_t kPage = 64 << 10;

// Staging memory that a piece of work reads or writes, from when it is enqueued until the host knows that it is over.
struct StagingUse {
  Range range;
  bool writes;
  std::optional<uint64_t> content;  // as it was when the work was enqueued, where the host had the say over it
  std::string name;
  Moment moment = {};
  Clock after = {};  // what is done once the work is
  bool performed = false;

  bool known_to(const Clock& clock) const { return performed && moment.known_to(clock); }
};
using Uses = std::vector<std::shared_ptr<StagingUse>>;

class Memory {
 public:
  // What is wrong is told to `give_up`, in words.
  Memory(int64_t bytes, std::function<void(std::string)> give_up);
  ~Memory();
  Memory(const Memory&) = delete;

  int64_t free_bytes() const { return bytes_ - used_bytes_; }
  // nullptr when there is none.
  void* allocate(int64_t bytes);
  void* allocate_staging(int64_t bytes);
  // The block that begins there; none where nothing was given, or it was taken back. Nothing may be at work on what is
  // freed.
  std::optional<Range> block_at(void* memory) const;
  std::optional<Range> staging_at(void* memory) const;
  void free(const Range& block);
  void free_staging(const Range& block);

  bool is_staging(const Range& range) const;
  bool is_known(const Range& range) const;  // lies in one block of either kind

  // The memory of the device is within reach only while its work is done: between these two, by any thread.
  void open();
  void close();
  // Does a piece of work, which may touch what it has told of.
  void perform(const std::string& name, const std::vector<Range>& reads, const std::vector<Range>& writes,
               const std::function<void()>& work);

  // The host may not touch what is being copied until it has waited for it. What it reads too early it finds poisoned;
  // what it writes too early is seen by the next piece of work, or by this one when its time has come.
  Uses begin_uses(const std::string& name, const std::vector<Range>& reads, const std::vector<Range>& writes);
  // The work that writes this last, of which the host does not know that it is over; nullptr: there is none.
  std::shared_ptr<StagingUse> last_write(const Range& range) const;
  // Whether what it reads is as it was when it was enqueued; else tells.
  bool unchanged(const StagingUse& use) const;
  // The host knows now what the clock does.
  void end_uses(const Clock& known);

 private:
  struct Block {
    int64_t bytes;
  };
  using Blocks = std::map<char*, Block>;

  void reach(const std::vector<Range>& reads, const std::vector<Range>& writes, bool within);
  void check_guards(const std::string& name);

  const std::function<void(std::string)> give_up_;
  char* memory_ = nullptr;
  const int64_t bytes_;
  int64_t used_bytes_ = 0, touched_bytes_ = 0;
  Blocks blocks_, staging_;
  int open_ = 0;  // threads that do the device's work
  Uses uses_;     // that the host does not know to be over
};

}  // namespace moonflow::cuda::simulated
