// What kernel tests share: a session with all ops, repeatable random values, and a measure of how far two values are
// apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/autodiff.h"
#include "engine/session.h"
#include "kernels/catalog.h"

namespace moonflow::testing {

inline Session make_session(int threads = 2) { return Session(all_ops(), make_cpu_device(threads)); }

inline Tensor random_values(const TensorType& type, uint32_t seed, double low = -1, double high = 1) {
  Tensor tensor = Tensor::allocate(type);
  std::mt19937 generator(seed);
  visit_floating(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    // Values that float32 holds exactly, so that both dtypes see the same numbers.
    for (int64_t i = 0; i < tensor.count(); ++i) {
      tensor.data<T>()[i] = static_cast<float>(low + (high - low) * (generator() / 4294967296.0));
    }
  });
  return tensor;
}

inline Tensor as_double(const Tensor& tensor) {
  Tensor result = Tensor::allocate({DType::Float64, tensor.shape()});
  visit_stored(tensor.dtype(), [&](auto zero) {
    const auto* from = tensor.data<decltype(zero)>();
    std::copy(from, from + tensor.count(), result.data<double>());
  });
  return result;
}

inline std::vector<double> numbers(const Tensor& tensor) {
  const Tensor values = as_double(tensor);
  return {values.data<double>(), values.data<double>() + values.count()};
}

inline bool same(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

// The largest difference of two elements, measured by the largest finite element of `b` where that is above 1. It is
// infinite where one of them is no number, or one alone is infinite.
inline double distance(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return INFINITY;
  const std::vector<double> left = numbers(a), right = numbers(b);
  double difference = 0, scale = 1;
  for (size_t i = 0; i < left.size(); ++i) {
    const double apart = left[i] == right[i] ? 0 : std::abs(left[i] - right[i]);
    difference = std::max(difference, std::isnan(apart) ? INFINITY : apart);
    if (std::isfinite(right[i])) scale = std::max(scale, std::abs(right[i]));
  }
  return difference / scale;
}

inline double dot(const Tensor& a, const Tensor& b) {
  const std::vector<double> left = numbers(a), right = numbers(b);
  double sum = 0;
  for (size_t i = 0; i < left.size(); ++i) sum += left[i] * right[i];
  return sum;
}

// Runs a plan and gives its taps in order.
inline std::vector<Tensor> run(Session& session, const std::shared_ptr<Plan>& plan, std::vector<Tensor> feeds) {
  Executor::Submission submission;
  submission.feeds = std::move(feeds);
  submission.may_run_inline = true;
  session.submit(plan, std::move(submission));
  std::vector<Tensor> taps;
  for (;;) {
    std::optional<Completion> completion = session.pull();
    if (!completion) {
      session.completions().wait(-1);
      continue;
    }
    if (completion->end) {
      if (completion->error) throw *completion->error;
      return taps;
    }
    taps.push_back(completion->tensor);
  }
}

inline std::vector<std::string> labels(const Plan& plan) {
  std::vector<std::string> labels;
  for (const Step& step : plan.steps) labels.push_back(step.label);
  return labels;
}

inline int64_t count(const Plan& plan, const std::string& op) {
  const std::vector<std::string> steps = labels(plan);
  return std::count_if(steps.begin(), steps.end(), [&](const std::string& step) {
    return step == op || step.rfind(op + " ", 0) == 0;  // with a name, or without
  });
}

// The message of the error that `work` throws, or "no error".
template <class Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The outputs of an op in a plan, which lays out its values as the kernel wants them; Session::evaluate leaves rows.
inline std::vector<Tensor> planned(Session& session, const std::string& op, const std::vector<Tensor>& inputs,
                                   const Attrs& attrs) {
  Graph graph(session.catalog());
  std::vector<ValueId> feeds;
  for (const Tensor& input : inputs) feeds.push_back(graph.feed(text("input", feeds.size()), input.type()));
  Token token = 0;
  for (const ValueId output : graph.append(op, feeds, attrs, "tried")) graph.tap(output, ++token);
  return run(session, session.compile(graph, op), inputs);
}

}  // namespace moonflow::testing
