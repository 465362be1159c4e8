// What connectionist temporal classification is on every device: chances of ways that are far below the least double,
// how a way goes on by a step, and which integers it may be told.
//
// A way through the steps is at a label or at a blank: blank i stands before label i, and the last one behind all. What
// comes in from behind is the same with the labels from the last to the first, so one step serves both directions. Both
// begin at a blank, where nothing has been said yet.
#pragma once

#include "kernels/bad_index.h"
#include "kernels/elementary.h"

namespace moonflow::ctc {

// ---- chances -------------------------------------------------------------------------------------------------

// part * 2^power, with a power that is whole. A thousand steps multiply to less than any double, and what is far below
// all else at one step may be all there is at the end, so each way has a power of its own. To add logarithms instead
// would take exponentials and a logarithm for every place of every step, and lose digits as they grow.
struct Chance {
  double part, power;
};

constexpr double kNoPower = -1e290;  // below that of any chance there is
constexpr Chance kNever{0, kNoPower}, kCertain{1, 0};

// For a whole number within those of normal numbers; what is further below counts as them, and nothing beside a 1.
MOONFLOW_BOTH inline double two_to(double power) {
  constexpr double kBias = 0x1.8p52 + 1023;  // adding it leaves the exponent in the lowest bits
  power = power < -1000 ? -1000 : power;
  return elementary::double_of(static_cast<uint64_t>(elementary::bits_of(power + kBias)) << 52);
}

// Of a logarithm, which may be minus infinity. A NaN stays one.
MOONFLOW_BOTH inline Chance chance_of(double log) {
  constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33, kMost = 0.5;
  constexpr double kShift = 0x1.8p52, kLeast = -1e280;
  const double power = (log * 1.4426950408889634 + kShift) - kShift;
  double rest = (log - power * kLn2High) - power * kLn2Low;
  // A logarithm of more digits than it has places before the point has no rest.
  rest = rest > kMost ? kMost : rest;
  rest = rest < -kMost ? -kMost : rest;
  const double part = elementary::exp(rest);
  return {log < kLeast ? 0.0 : part, power > 2 * kLeast ? power : kNoPower};
}
MOONFLOW_BOTH inline double log_of(Chance a) { return elementary::log(a.part) + a.power * 0.69314718055994531; }

MOONFLOW_BOTH inline Chance sum(Chance a, Chance b) {
  const double power = a.power > b.power ? a.power : b.power;
  return {a.part * two_to(a.power - power) + b.part * two_to(b.power - power), power};
}
MOONFLOW_BOTH inline Chance sum(Chance a, Chance b, Chance c) {
  const double higher = a.power > b.power ? a.power : b.power, power = higher > c.power ? higher : c.power;
  return {a.part * two_to(a.power - power) + b.part * two_to(b.power - power) + c.part * two_to(c.power - power),
          power};
}
MOONFLOW_BOTH inline Chance only_if(bool holds, Chance a) { return {holds ? a.part : 0.0, holds ? a.power : kNoPower}; }
// With a part from 1 to 2, unless it is 0 or a NaN.
MOONFLOW_BOTH inline Chance product(Chance a, Chance b) {
  const double part = a.part * b.part;
  const uint64_t exponent = static_cast<uint64_t>(elementary::bits_of(part)) >> 52;
  const double over = elementary::double_of(exponent | 0x4330000000000000) - (0x1p52 + 1023);
  return {part * two_to(-over), (a.power + b.power) + over};
}
MOONFLOW_BOTH inline Chance inverse(Chance a) { return {1 / a.part, -a.power}; }
// a * b * c as a number, for a c that is a factor over the whole of which a * b is a part: so the power is 1 at most,
// as far as powers have digits for it.
MOONFLOW_BOTH inline double share(Chance a, Chance b, Chance c) {
  const double power = (a.power + b.power) + c.power;
  return a.part * b.part * c.part * two_to(power > 8 ? 8 : power);
}

// Whether a label may follow another one with no blank between them.
MOONFLOW_BOTH inline bool follows_at_once(int64_t label, int64_t before, int64_t blank) {
  return label != blank && label != before;
}

// ---- sizes and faults ----------------------------------------------------------------------------------------

struct Sizes {
  int64_t batch, steps, classes, labels, blank;
  bool zero_infinity;  // of the op, not of its gradient

  // `input` says which of the call's inputs that is; target and lengths follow it.
  Sizes(const KernelCall& call, int input)
      : batch(call.inputs[input].shape[0]),
        steps(call.inputs[input].shape[1]),
        classes(call.inputs[input].shape[2]),
        labels(call.inputs[input + 1].shape[1]),
        blank(call.attrs.integer("blank")),
        zero_infinity(call.attrs.find("zero_infinity") != nullptr && call.attrs.flag("zero_infinity")) {}

  MOONFLOW_BOTH double loss(Chance all) const {
    const bool is_never = all.part == 0;
    if (is_never) return zero_infinity ? 0.0 : std::numeric_limits<double>::infinity();
    return 0.0 - log_of(all);
  }

  // The places of a fault, which has one number: those of the target, then of each row's lengths.
  MOONFLOW_BOTH int64_t place_of_steps(int64_t row) const { return batch * labels + row; }
  MOONFLOW_BOTH int64_t place_of_labels(int64_t row) const { return batch * labels + batch + row; }
  [[noreturn]] void fail_at(int64_t place, int64_t value) const {
    if (place >= place_of_labels(0))
      fail_index({batch}, place - place_of_labels(0), value, labels + 1, "target_lengths");
    if (place >= place_of_steps(0)) fail_index({batch}, place - place_of_steps(0), value, steps + 1, "input_lengths");
    fail_index({batch, labels}, place, value, classes, "target");
  }
};

}  // namespace moonflow::ctc
