// Attention beside what it stands for, written with matmul, softmax and transposes; and where examples do not reach:
// sizes of several blocks, causal masks, queries that may look at nothing.
#include <catch2/catch.hpp>
#include <limits>

#include "kernels/cpu/simd.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

// One width is whole registers, so that products write where they belong, and one is not.
constexpr int64_t kBatch = 2, kHeads = 3, kQueries = 140, kKeys = 150, kWidth = 32, kValueWidth = 33;

struct Inputs {
  Tensor query, key, value, mask;
};

Inputs inputs(DType dtype) {
  Tensor mask = Tensor::allocate({DType::Int8, {kBatch, 1, kQueries, kKeys}});
  for (int64_t i = 0; i < mask.count(); ++i) mask.data<int8_t>()[i] = i % 7 != 0 && i % 11 != 3;
  return {random_values({dtype, {kBatch, kQueries, kHeads, kWidth}}, 1),
          random_values({dtype, {kBatch, kKeys, kHeads, kWidth}}, 2),
          random_values({dtype, {kBatch, kKeys, kHeads, kValueWidth}}, 3), mask};
}

// The mask of "a query looks at the keys up to its own place".
Tensor causal_mask() {
  Tensor mask = Tensor::allocate({DType::Int8, {kQueries, kKeys}});
  for (int64_t i = 0; i < kQueries; ++i)
    for (int64_t j = 0; j < kKeys; ++j) mask.data<int8_t>()[i * kKeys + j] = j <= i;
  return mask;
}

// What the op computes, in the same dtype, by other ops.
Tensor composed(Session& session, const Inputs& in, const Tensor& mask, double scale) {
  const auto heads_first = [&](const Tensor& x) {
    return session.evaluate("transpose", {x}, {{"perm", Ints{0, 2, 1, 3}}})[0];
  };
  Tensor scores = session.evaluate("matmul", {heads_first(in.query), heads_first(in.key)}, {{"transpose_b", true}})[0];
  const TensorType scalar{scores.dtype(), {}};
  const auto number = [&](double value) {
    return session.evaluate("constant", {}, {{"value", value}, {"dtype", scalar.dtype}, {"shape", Ints{}}})[0];
  };
  scores = session.evaluate("multiply", {scores, number(scale)})[0];
  if (mask) scores = session.evaluate("where", {mask, scores, number(-1e30)})[0];
  const Tensor weights = session.evaluate("softmax", {scores})[0];
  return heads_first(session.evaluate("matmul", {weights, heads_first(in.value)})[0]);
}

}  // namespace

TEST_CASE("attention is softmax of the scaled products, times the values") {
  Session session = make_session();
  const Inputs in = inputs(DType::Float32);
  for (const bool masked : {false, true}) {
    std::vector<Tensor> given{in.query, in.key, in.value};
    if (masked) given.push_back(in.mask);
    const Tensor out = session.evaluate("dot_product_attention", given, {{"scale", 0.3}})[0];
    CHECK(distance(out, composed(session, in, masked ? in.mask : Tensor(), 0.3)) < 1e-6);
  }
}

TEST_CASE("causal attention is attention with the mask of what has been") {
  Session session = make_session();
  const Inputs in = inputs(DType::Float32);
  const Tensor out =
      session.evaluate("dot_product_attention", {in.query, in.key, in.value}, {{"scale", 0.3}, {"causal", true}})[0];
  CHECK(distance(out, composed(session, in, causal_mask(), 0.3)) < 1e-6);
}

TEST_CASE("gradients of attention in float32 are close to those in float64, also through masks") {
  Session session = make_session();
  const Inputs in = inputs(DType::Float32);
  for (const bool causal : {false, true}) {
    const Attrs attrs{{"scale", 0.3}, {"causal", causal}};
    std::vector<Tensor> given{in.query, in.key, in.value, in.mask, Tensor()};
    std::vector<Tensor> exact{as_double(in.query), as_double(in.key), as_double(in.value), in.mask, Tensor()};
    for (std::vector<Tensor>* inputs : {&given, &exact}) {
      const std::vector<Tensor> forward = session.evaluate("dot_product_attention", *inputs, attrs);
      inputs->push_back(random_values(forward[0].type(), 4));
      inputs->insert(inputs->end(), forward.begin(), forward.end());
    }
    const std::vector<Tensor> here = session.evaluate("dot_product_attention_grad", given, attrs);
    const std::vector<Tensor> there = session.evaluate("dot_product_attention_grad", exact, attrs);
    for (int i = 0; i < 3; ++i) CHECK(distance(here[i], there[i]) < 2e-6);
  }
}

TEST_CASE("a query that may look at no key gives zeros and has no gradient") {
  Session session = make_session();
  const Inputs in = inputs(DType::Float32);
  Tensor mask = in.mask;
  std::fill_n(mask.data<int8_t>() + 5 * kKeys, kKeys, int8_t{0});  // query 5 of the first sample
  const std::vector<Tensor> forward =
      session.evaluate("dot_product_attention", {in.query, in.key, in.value, mask}, {{"scale", 1.0}});
  const std::vector<Tensor> grads = session.evaluate(
      "dot_product_attention_grad",
      {in.query, in.key, in.value, mask, Tensor(), random_values(forward[0].type(), 4), forward[0], forward[1]},
      {{"scale", 1.0}});
  for (int64_t i = 0; i < kHeads * kValueWidth; ++i) CHECK(forward[0].data<float>()[5 * kHeads * kValueWidth + i] == 0);
  for (int64_t i = 0; i < kHeads * kWidth; ++i) CHECK(grads[0].data<float>()[5 * kHeads * kWidth + i] == 0);
  for (const Tensor& grad : grads)
    for (const double x : numbers(grad)) REQUIRE(std::isfinite(x));
}

TEST_CASE("a few queries see what many see") {
  Session session = make_session();
  // Rows along an axis and four more times the same, so that there are many; and those of them that were there.
  const auto many = [&](const Tensor& x, int64_t axis) {
    return session.evaluate("concat", {x, x, x, x, x}, {{"axis", axis}})[0];
  };
  const auto first_of = [&](const Tensor& x, int64_t axis, int64_t count) {
    Ints size(x.shape().begin(), x.shape().end());
    size[axis] = count;
    return session.evaluate("slice", {x}, {{"begin", Ints(size.size(), 0)}, {"size", size}})[0];
  };
  for (const auto& [queries, keys] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {1, 8}, {1, 45}, {2, 17}, {3, 8}, {3, 45}, {4, 30}}) {
    for (const auto& [width, value_width] : {std::pair<int64_t, int64_t>{5, 7}, {16, 32}, {40, 16}}) {
      CAPTURE(queries, keys, width, value_width);
      const auto of = [](int64_t length, int64_t size) { return TensorType{DType::Float32, {2, length, 3, size}}; };
      const Tensor query = random_values(of(queries, width), 1), key = random_values(of(keys, width), 2);
      const Tensor value = random_values(of(keys, value_width), 3);
      const std::vector<Tensor> exact{as_double(query), as_double(key), as_double(value)};
      Tensor kept = Tensor::allocate({DType::Int8, {2, 3, queries, keys}});
      for (int64_t i = 0; i < kept.count(); ++i) kept.data<int8_t>()[i] = i % 5 != 2;
      for (const int64_t masks : {1, 3}) {
        Tensor mask = Tensor::allocate({DType::Int8, {2, masks, queries, keys}});
        // All keys, or the first ones of those there is room for.
        for (const int64_t there_are : {keys, (keys + 2) / 3}) {
          for (int64_t i = 0; i < mask.count(); ++i)
            mask.data<int8_t>()[i] = i % 3 != 1 && i % keys < there_are + i / keys;
          for (const bool causal : {false, true}) {
            const Attrs attrs{{"scale", 0.4}, {"rate", 0.2}, {"causal", causal}};
            const auto here = session.evaluate("dot_product_attention", {query, key, value, mask, kept}, attrs);
            const auto alone =
                session.evaluate("dot_product_attention", {exact[0], exact[1], exact[2], mask, kept}, attrs);
            const auto together = session.evaluate(
                "dot_product_attention", {many(exact[0], 1), exact[1], exact[2], many(mask, 2), many(kept, 2)}, attrs);
            for (int64_t i = 0; i < 2; ++i) {
              const Tensor wanted = first_of(together[i], i == 0 ? 1 : 2, queries);
              CHECK(distance(here[i], wanted) < 2e-6);
              CHECK(distance(alone[i], wanted) < 1e-14);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a single query does not read what lies behind the last key that it may look at") {
  constexpr int64_t heads = 4, width = 64, room = 2048;  // enough for two threads
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor query = random_values({DType::Float32, {1, 1, heads, width}}, 1);
  for (const int64_t masks : {int64_t{1}, heads}) {
    Tensor key = random_values({DType::Float32, {1, room, heads, width}}, 2), value = random_values(key.type(), 3);
    Tensor mask = Tensor::allocate({DType::Int8, {masks, 1, room}});
    const auto is_seen = [](int64_t j, int64_t head) { return j < 900 + 4 * head; };
    for (int64_t i = 0; i < mask.count(); ++i) mask.data<int8_t>()[i] = is_seen(i % room, i / room);
    const auto attend = [&](int threads) {
      return make_session(threads).evaluate("dot_product_attention", {query, key, value, mask}, {{"scale", 1.0}});
    };
    const std::vector<Tensor> wanted = attend(1);
    for (Tensor* const all : {&key, &value})
      for (int64_t i = 0; i < key.count(); ++i)
        if (!is_seen(i / (heads * width), masks == 1 ? 0 : i / width % heads)) all->data<float>()[i] = nan;
    for (const int threads : {1, 2}) {
      const std::vector<Tensor> got = attend(threads);
      for (int i = 0; i < 2; ++i) CHECK(distance(got[i], wanted[i]) == 0);
    }
  }
}

TEST_CASE("a NaN among the scores is not lost") {
  Session session = make_session();
  Inputs in = inputs(DType::Float32);
  in.query.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  const Tensor out = session.evaluate("dot_product_attention", {in.query, in.key, in.value}, {{"scale", 1.0}})[0];
  CHECK(std::isnan(out.data<float>()[0]));
  CHECK_FALSE(std::isnan(out.data<float>()[kHeads * kValueWidth]));
}

TEST_CASE("attention has the same bits for any number of threads") {
  Session one = make_session(1), two = make_session(2);
  const Inputs in = inputs(DType::Float32);
  const Attrs attrs{{"scale", 0.3}};
  const std::vector<Tensor> forward = one.evaluate("dot_product_attention", {in.query, in.key, in.value}, attrs);
  CHECK(distance(forward[0], two.evaluate("dot_product_attention", {in.query, in.key, in.value}, attrs)[0]) == 0);
  const std::vector<Tensor> given{
      in.query, in.key, in.value, Tensor(), Tensor(), random_values(forward[0].type(), 4), forward[0], forward[1]};
  const std::vector<Tensor> alone = one.evaluate("dot_product_attention_grad", given, attrs);
  const std::vector<Tensor> together = two.evaluate("dot_product_attention_grad", given, attrs);
  for (int i = 0; i < 3; ++i) CHECK(distance(alone[i], together[i]) == 0);
}

TEST_CASE("attention in bfloat16 rounds what it multiplies where there are tile registers") {
  Session session = make_session(), many = make_session(3);
  const Inputs in = inputs(DType::Float32);
  for (const bool causal : {false, true}) {
    const Attrs attrs{{"scale", 0.3}, {"causal", causal}, {"rounds_to", DType::BFloat16}};
    std::vector<Tensor> given{in.query, in.key, in.value, in.mask, Tensor()};
    std::vector<Tensor> exact{as_double(in.query), as_double(in.key), as_double(in.value), in.mask, Tensor()};
    const auto check = [&](const std::string& op) {
      CAPTURE(op, causal);
      const std::vector<Tensor> here = session.evaluate(op, given, attrs), there = session.evaluate(op, exact, attrs);
      const std::vector<Tensor> shared = many.evaluate(op, given, attrs);
      for (size_t i = 0; i < here.size(); ++i) {
        const double apart = distance(here[i], there[i]);
        CHECK(apart < 1e-2);
        CHECK((apart > 1e-5) == cpu::has_tiles());
        CHECK(same(here[i], shared[i]));
      }
      return there;
    };
    const std::vector<Tensor> forward = check("dot_product_attention");
    for (std::vector<Tensor>* inputs : {&given, &exact}) {
      inputs->push_back(random_values(forward[0].type(), 4));
      for (const Tensor& result : forward) inputs->push_back(result);
    }
    for (size_t i = exact.size() - 3; i < exact.size(); ++i)
      given[i] = session.evaluate("cast", {exact[i]}, {{"dtype", DType::Float32}})[0];
    check("dot_product_attention_grad");
  }
}
