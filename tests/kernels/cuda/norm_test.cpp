// Normalisation on the card: channels of many elements, in either layout and precision, and means far from zero.
#include "beside_cpu.h"
#include "engine/autodiff.h"
#include "engine/plan.h"
#include "shifted.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

// Few channels with many places, many channels with few, one channel, packs that are not full, places and channels
// that fill them, and the last images of a ResNet.
const Shape kImages[] = {{4, 3, 31, 17}, {2, 70, 3, 3},  {5, 1, 9, 1},   {3, 16, 1, 1},  {700, 5, 2, 2},
                         {2, 7, 1, 1},   {9, 64, 12, 12}, {3, 2048, 1, 1}, {2, 2048, 7, 7}, {3, 24, 40, 6}};

// Of a trial whose images are float32: the same with images in a narrow dtype.
Trial narrowed(const Trial& trial, DType dtype) {
  Trial narrow = trial;
  for (Tensor& input : narrow.inputs) {
    if (!input || input.shape().rank() < 3) continue;
    const Tensor wide = input;
    input = Tensor::allocate({dtype, wide.shape()});
    visit_narrow(dtype, [&](auto zero) {
      using T = decltype(zero);
      for (int64_t i = 0; i < wide.count(); ++i) input.data<T>()[i] = T(wide.data<float>()[i]);
    });
  }
  return narrow;
}

}  // namespace

TEST_CASE("batch normalisation agrees with the CPU in either layout, in float32 and what is narrow") {
  const BesideCpu beside;
  for (const Shape& shape : kImages) {
    const TensorType image{DType::Float32, shape}, channel{DType::Float32, {shape[1]}};
    const Tensor x = drawn(image, 1, -2, 4), dy = drawn(image, 2), addend = drawn(image, 3);
    const Tensor gamma = drawn(channel, 4), beta = drawn(channel, 5), variance = drawn(channel, 6, 0.5, 2);
    const auto check = [&](const char* op, std::vector<Tensor> inputs) {
      const Trial trial = beside.trial(op, std::move(inputs));
      // Results in float32 of what was rounded before are as near as those of float32.
      for (const DType narrow : {DType::BFloat16, DType::Float16})
        beside.check_both_layouts(narrowed(trial, narrow),
                                  [](DType dtype) { return is_narrow(dtype) ? two_roundings(dtype) : 2e-5; });
      return beside.check_both_layouts(trial, 2e-5);
    };
    const std::vector<Tensor> plain = check("batch_norm_train", {x, gamma, beta}).outputs;
    const Tensor mean = plain[1], inv_std = plain[2];
    check("batch_norm_train_grad", {x, gamma, mean, inv_std, dy});
    check("batch_norm_train_grad", {x, gamma, mean, inv_std, dy, beta, variance});
    check("batch_norm_relu", {x, gamma, beta});
    check("batch_norm_relu_grad", {x, gamma, beta, mean, inv_std, dy});
    check("batch_norm_relu6", {x, drawn(channel, 4, -8, 8), beta});
    check("batch_norm_relu6_grad", {x, drawn(channel, 4, -8, 8), beta, mean, inv_std, dy});
    const Tensor y = check("batch_norm_add_relu", {x, gamma, beta, addend}).outputs[0];
    check("batch_norm_add_relu_grad", {x, gamma, beta, mean, inv_std, dy, y});
    // A sum that needs no rounding: the card takes dx from what it has stored of it.
    check("batch_norm_add_relu_grad", {x, gamma, beta, mean, inv_std, dy, y, dy});
    check("batch_norm_infer", {x, gamma, beta, mean, variance});
    check("batch_norm_infer_grad", {dy, x, gamma, mean, variance});
    beside.check("moving_statistics_update", {beta, variance, mean, inv_std}, {{"count", int64_t{8}}});
    for (const float finite : {0.0F, 1.0F})
      beside.check("moving_statistics_update", {beta, variance, mean, inv_std, Tensor::of<float>({}, {finite})},
                   {{"count", int64_t{8}}});
  }
}

TEST_CASE("batch normalisation has the same bits at addresses of every kind") {
  Bench bench;
  const auto check = [&](const Shape& shape, DType dtype) {
    const TensorType image{dtype, shape}, c{DType::Float32, {shape[1]}};
    bench.check("batch_norm_relu", {image, c, c}, {});
    bench.check("batch_norm_add_relu_grad", {image, c, c, c, c, image, image, image}, {});
    const Trial trial = draw(bench.catalog->at("batch_norm_relu_grad"), {{image, c, c, c, c, image}}, 1);
    const Launched aligned = launch(trial, *bench.card), shifted = bench.shifted(trial, 1);
    for (size_t i = 0; i < aligned.outputs.size(); ++i) CHECK(same(aligned.outputs[i], shifted.outputs[i]));
  };
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    check({3, 8, 6, 10}, dtype);
    check({300, 12, 1, 1}, dtype);
  }
}

TEST_CASE("batch statistics are taken over every place once, however places are shared out") {
  const BesideCpu beside;
  for (const int64_t places : {1, 3, 17, 255, 257, 4097, 70001}) {
    for (const int64_t channels : {4, 5}) {
      // Distances are taken from the first, so each of the others counts once, and shows where it does not.
      Tensor x = Tensor::zeros({DType::Float32, {places, channels}});
      for (int64_t i = channels; i < x.count(); ++i) x.data<float>()[i] = 1;
      const Tensor c = drawn({DType::Float32, {channels}}, 1);
      const Launched got = launch(beside.trial("batch_norm_train", {x, c, c}, {{"axis", int64_t{1}}}), *beside.card);
      const double n = static_cast<double>(places);
      for (int64_t i = 0; i < channels; ++i) CHECK(std::abs(element(got.outputs[1], i) - (n - 1) / n) < 0.2 / n);
    }
  }
}

TEST_CASE("normalising and pooling narrow images widens none of them") {
  const BesideCpu beside;
  const DType narrow = GENERATE(DType::BFloat16, DType::Float16);
  const TensorType image{narrow, {32, 64, 112, 112}}, half{narrow, {32, 64, 56, 56}}, c{DType::Float32, {64}};
  const auto scratch_bytes = [&](const char* name, std::vector<TensorType> inputs, const Attrs& given = {}) {
    const OpDef& op = beside.catalog->at(name);
    const Attrs attrs = complete(op, given);
    std::vector<const TensorType*> types;
    for (const TensorType& type : inputs) types.push_back(&type);
    types.resize(op.inputs.size(), nullptr);
    KernelCall call{*beside.card, attrs, std::move(inputs)};
    for (size_t i = 0; i < types.size(); ++i) call.present.push_back(types[i] != nullptr);
    call.outputs = op.infer(OpCall{types, attrs});
    call.inputs.resize(types.size());
    call.input_layouts.resize(types.size());
    call.output_layouts.resize(call.outputs.size());
    for (size_t i = 0; i < types.size(); ++i)
      if (has_places(call.inputs[i])) call.input_layouts[i] = cuda::channels_last(call.inputs[i]);
    REQUIRE(beside.card->kernel(op).prepare(call));
    return call.scratch_bytes;
  };
  const int64_t little = image.bytes() / 8;
  CHECK(scratch_bytes("batch_norm_add_relu", {image, c, c, image}) < little);
  CHECK(scratch_bytes("batch_norm_add_relu_grad", {image, c, c, c, c, image, image}) < little);
  CHECK(scratch_bytes("batch_norm_infer", {image, c, c, c, c}) == 0);
  CHECK(scratch_bytes("reduce_mean", {image}, {{"axis", Ints{2, 3}}}) < little);
  const Attrs pool{{"ksize", Ints{3}}, {"strides", Ints{2}}, {"padding", std::string("SAME")}};
  CHECK(scratch_bytes("max_pool2d", {image}, pool) == 0);
  CHECK(scratch_bytes("max_pool2d_grad", {half, image}, pool) <= little);  // a byte for each element of dy
}

TEST_CASE("in mixed precision a batch norm between two products takes and gives what is narrow, without a conversion") {
  const DType narrow = GENERATE(DType::BFloat16, DType::Float16);
  const BesideCpu beside;
  Session session(beside.catalog, beside.card);
  Graph graph(*beside.catalog);
  graph.mixed_precision = narrow;
  const TensorType hidden{DType::Float32, {64, 48}}, channels{DType::Float32, {48}};
  const ValueId w1 = graph.feed("w1", {DType::Float32, {32, 48}}), w2 = graph.feed("w2", {DType::Float32, {48, 16}}),
                gamma = graph.feed("gamma", channels), beta = graph.feed("beta", channels);
  const ValueId a = graph.append("matmul", {graph.feed("x", {DType::Float32, {64, 32}}), w1}, {}, "first")[0];
  const ValueId y = graph.append("batch_norm_train", {a, gamma, beta}, {}, "norm")[0];
  const ValueId out = graph.append("matmul", {y, w2}, {}, "second")[0];
  const ValueId seed = graph.append("ones_like", {out}, {}, "seed")[0];
  for (const ValueId grad : gradients(graph, {out}, {seed}, {w1, gamma, beta, w2})) graph.tap(grad, 1);
  int norms = 0;
  const std::shared_ptr<Plan> plan = session.compile(graph, "norm");
  for (const Step& step : plan->steps) {
    INFO(step.label);
    if (step.label.rfind("cast ", 0) == 0) CHECK(step.input_types[0].shape != hidden.shape);
    if (step.label.rfind("batch_norm", 0) != 0) continue;
    ++norms;
    for (const std::vector<TensorType>* types : {&step.input_types, &step.output_types})
      for (const TensorType& type : *types)
        if (type.shape.rank() > 0) CHECK(type.dtype == (type.shape == hidden.shape ? narrow : DType::Float32));
  }
  CHECK(norms == 2);
}

TEST_CASE("batch statistics keep their digits where the mean is far from zero") {
  const BesideCpu beside;
  const TensorType channel{DType::Float32, {3}};
  Tensor x = drawn({DType::Float32, {20, 3, 40, 40}}, 7, 1000, 1001);
  for (const float first : {1000.5f, -1e5f}) {  // the distances are taken from it
    x.data<float>()[0] = first;
    beside.check_both_layouts(beside.trial("batch_norm_train", {x, drawn(channel, 8), drawn(channel, 9)}));
  }
  // Runs whose first element is far from the rest.
  for (int64_t i = 0; i < x.count(); i += 113) x.data<float>()[i] = 3000;
  beside.check_both_layouts(beside.trial("batch_norm_train", {x, drawn(channel, 8), drawn(channel, 9)}));
}

TEST_CASE("a gradient of batch normalisation may lie over what it is made of") {
  const BesideCpu beside;
  const TensorType image{DType::Float32, {9, 4, 7, 5}}, channel{DType::Float32, {4}};
  const Tensor x = drawn(image, 1), dy = drawn(image, 2), y = drawn(image, 3), c = drawn(channel, 4, 0.5, 1);
  const Trial trial = beside.trial("batch_norm_add_relu_grad", {x, c, c, c, c, dy, y});
  const Launched apart = launch(trial, *beside.card);
  for (const Sharing& share : trial.op->inplace) {
    const Launched shared = launch(trial, *beside.card, &share);
    CHECK(shared.damage == "");
    for (size_t i = 0; i < apart.outputs.size(); ++i) CHECK(same(shared.outputs[i], apart.outputs[i]));
  }
}

TEST_CASE("layer normalisation agrees with the CPU for rows of every length") {
  const BesideCpu beside;
  for (const Shape& shape : {Shape{4, 3, 5}, Shape{2, 70, 30}, Shape{2, 3, 1000}, Shape{2, 3, 3001},
                             Shape{2050, 2, 4}}) {
    const TensorType image{DType::Float32, shape}, last{DType::Float32, {shape[2]}},
        whole{DType::Float32, {shape[1], shape[2]}};
    const Tensor x = drawn(image, 1, -2, 4), dy = drawn(image, 2), gamma = drawn(last, 3), beta = drawn(whole, 4);
    for (const int64_t axis : {1, 2}) {
      const Attrs attrs{{"begin_norm_axis", axis}};
      const Tensor shift = axis == 1 ? beta : gamma;
      const std::vector<Tensor> y = beside.check("layer_norm_core", {x, gamma, shift}, attrs).outputs;
      beside.check("layer_norm_core", {x}, attrs);
      if (axis == 1) beside.check("layer_norm_core", {x, beta, gamma}, attrs);  // of the two only the scale is whole
      beside.check("layer_norm_grad", {x, y[1], y[2], dy, gamma, y[2], y[1]}, attrs);
      beside.check("layer_norm_grad", {x, y[1], y[2], dy}, attrs);
      Attrs with_shape = attrs;
      with_shape.set("shape", shift.shape().dims());
      beside.check("layer_norm_parameter_grad", {x, y[1], y[2], dy}, with_shape, 2e-5);
      Attrs about_zero = attrs;
      about_zero.set("centred", false);
      beside.check("layer_norm_core", {x, gamma, shift}, about_zero);
      beside.check("layer_norm_grad", {x, y[1], y[2], dy, gamma, y[2], y[1]}, about_zero);
    }
  }
}

TEST_CASE("layer normalisation takes rows whose squares float32 has no room for") {
  const BesideCpu beside;
  for (const int64_t n : {63, 64, 1500, 9000}) {
    const TensorType row{DType::Float32, {n}};
    const Tensor gamma = drawn(row, 1), beta = drawn(row, 2);
    for (const double size : {1e-25, 1e25}) {
      const Tensor x = drawn({DType::Float32, {3, n}}, 3, -size, size);
      beside.check("layer_norm_core", {x, gamma, beta}, {{"begin_norm_axis", int64_t{1}}, {"epsilon", 1e-60}});
    }
  }
}

TEST_CASE("layer normalisation keeps its digits where the mean is far from zero") {
  const BesideCpu beside;
  for (const int64_t n : {15, 64, 1500, 9000}) {  // in a thread, a warp and a block, and where a row stays in memory
    const Tensor x = drawn({DType::Float32, {3, n}}, 3, 29999.99, 30000.01);
    beside.check("layer_norm_core", {x}, {{"begin_norm_axis", int64_t{1}}, {"epsilon", 1e-12}});
  }
}

TEST_CASE("moments agree with the CPU over any axes") {
  const BesideCpu beside;
  const Tensor x = drawn({DType::Float32, {6, 50, 33}}, 1, 99, 100);
  for (const Ints& axes : {Ints{}, Ints{0}, Ints{1}, Ints{2}, Ints{0, 2}, Ints{1, 2}}) {
    const Attrs attrs{{"axes", axes}};
    const std::vector<Tensor> moments = beside.check("moments", {x}, attrs).outputs;
    beside.check("moments_grad", {x, moments[0], moments[1], moments[0]}, attrs);
    beside.check("moments_grad", {x, moments[0], Tensor(), moments[0]}, attrs);
  }
}
