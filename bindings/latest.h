// The latest value that one thread leaves for another, which waits for nothing and takes no memory.
#pragma once

#include "engine/triple_buffer.h"

namespace moonflow::host {

template <class T>
class Latest {
 public:
  // The writing thread fills this, then leaves it.
  T& draft() { return places_[buffer_.writing()]; }
  void leave() { buffer_.leave(); }
  // The reading thread's, until it asks again. What nobody has left yet is a T() like any.
  const T& read() {
    buffer_.take();
    return places_[buffer_.reading()];
  }

 private:
  T places_[TripleBuffer::kPlaces];
  TripleBuffer buffer_;
};

}  // namespace moonflow::host
