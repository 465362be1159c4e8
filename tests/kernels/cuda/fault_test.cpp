// Labels and indices outside their range: what the card finds while it works is the error that the CPU throws.
#include "kernels/cuda/fault.h"
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

constexpr int kStep = 5;  // the place of the launch in its plan

struct AfterLaunch {
  std::vector<Tensor> inputs;
  std::function<void(int64_t place, int64_t value)> explain;
};

// Launches a kernel on a stream, as a plan would, whatever the run has come to.
AfterLaunch launch_on(Stream& stream, const Trial& trial, Device& card) {
  KernelCall call{card, trial.attrs, {}, {}, trial.infer(), {}, {}};
  std::vector<Buffer> buffers;
  const auto place = [&](int64_t bytes) {
    buffers.emplace_back(card, std::max<int64_t>(bytes, 1));
    return buffers.back().data();
  };
  std::vector<void*> inputs, outputs;
  for (const Tensor& input : trial.inputs) {
    call.present.push_back(static_cast<bool>(input));
    call.inputs.push_back(input ? input.type() : TensorType());
    inputs.push_back(input ? place(input.bytes()) : nullptr);
    if (!input) continue;
    card.copy(stream, inputs.back(), input.data(), input.bytes());
    stream.wait();
  }
  for (const TensorType& output : call.outputs) outputs.push_back(place(output.bytes()));
  call.input_layouts.resize(call.inputs.size());
  call.output_layouts.resize(call.outputs.size());
  const Launch launch = card.kernel(*trial.op).prepare(call);
  launch({stream, inputs.data(), outputs.data(), place(call.scratch_bytes), kStep});
  AfterLaunch launched{{}, call.explain};
  for (size_t i = 0; i < inputs.size(); ++i) {
    launched.inputs.emplace_back();
    if (inputs[i] == nullptr) continue;
    launched.inputs[i] = Tensor::allocate(trial.inputs[i].type());
    card.copy(stream, launched.inputs[i].data(), inputs[i], launched.inputs[i].bytes());
    stream.wait();
  }
  return launched;
}

// The message of the fault that a launch notes.
std::string found_by(const Trial& trial, Device& card) {
  const auto stream = card.make_stream();
  const AfterLaunch launched = launch_on(*stream, trial, card);
  Fault* const staging = static_cast<Fault*>(card.allocate_staging(sizeof(Fault)));
  stream->take_fault(staging);
  stream->wait();
  const Fault found = *staging;
  card.free_staging(staging);
  if (found.step < 0) return "no fault";
  CHECK(found.step == kStep);
  try {
    launched.explain(found.place, found.value);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string thrown_by(const Trial& trial, Device& cpu) {
  try {
    oracle::launch(trial, cpu);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a label or an index outside its range is the error of the CPU") {
  const BesideCpu beside;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    const Tensor rows = drawn({dtype, {40}}, 1), values = drawn({dtype, {40, 7}}, 2, 0, 1);
    for (const int64_t bad : {-1, 7, 1000}) {
      Tensor labels = drawn({DType::Int64, {40}}, 3, 0, 7), good = labels.copy();
      labels.data<int64_t>()[33] = bad;
      const auto check = [&](const char* op, const std::vector<Tensor>& inputs, int place, const Attrs& attrs = {}) {
        Trial trial = beside.trial(op, inputs, attrs);
        INFO(trial.describe() << ", " << bad);
        const std::string expected = thrown_by(trial, *beside.cpu);
        CHECK(expected.find(std::to_string(bad)) != std::string::npos);
        CHECK(found_by(trial, *beside.card) == expected);
        trial.inputs[place] = good;
        CHECK(found_by(trial, *beside.card) == "no fault");
      };
      check("sparse_softmax_cross_entropy_with_logits", {labels, values}, 0);
      check("sparse_softmax_cross_entropy_grad", {rows, labels, values}, 1);
      check("sparse_cross_entropy", {labels, values}, 0);
      check("sparse_cross_entropy_grad", {rows, labels, values}, 1);
      check("gather", {values, labels}, 1, {{"axis", int64_t{1}}});
      check("gather_grad", {drawn({dtype, {40, 5}}, 4), labels}, 1, {{"shape", Ints{7, 5}}});
      check("gather", {Tensor::allocate({dtype, {7, 0}}), labels}, 1);
      check("picks_by_row", {labels}, 0, {{"rows", int64_t{7}}});
      check("one_hot", {labels}, 0, {{"depth", int64_t{7}}, {"axis", int64_t{0}}});
      check("in_top_k", {labels, values}, 0, {{"k", int64_t{2}}});
      check("unsorted_segment_sum", {values, labels}, 1, {{"num_segments", int64_t{7}}});
    }
  }
}

TEST_CASE("a coordinate outside its own axis is the error of the CPU") {
  const BesideCpu beside;
  const Tensor params = drawn({DType::Float32, {9, 7, 5}}, 1), rows = drawn({DType::Float32, {20, 5}}, 2);
  const Tensor tuples = drawn({DType::Int32, {20, 2}}, 3, 0, 7), index = drawn({DType::Int32, {9, 7, 4}}, 4, 0, 5);
  const auto check = [&](const char* op, const std::vector<Tensor>& inputs, int place, const Attrs& attrs = {}) {
    Trial trial = beside.trial(op, inputs, attrs);
    CHECK(found_by(trial, *beside.card) == "no fault");
    trial.inputs[place] = trial.inputs[place].copy();
    trial.inputs[place].data<int32_t>()[33] = 8;  // of a tuple, its second coordinate
    INFO(trial.describe());
    const std::string expected = thrown_by(trial, *beside.cpu);
    CHECK(expected.find("is 8, outside") != std::string::npos);
    CHECK(found_by(trial, *beside.card) == expected);
  };
  check("gather_nd", {params, tuples}, 1);
  check("scatter_nd", {tuples, rows}, 0, {{"shape", Ints{9, 7, 5}}});
  check("tensor_scatter_nd_add", {params, tuples, rows}, 1);
  check("tensor_scatter_nd_update", {params, tuples, rows}, 1);
  check("gather_nd", {Tensor::allocate({DType::Float32, {9, 7, 0}}), tuples}, 1);
  check("scatter_nd", {tuples, Tensor::allocate({DType::Float32, {20, 0}})}, 0, {{"shape", Ints{9, 7, 0}}});
  check("dim_gather", {params, index}, 1, {{"dim", int64_t{2}}});
  check("dim_gather_grad", {drawn({DType::Float32, {9, 7, 4}}, 5), index}, 1,
        {{"dim", int64_t{-1}}, {"size", int64_t{5}}});
}

TEST_CASE("a length or a label outside of its axis is the error of the CPU") {
  const BesideCpu beside;
  const Tensor input = drawn({DType::Float32, {3, 6, 4}}, 1), dy = drawn({DType::Float32, {3}}, 2);
  const Tensor target = drawn({DType::Int32, {3, 2}}, 3, 0, 4), steps = Tensor::of<int32_t>({3}, {6, 5, 4});
  const Tensor counts = Tensor::of<int32_t>({3}, {2, 1, 2});
  const auto check = [&](int which, int place, int32_t bad, const char* said) {
    std::vector<Tensor> inputs{input, target, steps, counts};
    inputs[which] = inputs[which].copy();
    inputs[which].data<int32_t>()[place] = bad;
    const Trial loss = beside.trial("ctc_loss", inputs);
    inputs.insert(inputs.begin(), dy);
    const Trial grad = beside.trial("ctc_loss_grad", inputs);
    for (const Trial& trial : {loss, grad}) {
      INFO(trial.describe());
      CHECK(thrown_by(trial, *beside.cpu) == said);
      CHECK(found_by(trial, *beside.card) == (said == std::string("no error") ? "no fault" : said));
    }
  };
  check(1, 5, 4, "target at (2, 1) is 4, outside [0, 4)");
  check(1, 3, -9, "no error");  // behind the labels that count
  check(2, 1, 7, "input_lengths at (1) is 7, outside [0, 7)");
  check(3, 0, -1, "target_lengths at (0) is -1, outside [0, 3)");
}

TEST_CASE("after a bad label running statistics stay as they are") {
  const BesideCpu beside;
  const TensorType c{DType::Float32, {50}};
  Tensor labels = drawn({DType::Int32, {9}}, 1, 0, 4);
  labels.data<int32_t>()[2] = 4;
  const Trial loss = beside.trial("sparse_cross_entropy", {labels, drawn({DType::Float32, {9, 4}}, 2, 0, 1)});
  const Trial update =
      beside.trial("moving_statistics_update", {drawn(c, 3), drawn(c, 4, 0.5, 1), drawn(c, 5), drawn(c, 6, 0.5, 1)},
                   {{"count", int64_t{9}}});
  // One stream, so one run; the fault is still noted when the update comes.
  const auto stream = beside.card->make_stream();
  CHECK(!same(launch_on(*stream, update, *beside.card).inputs[0], update.inputs[0]));
  launch_on(*stream, loss, *beside.card);
  const AfterLaunch after = launch_on(*stream, update, *beside.card);
  CHECK(same(after.inputs[0], update.inputs[0]));
  CHECK(same(after.inputs[1], update.inputs[1]));
}
