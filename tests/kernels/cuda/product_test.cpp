// Products at the sizes where each way of computing them begins and ends: one warp for each element, tiles of 32 and of
// 64 with edges, and the library, for which the simulated device has loops.
#include "beside.h"
#include "kernels/types.h"

using namespace moonflow;
using moonflow::testing::Beside;

namespace {

struct Case {
  int64_t batch, rows, columns, inner;
};
const std::vector<Case> kCases = {
    {1, 1, 1, 1},    {1, 1, 7, 300},     {1, 4, 9, 65},    {1, 10, 130, 20}, {3, 5, 7, 40}, {2, 33, 65, 17},
    {1, 64, 64, 16}, {1, 130, 120, 140}, {2, 90, 80, 300}, {1, 0, 3, 2},     {1, 3, 5, 0},
};
// Of so many elements that tiles are large, and with edges on both sides.
const Case kLarge{1, 725, 747, 3};

std::vector<TensorType> factors(const Case& c, bool ta, bool tb, DType a = DType::Float32, DType b = DType::Float32) {
  Shape left = ta ? Shape{c.inner, c.rows} : Shape{c.rows, c.inner};
  Shape right = tb ? Shape{c.columns, c.inner} : Shape{c.inner, c.columns};
  if (c.batch > 1) left.insert(0, c.batch), right.insert(0, c.batch);
  return {{a, left}, {b, right}};
}

// Sums of `inner` terms, each rounded at 6e-8, in another order than the CPU's.
double tolerance(const Case& c) { return 2e-7 * (8 + static_cast<double>(c.inner) / 8); }

}  // namespace

TEST_CASE("a product on the card is that of the CPU, whatever its sizes") {
  Beside beside;
  for (const Case& c : kCases) {
    for (const int way : {0, 1, 2, 3}) {
      const bool ta = way % 2 != 0, tb = way / 2 != 0;
      const Attrs attrs{{"transpose_a", ta}, {"transpose_b", tb}};
      beside.check("matmul", factors(c, ta, tb), attrs, tolerance(c));
      beside.check("matmul", factors(c, ta, tb, DType::Float64, DType::Float64), attrs);
    }
  }
}

TEST_CASE("a product of mixed precision on the card sums in float32") {
  Beside beside;
  for (const DType narrow : {DType::BFloat16, DType::Float16}) {
    const DType kinds[] = {DType::Float32, narrow};
    int trial = 0;
    for (const Case& c : kCases) {
      for (const int way : {0, 1, 2, 3}) {
        const DType a = kinds[trial % 2], b = kinds[trial / 2 % 2], out = kinds[trial / 4 % 2];
        ++trial;
        const bool ta = way % 2 != 0, tb = way / 2 != 0;
        const Attrs attrs{
            {"transpose_a", ta}, {"transpose_b", tb}, {"mixed", std::string(name(out))}, {"rounds_to", narrow}};
        beside.check("matmul", factors(c, ta, tb, a, b), attrs, tolerance(c));
      }
      beside.check("matmul", factors(c, false, true, narrow, narrow), {{"transpose_b", true}});
    }
  }
}

TEST_CASE("a dense layer on the card adds its bias and cuts off what is negative") {
  Beside beside;
  for (const Case& c : kCases) {
    if (c.batch > 1) continue;
    for (const char* activation : {"none", "relu"}) {
      std::vector<TensorType> types = factors(c, false, true);
      const Attrs attrs{{"activation", std::string(activation)}};
      beside.check("dense", types, attrs, tolerance(c));
      types.push_back(f32({c.columns}));
      beside.check("dense", types, attrs, tolerance(c));
      for (const DType narrow : {DType::BFloat16, DType::Float16}) {
        for (const DType out : {DType::Float32, narrow}) {
          Attrs mixed = attrs;
          mixed.set("mixed", std::string(name(out)));
          mixed.set("rounds_to", narrow);
          types[1].dtype = out;  // either dtype of the weight in its turn
          beside.check("dense", types, mixed, tolerance(c));
        }
      }
    }
  }
}

TEST_CASE("a sum that is NaN stays so through the relu of a dense layer on the card") {
  Beside beside;
  for (const Case& c : {Case{1, 4, 9, 65}, Case{1, 10, 130, 20}, Case{1, 160, 300, 150}}) {  // dots, tiles, library
    const Tensor x = oracle::drawn({DType::Float32, {c.rows, c.inner}}, 1);
    x.data<float>()[c.inner + 3] = NAN;
    beside.check(beside.trial(
        "dense",
        {x, oracle::drawn({DType::Float32, {c.columns, c.inner}}, 2), oracle::drawn({DType::Float32, {c.columns}}, 3)},
        {{"activation", std::string("relu")}}));
  }
}

TEST_CASE("a product of what is narrow is never asked for in TF32") {
  const oracle::BesideCpu beside;
  const Case c{1, 160, 300, 150};  // the library's
  const oracle::Trial trial = beside.trial("matmul",
                                           {oracle::drawn({DType::Float32, {c.rows, c.inner}}, 1),
                                            oracle::drawn({DType::BFloat16, {c.inner, c.columns}}, 2)},
                                           {{"mixed", std::string("float32")}, {"rounds_to", DType::BFloat16}});
  const oracle::Launched strict = oracle::launch(trial, *beside.card),
                         rounded = oracle::launch(trial, *beside.card, nullptr, {{}, {}, true});
  CHECK(oracle::same(rounded.outputs[0], strict.outputs[0]));
}

TEST_CASE("a variable on the card goes down along a product") {
  Beside beside;
  for (const Case& c : kCases) {
    if (c.batch > 1) continue;
    for (const int way : {0, 1, 2, 3}) {
      const bool ta = way % 2 != 0, tb = way / 2 != 0;
      const auto types = [&](DType dtype, DType factor) {
        std::vector<TensorType> result = factors(c, ta, tb, factor, factor);
        result.insert(result.begin(), {dtype, {c.rows, c.columns}});
        result.push_back(f32({}));
        return result;
      };
      Attrs attrs{{"transpose_a", ta}, {"gradient_scale", 0.3}};
      if (!tb) {
        beside.check("matmul_sgd_update", types(DType::Float32, DType::Float32), attrs, tolerance(c));
        beside.check("matmul_sgd_update", types(DType::Float64, DType::Float64), attrs);
      }
      attrs.set("transpose_b", tb);
      const DType factor = way < 2 ? DType::BFloat16 : DType::Float32;
      beside.check("matmul_bfloat16_sgd_update", types(DType::Float32, factor), attrs, tolerance(c));
    }
  }
}

TEST_CASE("a product with many elements goes in larger tiles") {
  Beside beside;
  beside.check("matmul", factors(kLarge, true, false), {{"transpose_a", true}});
  std::vector<TensorType> types = factors(kLarge, false, false, DType::BFloat16, DType::BFloat16);
  types.insert(types.begin(), f32({kLarge.rows, kLarge.columns}));
  types.push_back(f32({}));
  beside.check("matmul_bfloat16_sgd_update", types);
}

TEST_CASE("after a fault no product changes a variable") {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  const std::unique_ptr<Device> card = cuda::make_given_card();
  card->enter();
  const std::unique_ptr<Stream> stream = card->make_stream();
  const struct {
    const char* op;
    Case sizes;
  } trials[] = {{"matmul_sgd_update", {1, 5, 7, 3}},       // tiles
                {"matmul_sgd_update", {1, 3, 5, 80}},      // dots
                {"matmul_sgd_update", {1, 80, 90, 400}}};  // the library
  for (const auto& [name, c] : trials) {
    CAPTURE(c.inner);
    const OpDef& op = catalog->at(name);
    std::vector<TensorType> types = factors(c, false, false);
    types.insert(types.begin(), f32({c.rows, c.columns}));
    types.push_back(f32({}));
    const Attrs attrs = complete(op, {});
    KernelCall call{*card, attrs, types, std::vector<bool>(types.size(), true), {}, std::vector<Layout>(types.size()),
                    {}};
    const Launch launch = card->kernel(op).prepare(call);
    std::vector<Buffer> buffers;
    std::vector<void*> inputs;
    for (const TensorType& type : types) {
      const std::vector<float> ones(type.count(), 1.0f);
      inputs.push_back(buffers.emplace_back(*card, type.bytes()).data());
      card->copy(*stream, inputs.back(), ones.data(), type.bytes());
    }
    const Buffer scratch(*card, call.scratch_bytes + kAlignment);
    auto* const taken = static_cast<Fault*>(card->allocate_staging(sizeof(Fault)));
    const auto variable_after = [&](bool fault) {
      if (fault) cuda::find_fault(*card, *stream);
      if (!fault) stream->take_fault(taken);
      stream->touches({}, {});
      launch(LaunchCall{*stream, inputs.data(), nullptr, scratch.data()});
      std::vector<float> after(c.rows * c.columns);
      card->copy(*stream, after.data(), inputs[0], types[0].bytes());
      stream->wait();
      return after;
    };
    CHECK(variable_after(true) == std::vector<float>(c.rows * c.columns, 1.0f));
    CHECK(variable_after(false) == std::vector<float>(c.rows * c.columns, 1.0f - static_cast<float>(c.inner)));
    card->free_staging(taken);
  }
}
