// Kernels that know no narrow dtype, on the simulated device.
#include <catch2/catch.hpp>

#include "kernels/catalog.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/kernels.h"
#include "kernels/simulated/device.h"

using namespace moonflow;

namespace {

// variable *= 3; out = variable + 1, and a fault that is explained.
struct Triple {
  float *variable, *out;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    variable[i] *= 3;
    out[i] = variable[i] + 1;
  }
};

cuda::Kernels triple(int64_t count, int& step) {
  const auto prepare = [count, &step](KernelCall& call) -> Launch {
    CHECK(call.inputs[0].dtype == DType::Float32);
    CHECK(call.outputs[0].dtype == DType::Float32);
    call.explain = [](int64_t, int64_t) { fail(ErrorCode::OutOfRange, "explained"); };
    return [count, &step](const LaunchCall& at) {
      step = at.step;
      cuda::for_each(at.stream, count, Triple{static_cast<float*>(at.inputs[0]), at.output<float>(0)});
    };
  };
  return {{"triple", {{prepare}}}};
}

// One narrow dtype among them: the variable and the result are A, what is left alone is B.
template <class A, class B>
void check_widened() {
  constexpr int64_t kCount = 1001;
  int step = 0;
  const cuda::KernelTable table(triple(kCount, step));
  OpDef op;
  op.name = "triple";
  op.inputs = {{"variable"}, {"untouched"}};
  op.writes = {0};
  const std::shared_ptr<Device> card = cuda::make_simulated_device();
  const TensorType narrow{DTypeOf<A>::value, {kCount}}, other{DTypeOf<B>::value, {kCount}};
  const Attrs attrs;
  KernelCall call{*card, attrs, {narrow, other}, {true, true}, {narrow}, {{}, {}}, {{}}};
  const Launch launch = table.of(op).prepare(call);
  CHECK(call.scratch_bytes >= 3 * kCount * 4);
  REQUIRE(call.explain);
  CHECK_THROWS_AS(call.explain(0, 0), Error);

  const auto stream = card->make_stream();
  const Buffer variable(*card, narrow.bytes()), untouched(*card, narrow.bytes()), out(*card, narrow.bytes()),
      scratch(*card, call.scratch_bytes);
  std::vector<A> before(kCount), after(kCount), result(kCount);
  for (int64_t i = 0; i < kCount; ++i) before[i] = A(static_cast<float>(i) / 8);
  card->copy(*stream, variable.data(), before.data(), narrow.bytes());
  void* inputs[] = {variable.data(), untouched.data()};
  void* outputs[] = {out.data()};
  launch(LaunchCall{*stream, inputs, outputs, scratch.data(), 9});
  card->copy(*stream, after.data(), variable.data(), narrow.bytes());
  card->copy(*stream, result.data(), out.data(), narrow.bytes());
  stream->wait();
  CHECK(step == 9);
  for (int64_t i = 0; i < kCount; ++i) {
    REQUIRE(after[i] == A(before[i] * 3));
    REQUIRE(result[i] == A(before[i] * 3 + 1));
  }
}

}  // namespace

TEST_CASE("a kernel without narrow dtypes is given float32, and what it writes is rounded") {
  check_widened<BFloat16, BFloat16>();
  check_widened<Float16, Float16>();
  check_widened<Float16, BFloat16>();
}

TEST_CASE("a device has no kernel for an op that it does not know") {
  const cuda::KernelTable table({});
  OpDef op;
  op.name = "unknown";
  CHECK_FALSE(table.of(op));
}

TEST_CASE("a card computes in the narrow dtypes that its multiprocessors have units for") {
  const auto catalog = all_ops();
  for (const auto& [capability, float16, bfloat16] :
       {std::tuple{75, true, false}, std::tuple{80, true, true}, std::tuple{90, true, true}}) {
    cuda::simulated::Options options;
    options.capability = capability;
    const auto card = cuda::make_simulated_device(options);
    INFO(capability);
    const TensorType type{DType::Float32, {8, 8}};
    const std::vector<const TensorType*> types{&type, &type};
    const Attrs attrs;
    const OpCall call{types, attrs};
    CHECK(card->computes_in(DType::Float16, catalog->at("matmul"), call) == float16);
    CHECK(card->computes_in(DType::BFloat16, catalog->at("matmul"), call) == bfloat16);
    CHECK_FALSE(card->computes_in(DType::Float16, catalog->at("softmax"), call));
  }
}
