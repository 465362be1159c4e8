// What an exit of the process waits for. A process that exits without closing destroys what libraries below us hold,
// while threads may still be inside of them: workers, and threads of a host that run plans themselves. So an exit first
// lets end what is under way, and lets nothing further begin, on no thread: the one that exits goes on to call what the
// host has registered earlier, and a part of what is below us is gone then.
#pragma once

namespace moonflow {

// A stay of this thread in what an exit destroys. They may be nested.
class Stay {
 public:
  Stay();
  ~Stay();
  Stay(const Stay&) = delete;

  // The process has begun to end: nothing below us may be used any more, nor freed.
  bool is_late() const { return is_late_; }
  // Throws where it is late.
  void require_in_time() const;

 private:
  void* place_;  // nullptr where there was no memory for one: then no exit waits for this
  bool is_late_;
};

// Whether the process has begun to end.
bool process_ends() noexcept;

// An exit destroys in the reverse order of making. So this is called when something has been made, or used first, that
// it is to find in use no more; as often as that happens, since it takes room but once. False where the system has none
// to note it.
bool exit_waits_from_here() noexcept;

}  // namespace moonflow
