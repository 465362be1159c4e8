#include "engine/evaluator.h"

#include <catch2/catch.hpp>

#include <cmath>

#include "toy.h"

using namespace moonflow;
using namespace moonflow::toy;

namespace {

// out = x * factor + y, where y may be left out. Counts how often it is prepared; a negative x is an error of the run.
struct Counted {
  OpDef op;
  int prepared = 0;
  int64_t scratch_bytes = 0;
  std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>();
  Evaluator evaluator{device};

  Counted() {
    op.name = "counted";
    op.inputs = {{"x"}, {"y", InputDef::Optional}};
    op.attrs = {{"factor", 2.0, "of x"}, {"list", Ints{}, "unused"}};
    op.infer = [](const OpCall& call) { return std::vector<TensorType>{call.type(0)}; };
    op.cpu.prepare = [this](KernelCall& call) -> Launch {
      ++prepared;
      require(call.inputs[0].shape != Shape{13}, ErrorCode::Unsupported, "not thirteen");
      call.scratch_bytes = scratch_bytes;
      return [n = call.outputs[0].count(), &attrs = call.attrs, has_y = call.has(1)](const LaunchCall& launch) {
        const float* x = launch.input<float>(0);
        for (int64_t i = 0; i < n; ++i) {
          require(x[i] >= 0, ErrorCode::OutOfRange, "negative");
          launch.output<float>(0)[i] =
              x[i] * static_cast<float>(attrs.number("factor")) + (has_y ? launch.input<float>(1)[i] : 0);
        }
      };
    };
  }

  std::vector<float> operator()(const std::vector<Tensor>& inputs, const Attrs& attrs = {}) {
    std::vector<Tensor> outputs;
    evaluator.evaluate(op, inputs, attrs, nullptr, outputs);
    return values(outputs.at(0));
  }
};

Tensor vector_of(int64_t size) { return floats(std::vector<float>(static_cast<size_t>(size), 1)); }

}  // namespace

TEST_CASE("an op is prepared once for what it is asked again") {
  Counted counted;
  CHECK(counted({floats({1, 2})}) == std::vector<float>{2, 4});
  CHECK(counted({floats({3, 4})}) == std::vector<float>{6, 8});
  CHECK(counted.prepared == 1);
  CHECK(counted({floats({3})}) == std::vector<float>{6});
  CHECK(counted({floats({3, 4})}, {{"factor", 3.0}}) == std::vector<float>{9, 12});
  CHECK(counted({floats({3, 4}), floats({1, 1})}) == std::vector<float>{7, 9});
  CHECK(counted({floats({3, 4})}, {{"list", Ints{1}}}) == std::vector<float>{6, 8});
  CHECK(counted({floats({3, 4})}, {{"list", Ints{2}}}) == std::vector<float>{6, 8});
  CHECK(counted({floats({3, 4}), Tensor()}) == std::vector<float>{6, 8});
  CHECK(counted.prepared == 7);
  CHECK(counted({floats({3, 4}), floats({1, 2})}) == std::vector<float>{7, 10});
  CHECK(counted({floats({3, 4})}) == std::vector<float>{6, 8});
  CHECK(counted({floats({1, 1})}, {{"factor", 3.0}}) == std::vector<float>{3, 3});
  CHECK(counted.prepared == 7);
}

TEST_CASE("an op is prepared anew for a zero of another sign, and once for a number that is none") {
  Counted counted;
  for (const double factor : {0.0, -0.0, 0.0, -0.0}) counted({vector_of(1)}, {{"factor", factor}});
  CHECK(counted.prepared == 2);
  for (int i = 0; i < 3; ++i) counted({vector_of(1)}, {{"factor", std::nan("")}});
  CHECK(counted.prepared == 3);
}

TEST_CASE("what was asked for last is kept, and no more than a bounded number") {
  Counted counted;
  const auto ask = [&](int64_t size) { CHECK(counted({vector_of(size)}) == std::vector<float>(size, 2)); };
  for (int64_t size = 20; size < 84; ++size) ask(size);
  CHECK(counted.prepared == 64);
  for (int64_t size = 20; size < 84; ++size) ask(size);
  CHECK(counted.prepared == 64);
  ask(20);
  ask(200);  // in the place of 21
  ask(20);
  CHECK(counted.prepared == 65);
  ask(21);
  CHECK(counted.prepared == 66);
}

TEST_CASE("a run that fails leaves what was prepared; what cannot be prepared is asked again") {
  Counted counted;
  CHECK_THROWS_WITH(counted({floats({-1})}), "negative");
  CHECK(counted({floats({1})}) == std::vector<float>{2});
  CHECK(counted.prepared == 1);
  for (int i = 0; i < 2; ++i) CHECK_THROWS_WITH(counted({vector_of(13)}), "not thirteen");
  CHECK(counted.prepared == 3);
  CHECK_THROWS_WITH(counted({floats({1})}, {{"faktor", 2.0}}), Catch::Contains("did you mean 'factor'"));
  CHECK(counted({floats({1})}) == std::vector<float>{2});
}

TEST_CASE("little scratch is kept, much is not") {
  Counted counted;
  counted.scratch_bytes = 1000;
  counted({floats({1})});
  CHECK(counted.device->live_buffers == 1);
  counted.scratch_bytes = 1 << 20;
  counted({floats({1, 2})});
  CHECK(counted({floats({1, 2})}) == std::vector<float>{2, 4});
  CHECK(counted.device->live_buffers == 1);
}
