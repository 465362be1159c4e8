// How many launches a training step is on a card. Each waits for the one before and takes a microsecond or two whatever
// it does, so for small networks their number is the time of the step.
#include <catch2/catch.hpp>

#include "kernels/simulated/device.h"
#include "network.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

constexpr int64_t kBatch = 100;

struct Network : Layers {
  ValueId losses = kNone, logits = kNone;

  using Layers::Layers;
  // As scripts do: the losses' gradient is a constant, that of a variable is divided by their number, and the step
  // counts.
  void train(ValueId logits_of) {
    logits = logits_of;
    const ValueId labels = graph.feed("labels", {DType::Int32, {kBatch}});
    losses = graph.append("sparse_softmax_cross_entropy_with_logits", {labels, logits}, {}, "loss")[1];
    graph.tap(losses, 1);
    const ValueId seed = op("constant", {}, {{"value", 1.0}, {"shape", Ints{kBatch}}});
    const ValueId rate = graph.constant(Tensor::of<float>({}, {0.1f}), "rate");
    const std::vector<ValueId> grads = gradients(graph, {losses}, {seed}, weights);
    for (size_t i = 0; i < weights.size(); ++i) {
      const ValueId gradient = op("prepare_gradient", {grads[i], weights[i]}, {{"scale", 1.0 / kBatch}});
      graph.append("sgd_update", {weights[i], gradient, rate}, {}, "update");
    }
    const ValueId step = graph.variable("step", {DType::Int64, {}});
    const ValueId one = graph.constant(Tensor::of<int64_t>({}, {1}), "one");
    graph.append("assign_add", {step, one}, {}, "next step");
  }
};

void mlp(Network& net) {
  const ValueId images = net.graph.feed("images", {DType::Float32, {kBatch, 1, 28, 28}});
  const ValueId x = net.op("reshape", {images}, {{"shape", Ints{kBatch, 784}}});
  net.train(net.dense(net.op("relu", {net.dense(x, 512)}), 10));
}

// LeNet with a twentieth of its filters; of its dense layers as it is.
void lenet(Network& net) {
  ValueId x = net.graph.feed("images", {DType::Float32, {kBatch, 1, 28, 28}});
  for (const int64_t filters : {2, 3})
    x = net.op("max_pool2d", {net.op("relu", {net.conv(x, filters, 5)})}, {{"ksize", Ints{2}}});
  x = net.op("reshape", {x}, {{"shape", Ints{kBatch, 3 * 7 * 7}}});
  x = net.op("relu", {net.dense(x, 512)});
  const TensorType scalar{DType::Int64, {}};
  const ValueId seed = net.graph.constant(Tensor::of<int64_t>({}, {1}), "seed");
  const ValueId step = net.graph.variable("step", scalar);
  x = net.op("dropout", {x, seed, step}, {{"rate", 0.5}, {"key", std::string("dropout")}});
  net.train(net.dense(x, 10));
}

struct Recorded {
  std::vector<std::string> plan, nodes;
  std::vector<float> losses;  // of the last run
  int64_t step;

  std::string text() const {
    std::string lines;
    for (const std::string& line : plan) lines += "step " + line + "\n";
    for (const std::string& line : nodes) lines += "node " + line + "\n";
    return lines;
  }
};

// The third run starts what the second has recorded.
Recorded record(Network& net, const std::shared_ptr<Device>& device, const std::shared_ptr<const Catalog>& catalog) {
  Session session(catalog, device);
  const std::shared_ptr<Plan> plan = session.compile(net.graph, "train");
  for (size_t i = 0; i < net.weights.size(); ++i)
    session.write(text("weight", i), random_values(net.graph.type(net.weights[i]), 1 + i, -0.1, 0.1));
  session.write("step", Tensor::of<int64_t>({}, {0}));
  std::vector<Tensor> feeds, taps;
  for (const NodeId feed : net.graph.feeds()) {
    const TensorType& type = net.graph.type(net.graph.node(feed).outputs[0]);
    if (type.dtype == DType::Float32) {
      feeds.push_back(random_values(type, 100));
      continue;
    }
    feeds.push_back(Tensor::allocate(type));
    for (int64_t i = 0; i < kBatch; ++i) feeds.back().data<int32_t>()[i] = static_cast<int32_t>(i * 7 % 10);
  }
  for (int i = 0; i < 3; ++i) taps = run(session, plan, feeds);
  Recorded step{labels(*plan), {}, {}, *session.read("step").data<int64_t>()};
  if (device->asynchronous()) step.nodes = cuda::simulated_runtime(*device).latest_recording();
  step.losses.assign(taps[0].data<float>(), taps[0].data<float>() + kBatch);
  return step;
}

void check_nodes(void (*build)(Network&), size_t most) {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  Network net(*catalog), same(*catalog);
  build(net);
  build(same);
  const Recorded on_card = record(net, cuda::make_simulated_device(), catalog);
  const Recorded on_cpu = record(same, make_cpu_device(2), catalog);
  INFO(on_card.text());
  CHECK(on_card.nodes.size() <= most);
  if (on_card.nodes.size() < most) WARN("a step is " << on_card.nodes.size() << " nodes; " << most << " are allowed");
  CHECK(on_card.step == 3);
  for (size_t i = 0; i < on_cpu.losses.size(); ++i)
    CHECK(on_card.losses[i] == Approx(on_cpu.losses[i]).epsilon(1e-5).margin(1e-5));
}

}  // namespace

TEST_CASE("a training step of an MLP is a few launches") { check_nodes(mlp, 5); }

TEST_CASE("a training step of LeNet is a few launches") { check_nodes(lenet, 15); }

TEST_CASE("a run of few values is one start: its copies and its end stand beside its layers") {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  Network net(*catalog);
  const ValueId x = net.graph.feed("x", {DType::Float32, {1, 784}});
  net.graph.tap(net.dense(net.op("relu", {net.dense(x, 512)}), 10), 1);
  const std::shared_ptr<Device> card = cuda::make_simulated_device();
  Session session(catalog, card);
  const std::shared_ptr<Plan> plan = session.compile(net.graph, "predict");
  for (int i = 0; i < 3; ++i) run(session, plan, {random_values({DType::Float32, {1, 784}}, 100)});
  const std::vector<std::string> nodes = cuda::simulated_runtime(*card).latest_recording();
  REQUIRE(nodes.size() == plan->steps.size() + 2);
  CHECK(nodes.size() <= 4);
  CHECK(nodes.front().find("CopySmall") != std::string::npos);
  CHECK(nodes.back().find("EndRun") != std::string::npos);
}

TEST_CASE("logits that somebody watches are stored, and all of the loss is one step all the same") {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  Network net(*catalog);
  mlp(net);
  net.graph.tap(net.logits, 2);
  const Recorded step = record(net, cuda::make_simulated_device(), catalog);
  INFO(step.text());
  const auto count = [&](const std::string& op) {
    return std::count_if(step.plan.begin(), step.plan.end(),
                         [&](const std::string& label) { return label.rfind(op + " ", 0) == 0; });
  };
  CHECK(count("dense_softmax_cross_entropy") == 1);
  CHECK(count("dense") == 1);
}

TEST_CASE("a label outside the classes leaves all variables alone, and is the CPU's error") {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  const std::shared_ptr<Device> devices[] = {make_cpu_device(2), cuda::make_simulated_device()};
  std::string messages[2];
  for (const int at : {0, 1}) {
    Network net(*catalog);
    mlp(net);
    Session session(catalog, devices[at]);
    const std::shared_ptr<Plan> plan = session.compile(net.graph, "train");
    std::vector<Tensor> before;
    for (size_t i = 0; i < net.weights.size(); ++i) {
      before.push_back(random_values(net.graph.type(net.weights[i]), 1 + i, -0.1, 0.1));
      session.write(text("weight", i), before.back());
    }
    session.write("step", Tensor::of<int64_t>({}, {7}));
    std::vector<Tensor> feeds{random_values({DType::Float32, {kBatch, 1, 28, 28}}, 100),
                              Tensor::zeros({DType::Int32, {kBatch}})};
    feeds[1].data<int32_t>()[57] = 10;
    for (int run_number = 0; run_number < 3; ++run_number) {
      try {
        run(session, plan, feeds);
        FAIL_CHECK("no error");
      } catch (const Error& error) {
        messages[at] = error.what();
      }
    }
    for (size_t i = 0; i < net.weights.size(); ++i) {
      const Tensor after = session.read(text("weight", i));
      CHECK(std::equal(after.data<float>(), after.data<float>() + after.count(), before[i].data<float>()));
    }
    CHECK(*session.read("step").data<int64_t>() == 7);
  }
  CHECK(messages[0].find("row 57: label 10 is outside [0, 10)") != std::string::npos);
  CHECK(messages[1] == messages[0]);
}
