// What the CUDA device asks of the CUDA runtime, so that the same device runs on a card and without one: the module
// hands the calls on to CUDA, kernels/simulated/runtime.h plays them on the processor. No header of CUDA is needed
// here.
//
// What goes wrong is thrown as an Error with the runtime's own text. Work fails long after it was enqueued: whoever
// enqueues, asks or waits next is told, and is told again from then on, because CUDA gives up the whole context. Any
// thread may call after enter().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/device.h"

// CUDA's own names for a stream, an event and a graph made ready to run.
struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace moonflow::cuda {

using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;
using GraphHandle = CUgraphExec_st*;

struct Properties {
  std::string name;
  int capability;  // 90 for 9.0
  int multiprocessors;
  int64_t memory_bytes;
  int64_t shared_bytes;  // that a block can be given at most
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual const Properties& properties() const = 0;
  virtual int64_t free_bytes() = 0;  // of the device's memory
  virtual void enter() = 0;          // makes this the calling thread's device

  // ---- memory. nullptr where there is no room; the content is anything.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;  // once all work so far is done
  // Of the host, pinned, and known to the device under the same address.
  virtual void* allocate_staging(int64_t bytes) = 0;
  virtual void free_staging(void* memory) noexcept = 0;

  // ---- streams. None of them waits for the legacy stream.
  virtual StreamHandle make_stream() = 0;
  virtual void destroy(StreamHandle stream) noexcept = 0;
  virtual void synchronize(StreamHandle stream) = 0;
  // Between any two memories. With memory of the host that is not staging it returns once that has been read or
  // written.
  virtual void copy(StreamHandle stream, void* to, const void* from, int64_t bytes) = 0;
  virtual void fill(StreamHandle stream, void* memory, int byte, int64_t bytes) = 0;
  // Work of the host, which must outlive it: it may neither throw nor call anything here, and what follows in the
  // stream waits for it.
  virtual void call(StreamHandle stream, const std::function<void()>& work) = 0;
  // Throws when the last launch of this thread was refused.
  virtual void check_launch() = 0;
  // What the launches and calls from now on touch, for a runtime that checks their order.
  virtual void touches(StreamHandle, const std::vector<Range>& reads, const std::vector<Range>& writes) {
    (void)reads, (void)writes;
  }

  // ---- events, without a time. One that waits long sleeps.
  virtual EventHandle make_event() = 0;
  virtual void destroy(EventHandle event) noexcept = 0;
  virtual void record(StreamHandle stream, EventHandle event) = 0;
  virtual void wait_for(StreamHandle stream, EventHandle event) = 0;
  virtual bool done(EventHandle event) = 0;
  virtual void synchronize(EventHandle event) = 0;

  // ---- flags: words of staging that are 1 once work has raised them, of which the host hears sooner than of an event.
  // Of work that fails it never hears so.
  virtual void lower(int* flag) = 0;
  virtual bool raised(const int* flag) = 0;

  // ---- graphs. What this thread enqueues in between, on the stream and on those that wait for its events and that it
  // waits for in turn, becomes a graph and is not done. Other threads go on as ever.
  virtual void begin_capture(StreamHandle stream) = 0;
  virtual GraphHandle end_capture(StreamHandle stream) = 0;
  virtual void launch(StreamHandle stream, GraphHandle graph) = 0;
  virtual void destroy(GraphHandle graph) noexcept = 0;
};

}  // namespace moonflow::cuda
