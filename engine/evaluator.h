// Ops at once, without a graph: each is prepared for what it is given and launched on the calling thread. Those
// prepared last are kept, since scripts ask for the same again and again, and for small arrays preparing is most of the
// work. Used by one thread.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "engine/op.h"

namespace moonflow {

class Evaluator {
 public:
  explicit Evaluator(std::shared_ptr<Device> device);

  // Appends what the op gives to `outputs`. A tensor without a value stands for a left-out optional input.
  void evaluate(const OpDef& op, const std::vector<Tensor>& inputs, const Attrs& attrs,
                const std::shared_ptr<HostMemory>& memory, std::vector<Tensor>& outputs);

 private:
  static constexpr size_t kKept = 64;
  static constexpr int64_t kKeptScratch = 64 << 10;  // more is allocated for each launch

  // An op for inputs of these types.
  struct Prepared {
    const OpDef* op = nullptr;
    std::vector<std::optional<TensorType>> inputs;  // as they were given
    size_t input_count = 0;                         // with those left out at the end
    Attrs given, attrs;                             // the latter with all defaults; a launch may look at them
    std::vector<TensorType> outputs;
    int alias = -1;  // of this input; nothing is launched then
    Launch launch;
    int64_t scratch_bytes = 0;
    Buffer scratch;

    bool serves(const OpDef& wanted, const std::vector<Tensor>& given_inputs, const Attrs& given_attrs) const;
  };

  Prepared& prepared_for(const OpDef& op, const std::vector<Tensor>& inputs, const Attrs& attrs);
  std::unique_ptr<Prepared> prepare(const OpDef& op, const std::vector<Tensor>& inputs, const Attrs& attrs);

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Prepared>> kept_;  // the one used last is the first
  std::set<const OpDef*> used_;                  // an exit waits for these
  std::vector<void*> input_data_, output_data_;  // of a launch under way
};

}  // namespace moonflow
