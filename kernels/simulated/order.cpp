#include "kernels/simulated/order.h"

#include <algorithm>

namespace moonflow::cuda::simulated {

namespace {

uintptr_t begin_of(const Range& range) { return reinterpret_cast<uintptr_t>(range.data); }
uintptr_t end_of(const Range& range) { return begin_of(range) + static_cast<uintptr_t>(range.bytes); }

std::string unordered(const Moment& one, const char* does, const Moment& other, const char* did, int64_t bytes) {
  return text(*one.name, ", which ", does, ", and ", *other.name, ", which ", did, " the same ", bytes,
              " bytes, are not ordered: an event is missing, or memory is used again too soon");
}

}  // namespace

std::optional<std::string> Accesses::note(const Moment& moment, const Clock& before, const std::vector<Range>& reads,
                                          const std::vector<Range>& writes) {
  std::optional<std::string> wrong;
  const auto check = [&](const Moment& other, const char* does, const char* did, int64_t bytes) {
    const bool own = other.line == moment.line && other.tick == moment.tick;
    if (!wrong && !own && !other.known_to(before)) wrong = unordered(moment, does, other, did, bytes);
  };
  for (const Range& range : reads) {
    if (range.bytes <= 0) continue;
    const auto [first, last] = cut(range);
    for (auto at = first; at != last; ++at) {
      Span& span = at->second;
      check(span.written, "reads", "writes", span.end - at->first);
      const auto same_line = [&](const Moment& other) { return other.line == moment.line; };
      const auto found = std::find_if(span.read.begin(), span.read.end(), same_line);
      if (found == span.read.end())
        span.read.push_back(moment);
      else
        *found = moment;
    }
  }
  for (const Range& range : writes) {
    if (range.bytes <= 0) continue;
    const auto [first, last] = cut(range);
    for (auto at = first; at != last; ++at) {
      Span& span = at->second;
      const int64_t bytes = span.end - at->first;
      check(span.written, "writes", "writes", bytes);
      for (const Moment& other : span.read) check(other, "writes", "reads", bytes);
      span.written = moment;
      span.read.clear();
    }
  }
  return wrong;
}

bool Accesses::all_known(const Clock& clock, const Range& range) const {
  auto at = spans_.upper_bound(begin_of(range));
  if (at != spans_.begin()) --at;
  for (; at != spans_.end() && at->first < end_of(range); ++at) {
    const Span& span = at->second;
    if (span.end <= begin_of(range)) continue;
    if (!span.written.known_to(clock)) return false;
    for (const Moment& other : span.read)
      if (!other.known_to(clock)) return false;
  }
  return true;
}

void Accesses::forget(const Range& range) {
  if (range.bytes <= 0) return;
  const auto [first, last] = cut(range);
  spans_.erase(first, last);
}

void Accesses::cut(uintptr_t at) {
  auto after = spans_.upper_bound(at);
  if (after == spans_.begin()) return;
  auto span = std::prev(after);
  if (span->first == at || span->second.end <= at) return;
  spans_.emplace_hint(after, at, span->second);
  span->second.end = at;
}

std::pair<Accesses::Spans::iterator, Accesses::Spans::iterator> Accesses::cut(const Range& range) {
  const uintptr_t begin = begin_of(range), end = end_of(range);
  cut(begin);
  cut(end);
  auto at = spans_.lower_bound(begin);
  for (uintptr_t place = begin; place < end;) {
    if (at == spans_.end() || at->first > place) {
      const uintptr_t gap_end = at == spans_.end() ? end : std::min(end, at->first);
      at = spans_.emplace_hint(at, place, Span{gap_end, {}, {}});
    }
    place = at->second.end;
    ++at;
  }
  return {spans_.lower_bound(begin), spans_.lower_bound(end)};
}

}  // namespace moonflow::cuda::simulated
