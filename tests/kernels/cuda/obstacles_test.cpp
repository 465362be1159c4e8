// What stands in the way of a kernel, and chains of element-wise ops where nothing can be compiled.
#include "kernels/cuda/obstacles.h"

#include <catch2/catch.hpp>
#include <cstdlib>

#include "kernels/simulated/device.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

TEST_CASE("an obstacle is asked for once, when somebody wants the kernel, and is told from then on") {
  int asked = 0;
  const auto answer = [&](const char* why) { return [&asked, why] { return ++asked, why; }; };
  cuda::Obstacles obstacles({{"free", answer("")}, {"blocked", answer("needs a thing")}});
  CHECK(obstacles.met().empty());
  CHECK_FALSE(obstacles.blocks("another"));
  CHECK(asked == 0);
  for (int i = 0; i < 2; ++i) {
    CHECK_FALSE(obstacles.blocks("free"));
    CHECK(obstacles.blocks("blocked"));
  }
  CHECK(asked == 2);
  CHECK(obstacles.met() == "; without blocked: needs a thing");
}

TEST_CASE("where chains cannot be compiled a graph keeps its ops, and is told why by the device") {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  const TensorType type{DType::Float32, {3, 70}};
  std::vector<float> results[2];
  for (const bool compiles : {true, false}) {
    if (!compiles) setenv("MOONFLOW_SIMULATED_COMPILER", "0", 1);
    const std::shared_ptr<Device> card = cuda::make_simulated_device();
    unsetenv("MOONFLOW_SIMULATED_COMPILER");
    Session session(catalog, card);
    Graph graph(*catalog);
    const ValueId x = graph.feed("x", type);
    const ValueId product = graph.append("multiply", {x, graph.append("tanh", {x})[0]})[0];
    graph.tap(graph.append("exp", {product})[0], 1);
    const std::string before = card->describe();
    const std::shared_ptr<Plan> plan = session.compile(graph, "net");
    CHECK(labels(*plan).size() == (compiles ? 1 : 3));
    CHECK((labels(*plan)[0].rfind("element_chain", 0) == 0) == compiles);
    CHECK(before.find("without") == std::string::npos);
    CHECK((card->describe().find("; without element_chain: needs libnvrtc.so.13") != std::string::npos) == !compiles);
    for (int i = 0; i < 3; ++i) {  // launched, recorded, and started
      const Tensor y = run(session, plan, {random_values(type, 1)})[0];
      results[compiles].assign(y.data<float>(), y.data<float>() + y.count());
    }
  }
  CHECK(results[0] == results[1]);
}
