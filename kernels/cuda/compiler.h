// Kernels compiled while a script runs, by NVRTC: source in, machine code for one kind of card out, which is kept for
// the next time (code_cache.h). Any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace moonflow::cuda {

using Headers = std::vector<std::pair<std::string, std::string>>;  // name and text

// Why nothing can be compiled for cards of this capability, which is 90 for 9.0, or nothing: a machine may have a
// driver and no NVRTC, or one that is older than its card.
std::string obstacle_to_compiling(int capability);
// Throws what the compiler says.
std::string compile(const std::string& source, const Headers& headers, int capability);

}  // namespace moonflow::cuda
