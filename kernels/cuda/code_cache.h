// What has been compiled once, or timed once to be the fastest (timing.h), kept on disk: in MOONFLOW_CACHE, else in
// XDG_CACHE_HOME/moonflow or ~/.cache/moonflow; an empty MOONFLOW_CACHE keeps nothing. Any thread.
#pragma once

#include <string>

namespace moonflow::cuda {

// The folder, or nothing where none is to be used.
std::string cache_folder();
// What was kept under the key, or nothing: a file that is not whole, that somebody else could have written, or whose
// key is another counts as absent.
std::string read_cached(const std::string& folder, const std::string& key);
// Renamed into place, so that a reader finds all of it or nothing. Where it cannot be written, nothing is kept.
void write_cached(const std::string& folder, const std::string& key, const std::string& code);

}  // namespace moonflow::cuda
