#include "engine/evaluator.h"

#include <algorithm>

#include "engine/default_floats.h"
#include "engine/graph.h"
#include "engine/process_end.h"

namespace moonflow {

Evaluator::Evaluator(std::shared_ptr<Device> device) : device_(std::move(device)), stream_(device_->make_stream()) {}

bool Evaluator::Prepared::serves(const OpDef& wanted, const std::vector<Tensor>& given_inputs,
                                 const Attrs& given_attrs) const {
  if (op != &wanted || inputs.size() != given_inputs.size()) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& input = given_inputs[i];
    if (inputs[i].has_value() != static_cast<bool>(input) || (input && *inputs[i] != input.type())) return false;
  }
  return given == given_attrs;
}

std::unique_ptr<Evaluator::Prepared> Evaluator::prepare(const OpDef& op, const std::vector<Tensor>& inputs,
                                                        const Attrs& attrs) {
  auto made = std::make_unique<Prepared>();
  made->op = &op;
  made->given = attrs;
  made->attrs = complete(op, attrs);
  std::vector<ValueId> places;
  for (const Tensor& input : inputs) {
    places.push_back(input ? static_cast<ValueId>(places.size()) : kNone);
    made->inputs.push_back(input ? std::optional<TensorType>(input.type()) : std::nullopt);
  }
  fit_inputs(op, places);
  made->input_count = places.size();

  KernelCall call{*device_, made->attrs};
  std::vector<const TensorType*> types;
  for (const ValueId place : places) {
    const TensorType* const type = place == kNone ? nullptr : &*made->inputs[static_cast<size_t>(place)];
    types.push_back(type);
    call.inputs.push_back(type ? *type : TensorType());
    call.present.push_back(type != nullptr);
  }
  call.outputs = made->outputs = infer(op, OpCall{types, made->attrs});
  if (!op.alias.empty()) {
    made->alias = op.alias[0].input;
    return made;
  }
  call.input_layouts.resize(call.inputs.size());
  call.output_layouts.resize(call.outputs.size());
  const Kernel& kernel = device_->kernel(op);
  require(static_cast<bool>(kernel), ErrorCode::Unsupported, op.name, " has no ", name(device_->kind()), " kernel");
  made->launch = kernel.prepare(call);
  made->scratch_bytes = call.scratch_bytes;
  if (made->scratch_bytes > 0 && made->scratch_bytes <= kKeptScratch)
    made->scratch = Buffer(*device_, made->scratch_bytes);
  return made;
}

Evaluator::Prepared& Evaluator::prepared_for(const OpDef& op, const std::vector<Tensor>& inputs, const Attrs& attrs) {
  auto found = std::find_if(kept_.begin(), kept_.end(),
                            [&](const auto& prepared) { return prepared->serves(op, inputs, attrs); });
  if (found == kept_.end()) {
    auto made = prepare(op, inputs, attrs);
    if (kept_.size() == kKept) kept_.pop_back();
    kept_.push_back(std::move(made));
    found = kept_.end() - 1;
  }
  std::rotate(kept_.begin(), found, found + 1);
  return *kept_.front();
}

void Evaluator::evaluate(const OpDef& op, const std::vector<Tensor>& inputs, const Attrs& attrs,
                         const std::shared_ptr<HostMemory>& memory, std::vector<Tensor>& outputs) {
  const Stay stay;
  stay.require_in_time();
  const DefaultFloats floats;
  device_->enter();
  const Prepared& prepared = prepared_for(op, inputs, attrs);
  if (prepared.alias >= 0) {
    const Tensor& origin = inputs[static_cast<size_t>(prepared.alias)];
    for (const TensorType& type : prepared.outputs) outputs.push_back(origin.copy(memory).reshaped(type.shape));
    return;
  }
  const size_t first = outputs.size();
  for (const TensorType& type : prepared.outputs) outputs.push_back(Tensor::allocate(type, memory));
  input_data_.assign(prepared.input_count, nullptr);
  std::transform(inputs.begin(), inputs.end(), input_data_.begin(), [](const Tensor& input) { return input.data(); });
  output_data_.clear();
  for (size_t i = first; i < outputs.size(); ++i) output_data_.push_back(outputs[i].data());
  // Not as the device gives it: what that zeroes takes longer than many an op.
  const bool is_kept = prepared.scratch_bytes <= prepared.scratch.bytes();
  const Tensor scratch = is_kept ? Tensor() : Tensor::allocate({DType::Int8, {prepared.scratch_bytes}}, memory);
  void* const at = is_kept ? prepared.scratch.data() : scratch.data();
  prepared.launch(LaunchCall{*stream_, input_data_.data(), output_data_.data(), at});
  stream_->wait();
  // What an op makes below us when it is used first is destroyed before what was registered earlier.
  if (used_.count(&op) == 0 && exit_waits_from_here()) used_.insert(&op);
}

}  // namespace moonflow
