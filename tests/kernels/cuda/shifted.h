// Runs an op on the given card and on the CPU and compares, the first at addresses of every kind.
#pragma once

#include <functional>

#include "beside_cpu.h"

namespace moonflow::oracle {

struct Bench : BesideCpu {
  void check(const std::string& op, std::vector<TensorType> inputs, const Attrs& attrs, double low = 0.1,
             double high = 0.9) const {
    const Trial trial = draw(catalog->at(op), {std::move(inputs), attrs, low, high}, 1);
    const Launched wanted = expected(trial);
    for (const int64_t shift : {0, 1}) {
      INFO(trial.describe() << ", " << shift << " elements beside an aligned address");
      check_alike(shift == 0 ? launch(trial, *card) : shifted(trial, shift), wanted,
                  [&](DType dtype) { return tolerance(trial, dtype); });
    }
  }

  // Every buffer begins `shift` elements behind an aligned address. `before` enqueues what comes before the launch.
  Launched shifted(const Trial& trial, int64_t shift, const std::function<void(Stream&)>& before = {}) const {
    KernelCall call{*card, trial.attrs, {}, {}, trial.infer(), {}, {}};
    for (const Tensor& input : trial.inputs) {
      call.inputs.push_back(input ? input.type() : TensorType{});
      call.present.push_back(static_cast<bool>(input));
    }
    call.input_layouts.resize(call.inputs.size());
    call.output_layouts.resize(call.outputs.size());
    const Launch launch = card->kernel(*trial.op).prepare(call);
    const auto stream = card->make_stream();
    std::vector<Buffer> buffers;
    const auto place = [&](const TensorType& type) {
      buffers.emplace_back(*card, type.bytes() + kAlignment);
      return static_cast<char*>(buffers.back().data()) + shift * size_of(type.dtype);
    };
    std::vector<void*> inputs, outputs;
    for (const Tensor& input : trial.inputs) {
      inputs.push_back(input ? place(input.type()) : nullptr);
      if (input) card->copy(*stream, inputs.back(), input.data(), input.bytes());
    }
    for (const TensorType& type : call.outputs) outputs.push_back(place(type));
    const Buffer scratch(*card, call.scratch_bytes + kAlignment);
    if (before) before(*stream);
    launch(LaunchCall{*stream, inputs.data(), outputs.data(), scratch.data()});
    Launched result;
    for (size_t i = 0; i < outputs.size(); ++i) {
      result.outputs.push_back(Tensor::allocate(call.outputs[i]));
      card->copy(*stream, result.outputs[i].data(), outputs[i], call.outputs[i].bytes());
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      result.inputs.push_back(trial.inputs[i] ? trial.inputs[i].copy() : Tensor());
      if (inputs[i]) card->copy(*stream, result.inputs[i].data(), inputs[i], result.inputs[i].bytes());
    }
    stream->wait();
    return result;
  }
};

}  // namespace moonflow::oracle
