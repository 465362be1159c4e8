// The losses: known values, large logits, bad labels.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

const char* const kSparse = "sparse_softmax_cross_entropy_with_logits";

Tensor labels_below(int64_t classes, int64_t rows) {
  Tensor labels = Tensor::allocate({DType::Int32, {rows}});
  for (int64_t row = 0; row < rows; ++row) labels.data<int32_t>()[row] = static_cast<int32_t>(row * 7 % classes);
  return labels;
}

}  // namespace

TEST_CASE("sparse cross entropy gives prob and loss") {
  Session session = make_session();
  const Tensor labels = Tensor::of<int32_t>({2}, {2, 0});
  const Tensor logits = Tensor::of<double>({2, 3}, {1, 2, 3, 0, 0, 0});
  const std::vector<Tensor> out = session.evaluate(kSparse, {labels, logits});
  CHECK(out[1].shape() == Shape{2});
  CHECK(numbers(out[0])[2] == Approx(0.6652409557748219).epsilon(1e-14));
  CHECK(numbers(out[1])[0] == Approx(-std::log(0.6652409557748219)).epsilon(1e-14));
  CHECK(numbers(out[1])[1] == Approx(std::log(3)).epsilon(1e-14));
}

TEST_CASE("sparse cross entropy takes labels of any integer dtype and as a column") {
  Session session = make_session();
  const Tensor logits = Tensor::of<float>({2, 3}, {1, 2, 3, 3, 2, 1});
  const Tensor expected = session.evaluate(kSparse, {Tensor::of<int32_t>({2}, {1, 2}), logits})[1];
  CHECK(distance(session.evaluate(kSparse, {Tensor::of<int64_t>({2}, {1, 2}), logits})[1], expected) == 0);
  CHECK(distance(session.evaluate(kSparse, {Tensor::of<int8_t>({2}, {1, 2}), logits})[1], expected) == 0);
  const Tensor column = session.evaluate(kSparse, {Tensor::of<uint8_t>({2, 1}, {1, 2}), logits})[1];
  CHECK(column.shape() == Shape{2, 1});
  CHECK(distance(column.reshaped({2}), expected) == 0);
}

TEST_CASE("sparse cross entropy stays finite where softmax underflows") {
  Session session = make_session();
  const Tensor logits = Tensor::of<float>({1, 2}, {-500, 500});
  const std::vector<Tensor> out = session.evaluate(kSparse, {Tensor::of<int32_t>({1}, {0}), logits});
  CHECK(numbers(out[1])[0] == 1000);
  CHECK(numbers(out[0])[0] == 0);
}

TEST_CASE("the losses and gradients of few classes are those of each row") {
  Session session = make_session();
  for (const int64_t classes : {1, 2, 10, 31, 32}) {
    for (const int64_t rows : {1, 15, 16, 17, 40}) {
      CAPTURE(classes, rows);
      const Tensor labels = labels_below(classes, rows);
      const Tensor logits = random_values({DType::Float32, {rows, classes}}, 5, -20, 20);
      const Tensor dy = random_values({DType::Float32, {rows}}, 6);
      const std::vector<Tensor> found = session.evaluate(kSparse, {labels, logits});
      const std::vector<Tensor> wanted = session.evaluate(kSparse, {labels, as_double(logits)});
      CHECK(distance(as_double(found[0]), wanted[0]) < 5e-7);  // as softmax
      CHECK(distance(as_double(found[1]), wanted[1]) < 8e-6);  // of 40 + log 32
      const char* const fused = "sparse_softmax_cross_entropy_and_grad";
      const std::vector<Tensor> both = session.evaluate(fused, {labels, logits, dy});
      const Tensor gradient = session.evaluate("sparse_softmax_cross_entropy_grad", {dy, labels, found[0]})[0];
      CHECK(distance(both[0], found[1]) == 0);
      CHECK(distance(both[1], gradient) == 0);
    }
  }
}

TEST_CASE("a label outside the classes is named by its row, and nothing is written") {
  Session session = make_session();
  const Tensor labels = Tensor::of<int32_t>({4}, {1, 2, 9, 11}), logits = random_values({DType::Float32, {4, 10}}, 1);
  CHECK(message_of([&] { session.evaluate(kSparse, {labels, logits}); }) == "row 3: label 11 is outside [0, 10)");
  const Tensor negative = Tensor::of<int64_t>({4}, {0, -1, 0, 0});
  CHECK(message_of([&] { session.evaluate(kSparse, {negative, logits}); }) == "row 1: label -1 is outside [0, 10)");

  const OpDef& op = session.catalog().at(kSparse);
  const Attrs attrs;
  Tensor prob = random_values(logits.type(), 2), out = random_values({DType::Float32, {4}}, 3);
  const Tensor prob_before = prob.copy(), out_before = out.copy();
  KernelCall call{session.device(),
                  attrs,
                  {labels.type(), logits.type()},
                  {true, true},
                  {prob.type(), out.type()},
                  std::vector<Layout>(2),
                  std::vector<Layout>(2)};
  const Launch launch = op.cpu.prepare(call);
  const Buffer scratch(session.device(), call.scratch_bytes);
  const std::unique_ptr<Stream> stream = session.device().make_stream();
  void* const inputs[] = {labels.data(), logits.data()};
  void* const outputs[] = {prob.data(), out.data()};
  CHECK_THROWS_AS(launch({*stream, inputs, outputs, scratch.data()}), Error);
  CHECK(distance(prob, prob_before) == 0);
  CHECK(distance(out, out_before) == 0);
}

TEST_CASE("labels and logits that do not belong together are refused") {
  Session session = make_session();
  const Tensor logits = random_values({DType::Float32, {5, 10}}, 1);
  CHECK(message_of([&] {
          session.evaluate(kSparse, {labels_below(10, 4), logits});
        }) == "labels and logits differ in rows: labels is (4), logits is (5, 10), so labels should be (5)");
  const Tensor pixels = Tensor::allocate({DType::Int32, {2, 4, 6}}),
               image = random_values({DType::Float32, {2, 3, 4, 6}}, 1);
  CHECK(message_of([&] {
          session.evaluate(kSparse, {pixels, image});
        }) ==
        "labels (2, 4, 6) are for logits with the 3 classes on the last axis, and in (2, 3, 4, 6) they are on axis 1; "
        "flow.transpose(logits, { 0, 2, 3, 1 }) puts them there");
  CHECK(message_of([&] {
          session.evaluate(kSparse, {random_values({DType::Float32, {5}}, 1), logits});
        }) == "labels must be integers (int32 or int64), got float32");
  const Tensor labels = labels_below(10, 5);
  CHECK(message_of([&] {
          session.evaluate(kSparse, {logits, logits});
        }) ==
        "labels is float32 (5, 10) like logits; it must be integers, one per row. Distributions are for "
        "flow.nn.softmax_cross_entropy_with_logits");
  CHECK(message_of([&] {
          session.evaluate("softmax_cross_entropy_with_logits", {labels, logits});
        }) ==
        "labels is int32 (5), logits is float32 (5, 10); it must be alike, a distribution per row. Integers are for "
        "flow.nn.sparse_softmax_cross_entropy_with_logits");
}

TEST_CASE("labels and logits in the wrong order are told") {
  Session session = make_session();
  const Tensor logits = random_values({DType::Float32, {5, 10}}, 1), labels = labels_below(10, 5);
  const auto told = [&](const char* op, const Tensor& first, const Tensor& second, Attrs attrs = {}) {
    return message_of([&] { session.evaluate(op, {first, second}, attrs); });
  };
  CHECK(told(kSparse, logits, labels) ==
        "labels is float32 (5, 10) and logits is int32 (5), which looks swapped: labels, integers, come first, then "
        "logits, floats");
  CHECK(told("sparse_cross_entropy", logits, labels) ==
        "labels is float32 (5, 10) and prediction is int32 (5), which looks swapped: labels, integers, come first, "
        "then prediction, floats");
  CHECK(told("in_top_k", logits, labels, {{"k", int64_t{1}}}) ==
        "targets is float32 (5, 10) and predictions is int32 (5), which looks swapped: targets, integers, come first, "
        "then predictions, floats");
  CHECK(told(kSparse, logits, random_values({DType::Float32, {5}}, 1)).find("looks swapped") != std::string::npos);
  CHECK(told("softmax_cross_entropy_with_logits", logits, labels) ==
        "labels is float32 (5, 10) and logits is int32 (5), which looks swapped: labels come first");
}

TEST_CASE("rows of the gradient of sparse cross entropy sum to zero, undivided by the batch") {
  Session session = make_session();
  const int64_t rows = 100, classes = 10;
  const Tensor labels = labels_below(classes, rows),
               logits = random_values({DType::Float32, {rows, classes}}, 4, -3, 3);
  Graph graph(session.catalog());
  const ValueId label_feed = graph.feed("labels", labels.type()), logit_feed = graph.feed("logits", logits.type());
  const ValueId loss = graph.append(kSparse, {label_feed, logit_feed})[1];
  const ValueId ones = graph.append("ones_like", {loss})[0];
  const ValueId dlogits = gradients(graph, {loss}, {ones}, {logit_feed})[0];
  REQUIRE(dlogits != kNone);
  graph.tap(dlogits, 1);
  const std::vector<double> d = numbers(run(session, session.compile(graph, "test"), {labels, logits})[0]);
  const std::vector<double> prob = numbers(session.evaluate("softmax", {logits})[0]);
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      sum += d[row * classes + c];
      const double hit = c == labels.data<int32_t>()[row];
      CHECK(d[row * classes + c] == Approx(prob[row * classes + c] - hit).margin(1e-6));
    }
    CHECK(std::abs(sum) < 1e-5);
  }
}

TEST_CASE("dense cross entropy with one-hot labels is the sparse one") {
  Session session = make_session();
  const Tensor labels = labels_below(6, 20), logits = random_values({DType::Float64, {20, 6}}, 5, -3, 3);
  const Attrs attrs{{"depth", int64_t{6}}, {"dtype", DType::Float64}};
  const Tensor dense_labels = session.evaluate("one_hot", {labels}, attrs)[0];
  const Tensor dense = session.evaluate("softmax_cross_entropy_with_logits", {dense_labels, logits})[0];
  CHECK(distance(dense, session.evaluate(kSparse, {labels, logits})[1]) < 1e-14);
}

TEST_CASE("a class without label may have a logit of minus infinity") {
  Session session = make_session();
  const float lowest = -std::numeric_limits<float>::infinity();
  const Tensor labels = Tensor::of<float>({1, 3}, {0, 1, 0}), logits = Tensor::of<float>({1, 3}, {lowest, 0, 0});
  const Tensor loss = session.evaluate("softmax_cross_entropy_with_logits", {labels, logits})[0];
  CHECK(numbers(loss)[0] == Approx(std::log(2)).epsilon(1e-6));
}

TEST_CASE("sigmoid cross entropy neither overflows nor loses small losses") {
  Session session = make_session();
  const Tensor logits = Tensor::of<float>({4}, {0, 30, -30, 1000}), labels = Tensor::of<float>({4}, {1, 1, 0, 0});
  const std::vector<double> out = numbers(session.evaluate("sigmoid_cross_entropy_with_logits", {labels, logits})[0]);
  CHECK(out[0] == Approx(std::log(2)).epsilon(1e-6));
  CHECK(out[1] == Approx(std::exp(-30)).epsilon(1e-6));
  CHECK(out[2] == out[1]);
  CHECK(out[3] == 1000);
}

TEST_CASE("sigmoid cross entropy of an infinite logit is 0 where it is right, and infinite where it is wrong") {
  Session session = make_session();
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor logits = Tensor::of<float>({8}, {infinity, infinity, infinity, -infinity, -infinity, -infinity, nan, 1});
  const Tensor labels = Tensor::of<float>({8}, {1, 0, 0.5f, 0, 1, 0.5f, 0, nan});
  for (const DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16}) {
    INFO(dtype);
    const auto in_dtype = [&](const Tensor& x) { return session.evaluate("cast", {x}, {{"dtype", dtype}})[0]; };
    const std::vector<Tensor> given{in_dtype(labels), in_dtype(logits)};
    const Tensor out = session.evaluate("cast", {session.evaluate("sigmoid_cross_entropy_with_logits", given)[0]},
                                        {{"dtype", DType::Float64}})[0];
    const std::vector<double> loss = numbers(out);
    for (const size_t right : {0, 3}) CHECK(loss[right] == 0);
    for (const size_t wrong : {1, 2, 4, 5}) CHECK(loss[wrong] == infinity);
    for (const size_t unknown : {6, 7}) CHECK(std::isnan(loss[unknown]));
  }
}

TEST_CASE("the gradient of smooth l1 is that of its ends at infinities, and a NaN of a NaN") {
  Session session = make_session();
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor prediction = Tensor::of<double>({4}, {infinity, -infinity, nan, 0});
  const Tensor label = Tensor::of<double>({4}, {0, 0, 0, 0}), dy = Tensor::of<double>({4}, {2, 2, 2, 2});
  for (const double beta : {0.0, 0.5}) {
    const std::vector<double> slope =
        numbers(session.evaluate("smooth_l1_loss_grad", {dy, prediction, label}, {{"beta", beta}})[0]);
    CHECK(slope[0] == 2);
    CHECK(slope[1] == -2);
    CHECK(std::isnan(slope[2]));
    CHECK(slope[3] == 0);
  }
}

TEST_CASE("cross entropy of probabilities holds them above 1e-20") {
  Session session = make_session();
  const Tensor labels = Tensor::of<int32_t>({2}, {1, 0}), prediction = Tensor::of<double>({2, 2}, {0.75, 0.25, 0, 1});
  const std::vector<double> out = numbers(session.evaluate("sparse_cross_entropy", {labels, prediction})[0]);
  CHECK(out[0] == Approx(std::log(4)).epsilon(1e-14));
  CHECK(out[1] == Approx(20 * std::log(10)).epsilon(1e-14));
}

TEST_CASE("smooth l1 changes from square to distance at beta") {
  Session session = make_session();
  const Tensor label = Tensor::of<double>({4}, {0, 0, 0, 0}), prediction = Tensor::of<double>({4}, {0.5, -1, 3, -3});
  const auto loss = [&](double beta) {
    return numbers(session.evaluate("smooth_l1_loss", {prediction, label}, {{"beta", beta}})[0]);
  };
  CHECK(loss(1) == std::vector<double>{0.125, 0.5, 2.5, 2.5});
  CHECK(loss(2) == std::vector<double>{0.0625, 0.25, 2, 2});
  CHECK(loss(0) == std::vector<double>{0.5, 1, 3, 3});
  CHECK(message_of([&] { loss(-1); }) == "beta must be at least 0, got -1");
}

TEST_CASE("l2_normalize gives vectors of length one, and leaves zero alone") {
  Session session = make_session();
  const Tensor x = Tensor::of<double>({2, 2}, {3, 4, 0, 0});
  const std::vector<double> rows = numbers(session.evaluate("l2_normalize", {x}, {{"axis", int64_t{1}}})[0]);
  CHECK(rows[0] == Approx(0.6));
  CHECK(rows[1] == Approx(0.8));
  CHECK(rows[2] == 0);
  const std::vector<double> columns = numbers(session.evaluate("l2_normalize", {x}, {{"axis", int64_t{0}}})[0]);
  CHECK(columns == std::vector<double>{1, 1, 0, 0});
}

TEST_CASE("vectors of no elements cost nothing, however many there are") {
  Session session = make_session();
  const Tensor none = Tensor::allocate({DType::Float32, {0, int64_t{1} << 50}});  // to go through them would take weeks
  CHECK(session.evaluate("l2_normalize", {none}, {{"axis", int64_t{0}}})[0].shape() == none.shape());
  CHECK(session.evaluate("l2_normalize_grad", {none, none}, {{"axis", int64_t{0}}})[0].shape() == none.shape());
}

TEST_CASE("losses have the same bits for any number of threads") {
  Session one = make_session(1), two = make_session(2);
  const int64_t rows = 2000, classes = 101;
  const Tensor labels = labels_below(classes, rows),
               logits = random_values({DType::Float32, {rows, classes}}, 6, -3, 3);
  const Tensor dense = random_values(logits.type(), 7, 0, 1), dy = random_values({DType::Float32, {rows}}, 8);
  const auto check = [&](const char* op, const std::vector<Tensor>& inputs, const Attrs& attrs = {}) {
    INFO(op);
    const std::vector<Tensor> a = one.evaluate(op, inputs, attrs), b = two.evaluate(op, inputs, attrs);
    for (size_t i = 0; i < a.size(); ++i) CHECK(distance(a[i], b[i]) == 0);
  };
  check(kSparse, {labels, logits});
  check("sparse_softmax_cross_entropy_grad", {dy, labels, dense});
  check("sparse_cross_entropy_grad", {dy, labels, dense});
  check("softmax_cross_entropy_with_logits", {dense, logits});
  check("softmax_cross_entropy_grad", {dy, dense, logits});
  check("sigmoid_cross_entropy_with_logits", {dense, logits});
  check("sigmoid_cross_entropy_grad", {logits, dense, logits});
  check("smooth_l1_loss", {dense, logits});
  check("l2_normalize", {logits}, {{"axis", int64_t{0}}});
  check("l2_normalize_grad", {dense, logits}, {{"axis", int64_t{1}}});
}
