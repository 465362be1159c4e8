// The clock as a judge: ways to compute the same run on the card, because what a library holds to be the fastest need
// not be.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/device.h"

namespace moonflow::cuda {

// Whether it may be asked. MOONFLOW_CUDA_TIMING=0 in the environment leaves every choice to the libraries, which choose
// alike on all machines with one kind of card; what is timed may differ between two of them.
bool may_time();

// The card as what has been timed on it is kept under, on any machine.
std::string card_of(Device& device);

// Memory with values in [-1, 1), since cards are faster on zeros. It repeats itself.
Buffer drawn_values(Device& device, DType dtype, int64_t count);

// The place of the fastest of these, the first where several are within 10 %, by the median time of several launches in
// a row, recorded where the device records, as those of a job are. None where none of them runs. Takes some
// milliseconds, and for long launches not more than five of each; then perhaps only the first few of them are tried.
// `seconds` is the clock; tests have one of their own.
using TimedLaunch = std::function<void(Stream&)>;
double steady_seconds();
std::optional<size_t> fastest(Device& device, const std::vector<TimedLaunch>& launches,
                              const std::function<double()>& seconds = steady_seconds);

}  // namespace moonflow::cuda
