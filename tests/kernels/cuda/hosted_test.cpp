// Ops that are the host's work on the given card: what they give, and what becomes of a run that they fail in.
#include <catch2/catch.hpp>

#include "given_card.h"
#include "network.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

constexpr int64_t kCount = 1000;

// Doubles x, and adds `more` where it is given, by way of scratch; throws where it finds a negative value. All memory
// has to be aligned as kernels of the host may rely on.
OpDef doubled() {
  OpDef op;
  op.name = "doubled_by_host";
  op.inputs = {{"x"}, {"more", InputDef::Optional}};
  op.infer = [](const OpCall& call) { return std::vector<TensorType>{call.type(0)}; };
  op.on_host = true;
  op.cpu = {[](KernelCall& call) -> Launch {
    call.scratch_bytes = call.inputs[0].bytes();
    return [count = call.inputs[0].count()](const LaunchCall& launch) {
      float* const scratch = static_cast<float*>(launch.scratch);
      const float* const more = launch.input<float>(1);
      for (const void* memory : {launch.inputs[0], launch.outputs[0], launch.scratch})
        require(reinterpret_cast<uintptr_t>(memory) % kAlignment == 0, ErrorCode::Internal, "memory is not aligned");
      for (int64_t i = 0; i < count; ++i) {
        const float x = launch.input<float>(0)[i];
        require(x >= 0, ErrorCode::WrongState, "the host has found ", x);
        scratch[i] = 2 * x + (more ? more[i] : 0);
      }
      std::copy_n(scratch, count, launch.output<float>(0));
    };
  }};
  return op;
}

// sum += 2 (2 x + 1); gives 2 (2 x + 1).
struct Net {
  Net() {
    Catalog ops = *all_ops();
    ops.add(doubled());
    catalog = std::make_shared<Catalog>(std::move(ops));
    session = std::make_unique<Session>(catalog, cuda::make_given_card());
    Layers net(*catalog);
    const TensorType type{DType::Float32, {kCount}};
    ValueId y = net.op("doubled_by_host", {net.graph.feed("x", type)});
    y = net.op("doubled_by_host", {net.op("add", {y, net.graph.constant(Tensor::of<float>({}, {1}), "one")})});
    net.graph.append("assign_add", {net.weight({kCount}), y}, {}, "total");
    net.graph.tap(y, 1);
    plan = session->compile(net.graph, "net");
    session->write("weight0", Tensor::zeros(type));
  }

  std::shared_ptr<Catalog> catalog;
  std::unique_ptr<Session> session;
  std::shared_ptr<Plan> plan;
};

Tensor filled(float value) {
  const Tensor x = Tensor::allocate({DType::Float32, {kCount}});
  std::fill_n(x.data<float>(), kCount, value);
  return x;
}

}  // namespace

TEST_CASE("what the host computes has its place among the work of the card, in each run of a plan") {
  Net net;
  float sum = 0;
  for (int i = 0; i < 6; ++i) {  // the later ones start what was recorded
    const Tensor y = run(*net.session, net.plan, {filled(static_cast<float>(i))})[0];
    const float wanted = static_cast<float>(4 * i + 2);
    CHECK(std::count(y.data<float>(), y.data<float>() + kCount, wanted) == kCount);
    sum += wanted;
  }
  const Tensor all = net.session->read("weight0");
  CHECK(std::count(all.data<float>(), all.data<float>() + kCount, sum) == kCount);
}

TEST_CASE("where the host's work fails the run does, with what it has thrown, and variables are left alone") {
  Net net;
  for (int i = 0; i < 5; ++i) {
    const auto bad = static_cast<float>(-1 - i);
    try {
      run(*net.session, net.plan, {filled(bad)});
      FAIL_CHECK("no error");
    } catch (const Error& error) {
      CHECK(error.code == ErrorCode::WrongState);
      CHECK(error.op == "doubled_by_host 'doubled_by_host1'");
      CHECK(std::string(error.what()) == text("the host has found ", bad));
    }
    run(*net.session, net.plan, {filled(1)});
  }
  const Tensor all = net.session->read("weight0");
  CHECK(std::count(all.data<float>(), all.data<float>() + kCount, 5 * 6.0f) == kCount);
}
