#include "given_card.h"

#include "kernels/catalog.h"

namespace moonflow::cuda {

void find_fault(Device& card, Stream& stream) {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  const OpDef& op = catalog->at("sparse_softmax_cross_entropy_with_logits");
  const TensorType labels{DType::Int32, {1}}, logits{DType::Float32, {1, 2}}, loss{DType::Float32, {1}};
  const Attrs attrs = complete(op, {});
  KernelCall call{card, attrs, {labels, logits}, {true, true}, {logits, loss}, {{}, {}}, {{}, {}}};
  const Launch launch = card.kernel(op).prepare(call);
  const Buffer buffers[] = {{card, 4}, {card, 8}, {card, 8}, {card, 4}, {card, call.scratch_bytes + kAlignment}};
  const int32_t label = 9;
  card.copy(stream, buffers[0].data(), &label, sizeof label);
  void *const inputs[] = {buffers[0].data(), buffers[1].data()}, *const outputs[] = {buffers[2].data(),
                                                                                     buffers[3].data()};
  stream.touches({{inputs[0], 4}, {inputs[1], 8}}, {{outputs[0], 8}, {outputs[1], 4}});
  launch(LaunchCall{stream, inputs, outputs, buffers[4].data(), 3});
  stream.wait();
  stream.touches({}, {});  // from here on none of these buffers, which end here
}

}  // namespace moonflow::cuda
