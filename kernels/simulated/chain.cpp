#include "kernels/simulated/chain.h"

#include <algorithm>
#include <memory>

#include "kernels/chain_program.h"
#include "kernels/cuda/layout.h"
#include "kernels/elementwise_rows.h"

namespace moonflow::cuda::simulated {
namespace {

struct Link {
  int operands;
  std::vector<std::string> attrs;
};

std::map<std::string, Link, std::less<>> make_links() {
  std::map<std::string, Link, std::less<>> links;
  elementwise::for_each_unary([&](auto, const elementwise::UnaryRow& row) {
    std::vector<std::string> attrs;
    for (const AttrDef& attr : row.attrs) attrs.push_back(attr.name);
    links[row.name] = {1, attrs};
    links[text(row.name, "_grad")] = {2, attrs};
  });
  elementwise::for_each_binary([&](auto, const elementwise::BinaryRow& row) { links[row.name] = {2, {}}; });
  return links;
}

struct ChainStep {
  Launch launch;
  std::vector<int> operands;  // a leaf, 0 and up, or what an earlier step gave, -1 for the first
};

// What lies between two steps is a piece of scratch; the last one writes the result.
Launch prepare(const Kernels& kernels, KernelCall& call) {
  static const auto& links = *new auto(make_links());  // as the catalog
  const TensorType& out = call.outputs[0];
  const auto leaves = static_cast<size_t>(std::count(call.present.begin(), call.present.end(), true));
  std::vector<ChainStep> steps;
  for (const auto& op : elementwise::ops_of_chain(links, call.attrs, leaves)) {
    KernelCall own{call.device, op.attrs, {}, {}, {out}, {}, {call.output_layouts[0]}};
    for (const int from : op.operands) {
      own.inputs.push_back(from >= 0 ? call.inputs[from] : out);
      own.present.push_back(true);
      own.input_layouts.push_back(from >= 0 ? call.input_layouts[from] : call.output_layouts[0]);
    }
    steps.push_back({kernels.at(op.name).prepare(own), op.operands});
    require(own.scratch_bytes == 0, ErrorCode::Internal, "'", op.name, "' wants scratch in a chain");
  }
  const int64_t piece_bytes = checked_aligned(out.bytes());
  call.scratch_bytes = checked_product(static_cast<int64_t>(steps.size()) - 1, piece_bytes);

  return [steps = std::move(steps), piece_bytes](const LaunchCall& at) {
    const auto piece = [&](size_t k) { return static_cast<char*>(at.scratch) + static_cast<int64_t>(k) * piece_bytes; };
    for (size_t k = 0; k < steps.size(); ++k) {
      std::vector<void*> inputs;
      for (const int from : steps[k].operands) inputs.push_back(from >= 0 ? at.inputs[from] : piece(-1 - from));
      void* outputs[] = {k + 1 < steps.size() ? piece(k) : at.outputs[0]};
      steps[k].launch(LaunchCall{at.stream, inputs.data(), outputs, nullptr, at.step});
    }
  };
}

}  // namespace

void add_chain(Kernels& kernels) {
  const auto others = std::make_shared<const Kernels>(kernels);
  CudaKernel& chain = kernels["element_chain"];
  chain.prepare = [others](KernelCall& call) { return prepare(*others, call); };
  chain.layouts = share_channels_last;
}

}  // namespace moonflow::cuda::simulated
