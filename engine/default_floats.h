// Floating point as a process begins with it: rounding to nearest, with denormal numbers, and nothing traps.
#pragma once

#include <cfenv>
#include <cstdint>

namespace moonflow {

// The calling thread's, as long as this lives. A host may have others (one of robots traps what becomes NaN, one of
// sounds flushes denormal numbers), and its threads hand them on to those they start; a result must not depend on that,
// and a NaN of a script must not end the process.
class DefaultFloats {
 public:
#if defined(__x86_64__)
  DefaultFloats() noexcept : before_(__builtin_ia32_stmxcsr()) {
    constexpr unsigned kDefault = 0x1f80, kRaised = 0x3f;  // what has been raised so far changes nothing
    constexpr uint16_t kOldDefault = 0x37f;
    changes_ = (before_ & ~kRaised) != kDefault;
    if (changes_) __builtin_ia32_ldmxcsr(kDefault);
    uint16_t old_control;
    __asm__ volatile("fnstcw %0" : "=m"(old_control));
    old_changes_ = old_control != kOldDefault;
    if (old_changes_) __asm__ volatile("fnstenv %0\n\tfldcw %1" : "=m"(old_before_) : "m"(kOldDefault));
  }
  ~DefaultFloats() {
    if (changes_) __builtin_ia32_ldmxcsr(before_);
    // With what had been raised: what has been raised since would trap as soon as it may.
    if (old_changes_) __asm__ volatile("fldenv %0" : : "m"(old_before_));
  }

 private:
  unsigned before_;
  bool changes_, old_changes_;
  struct {
    uint32_t words[7];
  } old_before_;  // of the x87, which long double and some of the C library compute with
#else
  DefaultFloats() noexcept {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
#endif

 public:
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;
};

}  // namespace moonflow
