// oneDNN in our words: its engines and streams, how its descriptors tell a layout, and a primitive that a launch calls.
// Versions 2 and 3 of the library have other ways for that, which are known here alone.
#pragma once

#include <vector>

#include <dnnl.hpp>

#include "kernels/cpu/blocked.h"
#include "kernels/cpu/device.h"

namespace moonflow::cpu {

// A device for real time has none: they allocate when they run. There this throws dnnl::error, as primitives do of what
// oneDNN has no kernel for.
const dnnl::engine& dnnl_engine(Device& device);
dnnl::stream& dnnl_stream(Stream& stream);

// ---- descriptors -------------------------------------------------------------------------------------------------

// These throw dnnl::error for what the other side has no words for. It knows float32, int8, uint8 and int32.
dnnl::memory::data_type dnnl_type(DType dtype);
Blocked blocked(const dnnl::memory::desc& desc);
dnnl::memory::desc descriptor(const Blocked& form, dnnl::memory::data_type dtype);

// ---- primitives --------------------------------------------------------------------------------------------------

// The attributes every primitive of ours is made with: oneDNN's own scratchpad belongs to the thread that made the
// primitive, and a plan is made on one thread and run on another. Ask for the bytes with scratchpad_desc().
dnnl::primitive_attr user_scratchpad();

// The descriptor of a Primitive, whose own take `arguments` in both versions.
template <class Primitive, class... Arguments>
typename Primitive::primitive_desc described(const dnnl::engine& engine, const dnnl::primitive_attr& attributes,
                                             const Arguments&... arguments) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, arguments..., attributes};
#else
  return {typename Primitive::desc(arguments...), attributes, engine};
#endif
}

// Of one that goes backward, with that of the way forward.
template <class Primitive, class Forward, class... Arguments>
typename Primitive::primitive_desc described_backward(const dnnl::engine& engine,
                                                      const dnnl::primitive_attr& attributes, const Forward& forward,
                                                      const Arguments&... arguments) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, arguments..., forward, attributes};
#else
  return {typename Primitive::desc(arguments...), attributes, engine, forward};
#endif
}

// For a primitive the library generates code, and it writes to memory that the system has refused. So there must be
// room for the code before one is made; where there is none, also without what is spare, this throws OutOfMemory.
void require_room_for_code(Device& device);
template <class Primitive>
Primitive generated(const typename Primitive::primitive_desc& desc, Device& device) {
  require_room_for_code(device);
  return Primitive(desc);
}

// A primitive with its arguments named once, so that a launch only sets addresses and allocates nothing.
// A plan has one run at a time, so the arguments may live in the launch. A primitive divides its work among the threads
// that there are when it is made; this is made with it, and has it run with as many.
class Bound {
 public:
  Bound(const dnnl::primitive& primitive, Device& device)
      : primitive_(primitive), engine_(dnnl_engine(device)), threads_(threads()) {}

  // The index for set(); `argument` is DNNL_ARG_SRC and the like.
  int add(int argument, const dnnl::memory::desc& desc);
  void set(int index, void* data) { memories_[index].set_data_handle(data); }
  void execute(Stream& stream) const;
  // The same, and whether an operation in it, or in the team's other threads since they were last asked, was invalid:
  // each thread has IEEE 754's flag of that. A maximum or minimum that drops a NaN raises it.
  bool execute_noting_invalid(Stream& stream) const;

 private:
  template <class Run>
  void with_threads(const Run& run) const;

  dnnl::primitive primitive_;
  dnnl::engine engine_;
  int threads_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

}  // namespace moonflow::cpu
