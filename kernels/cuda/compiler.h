// Kernels compiled while a script runs, by NVRTC: source in, machine code for one kind of card out. What has been
// compiled once, or timed once to be the fastest (timing.h), is kept on disk, in MOONFLOW_CACHE, else in
// XDG_CACHE_HOME/moonflow or ~/.cache/moonflow; an empty MOONFLOW_CACHE keeps nothing. Any thread.
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

// ---- what is kept ----

// The folder, or nothing where none is to be used.
std::string cache_folder();
// What was kept under the key, or nothing: a file that is not whole, that somebody else could have written, or whose
// key is another counts as absent.
std::string read_cached(const std::string& folder, const std::string& key);
// Renamed into place, so that a reader finds all of it or nothing. Where it cannot be written, nothing is kept.
void write_cached(const std::string& folder, const std::string& key, const std::string& code);

}  // namespace moonflow::cuda
