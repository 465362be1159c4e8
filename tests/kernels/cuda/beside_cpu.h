// An op on the given card beside the same op on the CPU, on values that a test chooses.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>

#include "given_card.h"
#include "kernels/cuda/layout.h"
#include "oracle.h"

namespace moonflow::oracle {

std::vector<Tensor> launch_channels_last(const Trial& trial, Device& card);

struct BesideCpu {
  std::shared_ptr<const Catalog> catalog = make_catalog();
  std::shared_ptr<Device> cpu = make_cpu_device(2), card = cuda::make_given_card();

  Trial trial(const char* op, std::vector<Tensor> inputs, const Attrs& attrs = {}) const {
    const OpDef& def = catalog->at(op);
    Trial trial{&def, complete(def, attrs), std::move(inputs)};
    while (trial.inputs.size() < def.inputs.size()) trial.inputs.emplace_back();
    return trial;
  }

  // Checks that both agree to `tolerance`, and gives what the card computed.
  Launched check(const Trial& trial, double tolerance = 1e-5) const {
    INFO(trial.describe());
    const Launched expected = launch(trial, *cpu), got = launch(trial, *card);
    CHECK(got.damage == "");
    for (size_t i = 0; i < got.outputs.size(); ++i) {
      INFO("output " << i);
      CHECK(distance(got.outputs[i], expected.outputs[i]) < tolerance);
    }
    for (size_t i = 0; i < got.inputs.size(); ++i)
      if (trial.inputs[i] && trial.op->updates(i)) CHECK(distance(got.inputs[i], expected.inputs[i]) < tolerance);
    return got;
  }
  // The same, and that images with their channels last give the same result.
  Launched check_both_layouts(const Trial& trial, double tolerance = 1e-5) const {
    const Launched rows = check(trial, tolerance);
    INFO("channels last: " << trial.describe());
    const std::vector<Tensor> last = launch_channels_last(trial, *card);
    for (size_t i = 0; i < last.size(); ++i) CHECK(distance(last[i], rows.outputs[i]) < tolerance);
    return rows;
  }
  Launched check(const char* op, std::vector<Tensor> inputs, const Attrs& attrs = {}, double tolerance = 1e-5) const {
    return check(trial(op, std::move(inputs), attrs), tolerance);
  }
};

// An image (batch, channels, space...) with its channels last in memory, and back.
inline Tensor turned(const Tensor& image, bool forth) {
  const Shape& shape = image.shape();
  const int64_t channels = shape[1], places = shape.count(2, shape.rank()), size = size_of(image.dtype());
  Tensor result = Tensor::allocate(image.type());
  for (int64_t n = 0; n < shape[0]; ++n) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t p = 0; p < places; ++p) {
        const int64_t rows = (n * channels + c) * places + p, last = (n * places + p) * channels + c;
        std::memcpy(result.data<char>() + size * (forth ? last : rows),
                    image.data<char>() + size * (forth ? rows : last), static_cast<size_t>(size));
      }
    }
  }
  return result;
}

// Launches the op with its images channels last, which its kernel must keep, and gives the outputs in rows.
inline std::vector<Tensor> launch_channels_last(const Trial& trial, Device& card) {
  const Kernel& kernel = card.kernel(*trial.op);
  const auto offer = [](const TensorType& type) {
    return type.shape.rank() > 2 ? cuda::channels_last(type) : Layout{};
  };
  KernelCall call{card, trial.attrs, {}, {}, trial.infer(), {}, {}};
  for (const Tensor& input : trial.inputs) {
    call.inputs.push_back(input ? input.type() : TensorType{});
    call.present.push_back(static_cast<bool>(input));
    call.input_layouts.push_back(offer(call.inputs.back()));
  }
  for (const TensorType& output : call.outputs) call.output_layouts.push_back(offer(output));
  LayoutCall layouts{card, trial.attrs, call.inputs, call.present, call.outputs, call.input_layouts, {}};
  layouts.outputs.resize(call.outputs.size());
  kernel.layouts(layouts);
  CHECK(layouts.inputs == call.input_layouts);
  CHECK(layouts.outputs == call.output_layouts);

  const Launch launch = kernel.prepare(call);
  const auto stream = card.make_stream();
  std::vector<Buffer> buffers;
  const auto place = [&](int64_t bytes, const void* content) {
    buffers.emplace_back(card, std::max<int64_t>(bytes, 1));
    if (content) card.copy(*stream, buffers.back().data(), content, bytes);
    return buffers.back().data();
  };
  std::vector<void*> inputs, outputs;
  for (const Tensor& input : trial.inputs) {
    const Tensor lying = input && input.shape().rank() > 2 ? turned(input, true) : input;
    inputs.push_back(input ? place(input.bytes(), lying.data()) : nullptr);
    stream->wait();
  }
  for (const TensorType& output : call.outputs) outputs.push_back(place(output.bytes(), nullptr));
  launch({*stream, inputs.data(), outputs.data(), place(call.scratch_bytes, nullptr)});
  std::vector<Tensor> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor result = Tensor::allocate(call.outputs[i]);
    card.copy(*stream, result.data(), outputs[i], result.bytes());
    stream->wait();
    results.push_back(result.shape().rank() > 2 ? turned(result, false) : result);
  }
  return results;
}

// Values of any dtype: floats uniform in [low, high), integers in [0, high).
inline Tensor drawn(const TensorType& type, unsigned seed, double low = -1, double high = 1) {
  std::mt19937 random(seed);
  Tensor tensor = Tensor::allocate(type);
  visit_stored(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < tensor.count(); ++i) {
      const double value = low + (high - low) * (random() / 4294967296.0);
      tensor.data<T>()[i] = static_cast<T>(is_floating(type.dtype) ? value : (value < 0 ? 0 : value));
    }
  });
  return tensor;
}

}  // namespace moonflow::oracle
