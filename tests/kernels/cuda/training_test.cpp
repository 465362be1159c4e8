// Networks that train on the simulated device, several runs in flight, in many schedules: the losses are those of the
// CPU, and no schedule changes a bit of them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>

#include <catch2/catch.hpp>

#include "kernels/cuda.h"
#include "kernels/simulated/device.h"
#include "network.h"

using namespace moonflow;
using namespace moonflow::testing;
using Catch::Contains;

namespace {

constexpr int64_t kBatch = 6;
constexpr int kRuns = 12;

struct Network : Layers {
  float rate = 0.02f;  // of the first run

  using Layers::Layers;
  // Taps the losses of these logits, and trains by it.
  void train(ValueId logits, bool with_momentum, bool taps_logits = true) {
    const ValueId labels = graph.feed("labels", {DType::Int32, {kBatch}});
    const ValueId losses = graph.append("sparse_softmax_cross_entropy_with_logits", {labels, logits}, {}, "loss")[1];
    graph.tap(losses, 1);
    if (taps_logits) graph.tap(logits, 2);
    const ValueId rate = graph.feed("rate", {DType::Float32, {}});
    const ValueId ones = graph.constant(Tensor::of<float>({kBatch}, {1, 1, 1, 1, 1, 1}), "ones");
    const std::vector<ValueId> grads = gradients(graph, {losses}, {ones}, weights);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!with_momentum) {
        graph.append("sgd_update", {weights[i], grads[i], rate}, {}, "update");
        continue;
      }
      const ValueId slot = graph.variable(text("momentum", i), graph.type(weights[i]));
      graph.append("momentum_update", {weights[i], slot, grads[i], rate}, {{"beta", 0.9}}, "update");
    }
  }
};

void mlp(Network& net) {
  const ValueId x = net.graph.feed("x", {DType::Float32, {kBatch, 20}});
  net.train(net.dense(net.op("relu", {net.dense(x, 33)}), 5), true);
}

// By plain descent, with the loss alone to be seen: all that can be one step is.
void bare_mlp(Network& net) {
  const ValueId x = net.graph.feed("x", {DType::Float32, {kBatch, 20}});
  const ValueId hidden = net.op("relu", {net.dense(net.op("relu", {net.dense(x, 33)}), 40)});
  net.train(net.dense(hidden, 5), false, false);
}

void lenet(Network& net) {
  ValueId x = net.graph.feed("x", {DType::Float32, {kBatch, 1, 12, 12}});
  for (const int64_t filters : {3, 5})
    x = net.op("max_pool2d", {net.op("relu", {net.conv(x, filters, 3)})}, {{"ksize", Ints{2}}});
  x = net.op("reshape", {x}, {{"shape", Ints{kBatch, 5 * 3 * 3}}});
  net.train(net.dense(net.op("relu", {net.dense(x, 16)}), 5), false);
}

// Blocks as ResNet-50 has them, in mixed precision; the stem has few channels. Watches a convolution and a block.
template <DType narrow>
void residual(Network& net) {
  net.graph.mixed_precision = narrow;
  net.rate = 0.0003f;
  const std::string same = "SAME";
  const auto conv = [&](ValueId x, int64_t filters, int64_t size, int64_t stride = 1) {
    const ValueId filter = net.weight({filters, net.graph.type(x).shape[1], size, size});
    return net.op("conv2d", {x, filter}, {{"padding", same}, {"strides", Ints{stride}}});
  };
  const auto norm = [&](ValueId x) {
    const int64_t channels = net.graph.type(x).shape[1];
    const ValueId scale = net.op("add", {net.weight({channels}), net.graph.constant(Tensor::of<float>({}, {1}), "one")});
    return net.op("batch_norm_train", {x, scale, net.weight({channels})});
  };
  const auto relu = [&](ValueId x) { return net.op("relu", {x}); };
  const auto block = [&](ValueId x, int64_t width, int64_t stride) {
    ValueId y = relu(norm(conv(x, width, 1)));
    y = relu(norm(conv(y, width, 3, stride)));
    y = norm(conv(y, 2 * width, 1));
    if (net.graph.type(y) != net.graph.type(x)) x = norm(conv(x, 2 * width, 1, stride));
    return relu(net.op("add", {y, x}));
  };
  const ValueId images = net.graph.feed("x", {DType::Float32, {kBatch, 3, 20, 18}});
  const ValueId stem = conv(images, 8, 7, 2);
  const ValueId pooled =
      net.op("max_pool2d", {relu(norm(stem))}, {{"ksize", Ints{3}}, {"strides", Ints{2}}, {"padding", same}});
  const ValueId first = block(block(pooled, 8, 1), 8, 1), last = block(first, 16, 2);
  net.train(net.dense(net.op("reduce_mean", {last}, {{"axis", Ints{2, 3}}}), 5), true);
  net.graph.tap(stem, 3);
  net.graph.tap(first, 4);
}

Tensor labels(int run) {
  Tensor values = Tensor::allocate({DType::Int32, {kBatch}});
  for (int64_t i = 0; i < kBatch; ++i) values.data<int32_t>()[i] = static_cast<int32_t>((i * 3 + run) % 5);
  return values;
}

using Change = std::function<void(Plan&)>;

// Trains for kRuns with as many runs in flight as there may be. Gives all taps in the order they came, then the weights.
std::vector<Tensor> train(const std::shared_ptr<Device>& device, void (*build)(Network&), const Change& change = {}) {
  const auto catalog = all_ops();
  Session session(catalog, device);
  Network net(*catalog);
  build(net);
  const std::shared_ptr<Plan> plan = session.compile(net.graph, "train");
  if (change) change(*plan);
  for (size_t i = 0; i < net.weights.size(); ++i)
    session.write(text("weight", i), random_values(net.graph.type(net.weights[i]), 1 + i, -0.3, 0.3));
  if (session.variables().find("momentum0"))
    for (size_t i = 0; i < net.weights.size(); ++i)
      session.write(text("momentum", i), Tensor::zeros(net.graph.type(net.weights[i])));
  std::vector<Tensor> taps;
  const auto pull = [&](bool waits) {
    if (waits) session.completions().wait(-1);
    std::optional<Completion> completion = session.pull();
    if (!completion) return false;
    if (completion->error) throw Error(completion->error->code, completion->error->describe());
    if (!completion->end) taps.push_back(completion->tensor);
    return true;
  };
  for (int run = 0; run < kRuns; ++run) {
    Executor::Submission submission;
    for (const NodeId feed : net.graph.feeds()) {
      const Node& node = net.graph.node(feed);
      const TensorType& type = net.graph.type(node.outputs[0]);
      submission.feeds.push_back(node.name == "labels" ? labels(run)
                                 : node.name == "rate" ? Tensor::of<float>({}, {net.rate / (1 + run)})
                                                       : random_values(type, 100 + run));
    }
    while (session.submit(plan, submission) == 0) pull(true);
  }
  while (taps.size() < plan->taps.size() * kRuns) pull(true);
  for (size_t i = 0; i < net.weights.size(); ++i) taps.push_back(session.read(text("weight", i)).copy());
  return taps;
}

// The networks here are small, and mixed precision is to be narrow in them all the same.
[[maybe_unused]] const int small_is_narrow = setenv("MOONFLOW_CUDA_SMALL_IN_TF32", "0", 1);

std::shared_ptr<Device> card_of_one_branch(uint64_t seed) {
  setenv("MOONFLOW_CUDA_BRANCHES", "0", 1);
  const std::shared_ptr<Device> card = cuda::make_simulated_device({seed});
  unsetenv("MOONFLOW_CUDA_BRANCHES");
  return card;
}

size_t tap_count(void (*build)(Network&)) {
  const auto catalog = all_ops();
  Network net(*catalog);
  build(net);
  return net.graph.taps().size();
}

void check_in_all_schedules(void (*build)(Network&), int branches = 2) {
  const std::vector<Tensor> expected = train(make_cpu_device(2), build);
  const size_t taps = tap_count(build);
  CHECK(distance(expected[0], expected[taps * (kRuns - 1)]) > 0.01);  // it learns something
  const std::vector<Tensor> first =
      train(card_of_one_branch(1), build, [](Plan& plan) { CHECK(plan.branch_count == 1); });
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    const std::vector<Tensor> got = train(cuda::make_simulated_device({seed}), build, [&](Plan& plan) {
      INFO(plan.dump());
      CHECK(plan.branch_count == branches);
    });
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      CHECK(distance(got[i], expected[i]) < 1e-5);
      CHECK(std::memcmp(got[i].data(), first[i].data(), got[i].bytes()) == 0);
    }
  }
}

}  // namespace

// By the number of its waits: those of steps, then those of the end.
std::vector<int>& list_of_wait(Plan& plan, int& wait) {
  for (Step& step : plan.steps) {
    if (wait < static_cast<int>(step.waits_for.size())) return step.waits_for;
    wait -= static_cast<int>(step.waits_for.size());
  }
  return plan.joins;
}

TEST_CASE("each wait between branches is needed, and is missed in every schedule") {
  for (const auto build : {mlp, lenet}) {
    int waits = 0;
    train(cuda::make_simulated_device({1}), build, [&](Plan& plan) {
      for (const Step& step : plan.steps) waits += static_cast<int>(step.waits_for.size());
      waits += static_cast<int>(plan.joins.size());
    });
    CHECK(waits >= 2);
    for (int wait = 0; wait < waits; ++wait) {
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        CAPTURE(wait, seed);
        const auto without = [&](Plan& plan) {
          int at = wait;
          std::vector<int>& list = list_of_wait(plan, at);
          list.erase(list.begin() + at);
        };
        CHECK_THROWS_WITH(train(cuda::make_simulated_device({seed}), build, without),
                          Contains("not ordered") || Contains("nothing waits for"));
      }
    }
  }
}

TEST_CASE("what fails in any branch is told to whoever waits for the run") {
  for (int64_t pieces = 120; pieces < 160; pieces += 3) {
    const std::shared_ptr<Device> card = cuda::make_simulated_device({static_cast<uint64_t>(pieces)});
    const auto fail_later = [&](Plan&) {
      cuda::simulated_runtime(*card).fail_after(pieces, "an illegal memory access was encountered");
    };
    CHECK_THROWS_WITH(train(card, lenet, fail_later), Contains("illegal memory access"));
  }
}

TEST_CASE("a dense network trains on the card as on the CPU, in every schedule") { check_in_all_schedules(mlp); }

TEST_CASE("a dense network whose step is a few launches trains on the card as on the CPU, in every schedule") {
  check_in_all_schedules(bare_mlp, 1);
}

TEST_CASE("a convolutional network trains on the card as on the CPU, in every schedule") {
  check_in_all_schedules(lenet);
}

TEST_CASE("a residual network in mixed precision has its channels last between convolutions") {
  const DType narrow = GENERATE(DType::BFloat16, DType::Float16);
  const auto build = narrow == DType::Float16 ? residual<DType::Float16> : residual<DType::BFloat16>;
  std::shared_ptr<Plan> plan;
  const auto keep = [&](Plan& made) { plan = made.shared_from_this(); };
  const std::vector<Tensor> expected = train(make_cpu_device(2), build),
                            got = train(cuda::make_simulated_device(), build, keep);
  int turned = 0, convolutions = 0;
  for (const Step& step : plan->steps) {
    const auto is_image = [](const TensorType& type) { return type.shape.rank() == 4 && type.shape[0] == kBatch; };
    if (step.input_types.empty() || !is_image(step.input_types[0])) continue;
    // As they come in, two watched values on their way out, and what spreads the gradient of the mean.
    const bool at_border = step.label == "reorder of 'x'" || step.label == "reorder of 'conv2d2'" ||
                           step.label == "reorder of 'relu66'" || step.label.find("broadcast_to") != std::string::npos;
    turned += step.label.find("reorder") == 0 && !at_border;
    if (step.label.find("conv2d") != 0) continue;
    ++convolutions;
    CHECK(step.input_types[0].dtype == narrow);
    CHECK_FALSE(step.input_layouts[0].row_major());
  }
  CHECK(convolutions == 3 * 12 - 1);  // nobody wants the gradient of the images
  INFO(plan->dump());
  CHECK(turned == 0);

  // Losses, logits and the watched values, which come in rows. bfloat16 has 8 bits, and there are 12 convolutions in a row;
  // its gradients differ more, as a relu on the other side of zero does, so the rate is low.
  REQUIRE(got.size() == expected.size());
  double furthest[4] = {};
  for (size_t i = 0; i < 4 * kRuns; ++i) furthest[i % 4] = std::max(furthest[i % 4], distance(got[i], expected[i]));
  CHECK(furthest[0] < 0.03);
  CHECK(furthest[1] < 0.06);
  CHECK(furthest[2] < 0.01);
  CHECK(furthest[3] < 0.06);
  CHECK(distance(expected[0], expected[4 * kRuns - 4]) > 0.1);
}

TEST_CASE("mixed precision of a step that computes little is TF32 on the card") {
  const auto catalog = all_ops();
  Network net(*catalog);
  residual<DType::BFloat16>(net);
  unsetenv("MOONFLOW_CUDA_SMALL_IN_TF32");
  const std::shared_ptr<Device> card = cuda::make_simulated_device();
  setenv("MOONFLOW_CUDA_SMALL_IN_TF32", "0", 1);
  Session session(catalog, card);
  const std::shared_ptr<Plan> plan = session.compile(net.graph, "train");
  for (const Step& step : plan->steps)
    for (const TensorType& type : step.output_types) CHECK_FALSE(is_narrow(type.dtype));
}

TEST_CASE("a network that predicts on the card has its batch norms in its filters") {
  const auto catalog = all_ops();
  for (const bool mixed : {false, true}) {
    CAPTURE(mixed);
    Network net(*catalog);
    if (mixed) net.graph.mixed_precision = DType::BFloat16;
    ValueId x = net.graph.feed("x", {DType::Float32, {2, 3, 10, 8}});
    for (const int64_t filters : {16, 24}) {
      x = net.op("conv2d", {x, net.weight({filters, net.graph.type(x).shape[1], 3, 3})});
      std::vector<ValueId> inputs{x};
      for (int i = 0; i < 4; ++i) inputs.push_back(net.weight({filters}));
      x = net.op("relu", {net.op("batch_norm_infer", inputs)});
    }
    net.graph.tap(x, 1);

    std::shared_ptr<Plan> plan;
    const auto predict = [&](const std::shared_ptr<Device>& device) {
      Session session(catalog, device);
      plan = session.compile(net.graph, "predict");
      std::vector<Tensor> values;
      for (uint32_t seed : {1, 100}) {  // the second time the filters are already folded
        for (const ValueId weight : net.weights)
          session.write(net.graph.node(net.graph.value(weight).node).name,
                        random_values(net.graph.type(weight), seed++, 0.5, 1));
        for (int repeat = 0; repeat < 2; ++repeat)
          values.push_back(run(session, plan, {random_values({DType::Float32, {2, 3, 10, 8}}, 3)})[0].copy());
      }
      return values;
    };
    const std::vector<Tensor> expected = predict(make_cpu_device(2)), got = predict(cuda::make_simulated_device());
    INFO(plan->dump());
    const auto steps = [&](const std::string& op) {
      return std::count_if(plan->steps.begin(), plan->steps.end(),
                           [&](const Step& step) { return step.label.find(op) == 0; });
    };
    CHECK(steps("fold_batch_norm") == 2);
    CHECK(steps("conv2d_bias") == 2);
    CHECK(steps("batch_norm_infer") == 0);
    // Two roundings to bfloat16 of each factor, in sums of up to 144 terms of one sign.
    for (size_t i = 0; i < got.size(); ++i) CHECK(distance(got[i], expected[i]) < (mixed ? 0.02 : 1e-5));
  }
}

TEST_CASE("the simulated module is opened as the real one, and trains") {
  const char* const named = std::getenv("MOONFLOW_CUDA_MODULE");
  const std::string before = named ? named : "";
  setenv("MOONFLOW_CUDA_MODULE", MOONFLOW_TEST_SIMULATED_MODULE, 1);
  const CudaProbe probe = probe_cuda();
  const std::shared_ptr<Device> card = open_cuda_device(1);
  before.empty() ? unsetenv("MOONFLOW_CUDA_MODULE") : setenv("MOONFLOW_CUDA_MODULE", before.c_str(), 1);
  CHECK(probe.reason == "");
  REQUIRE(probe.cards.size() == 2);
  CHECK(probe.cards[1].name.find("simulated") != std::string::npos);
  CHECK(card->describe().find("simulated") != std::string::npos);
  const std::vector<Tensor> expected = train(make_cpu_device(2), mlp), got = train(card, mlp);
  for (size_t i = 0; i < got.size(); ++i) CHECK(distance(got[i], expected[i]) < 1e-5);
}

TEST_CASE("convolutions with their pooling are few launches of a step on the card") {
  const auto catalog = all_ops();
  const std::shared_ptr<Device> card = cuda::make_simulated_device();
  Session session(catalog, card);
  Network net(*catalog);
  lenet(net);
  const std::shared_ptr<Plan> plan = session.compile(net.graph, "train");
  std::vector<Tensor> feeds;
  for (const NodeId feed : net.graph.feeds()) {
    const TensorType& type = net.graph.type(net.graph.node(feed).outputs[0]);
    feeds.push_back(type.dtype == DType::Int32 ? labels(0) : random_values(type, 1));
  }
  for (int i = 0; i < 3; ++i) run(session, plan, feeds);  // the second is recorded
  const std::vector<std::string> nodes = cuda::simulated_runtime(*card).latest_recording();
  std::string all;
  for (const std::string& node : nodes) all += node + "\n";
  INFO(all);
  const auto count = [&](const std::string& kernel) {
    return std::count_if(nodes.begin(), nodes.end(),
                         [&](const std::string& node) { return node.find(kernel) != std::string::npos; });
  };
  // The first layer, and its filter's gradient with the sum of its parts.
  CHECK(count("ConvolvePool<") == 1);
  CHECK(count("PoolFilterGrad<") == 1);
  CHECK(count("AddFilterParts<") == 1);
  // The second: the library's three, pooling, and its gradient with the bias's.
  CHECK(count("DirectConvolution<") == 3);
  CHECK(count("PoolRows<") == 1);
  CHECK(count("SpreadRows<") == 1);
  for (const char* apart : {"MaxPool", "ChannelSums", "SumPlanes", "AddBiasParts"}) CHECK(count(apart) == 0);
}
