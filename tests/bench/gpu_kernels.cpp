// How near our kernels come to what the card can do: single ops on big tensors, beside a copy within the card, in bytes
// read and written per second; and products of matrices in operations per second. Prints one JSON object per line.
// Without a card it says why and ends with 77.
//   gpu_kernels [MiB of a tensor, default 256] [product: the largest in bfloat16 alone]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <tuple>

#include "engine/narrow.h"
#include "engine/op.h"
#include "kernels/catalog.h"
#include "kernels/cuda.h"

using namespace moonflow;

namespace {

constexpr int kRounds = 7, kLaunches = 10;

class Bench {
 public:
  Bench() : card_(open_cuda_device(0)), catalog_(all_ops()) {
    card_->enter();
    stream_ = card_->make_stream();
  }

  double copy(int64_t bytes) {
    const Buffer from = filled({DType::Float32, {bytes / 4}}), to(*card_, bytes);
    const double seconds = timed([&] { card_->copy(*stream_, to.data(), from.data(), bytes); });
    std::printf("{\"op\":\"copy\",\"bytes\":%lld,\"us\":%.1f,\"TBps\":%.3f}\n", static_cast<long long>(bytes),
                seconds * 1e6, 2e-12 * static_cast<double>(bytes) / seconds);
    return 2 * static_cast<double>(bytes) / seconds;
  }

  // Inputs that are optional and come last may be missing. `of_copy`: bytes per second of a copy, to compare with.
  void run(const char* name, const char* words, const std::vector<TensorType>& inputs, const Attrs& attrs,
           double of_copy) {
    try {
      const OpDef& op = catalog_->at(name);
      const Kernel& kernel = card_->kernel(op);
      require(static_cast<bool>(kernel), ErrorCode::Unsupported, "has no kernel");
      const Attrs all = complete(op, attrs);
      std::vector<const TensorType*> types;
      for (const TensorType& type : inputs) types.push_back(&type);
      std::vector<bool> present(inputs.size(), true);
      present.resize(std::max(present.size(), op.inputs.size()));
      types.resize(present.size());
      std::vector<TensorType> outputs = infer(op, {types, all});
      KernelCall prepared{*card_, all, inputs, present, std::move(outputs), {}, {}};
      prepared.inputs.resize(present.size());
      prepared.input_layouts.resize(present.size());
      prepared.output_layouts.resize(prepared.outputs.size());
      const Launch launch = kernel.prepare(prepared);

      std::vector<Buffer> buffers;
      std::vector<void*> from, to;
      double bytes = 0;
      for (size_t i = 0; i < inputs.size(); ++i) {
        from.push_back(buffers.emplace_back(filled(inputs[i])).data());
        bytes += static_cast<double>(inputs[i].bytes()) * (op.updates(i) ? 2 : 1);
      }
      from.resize(present.size());  // what is left out has no address
      for (const TensorType& output : prepared.outputs) {
        to.push_back(buffers.emplace_back(*card_, output.bytes()).data());
        bytes += static_cast<double>(output.bytes());
      }
      const Buffer scratch(*card_, prepared.scratch_bytes);
      const double seconds = timed([&] { launch(LaunchCall{*stream_, from.data(), to.data(), scratch.data()}); });
      std::printf("{\"op\":\"%s\",\"of\":\"%s\",\"us\":%.1f,", name, words, seconds * 1e6);
      if (op.flops) std::printf("\"TFLOPps\":%.1f}\n", op.flops(prepared) / seconds * 1e-12);
      if (!op.flops)
        std::printf("\"TBps\":%.3f,\"of_copy\":%.3f}\n", bytes / seconds * 1e-12, bytes / seconds / of_copy);
    } catch (const Error& error) {
      std::printf("{\"op\":\"%s\",\"of\":\"%s\",\"failed\":\"%s\"}\n", name, words, error.what());
      failed = true;
    }
  }

  bool failed = false;

 private:
  // Random, because a card is faster on zeros: floating values in [-1, 1), labels in [0, 10), and small scalars.
  Buffer filled(const TensorType& type) {
    std::vector<unsigned char> pattern(std::min<int64_t>(type.bytes(), 16 << 20));
    const auto values = [&](auto zero, auto&& draw) {
      using T = decltype(zero);
      for (size_t i = 0; i + sizeof(T) <= pattern.size(); i += sizeof(T)) {
        const T value = static_cast<T>(draw());
        std::memcpy(&pattern[i], &value, sizeof value);
      }
    };
    std::uniform_real_distribution<float> uniform(-1, 1);
    if (type.dtype == DType::BFloat16)
      values(BFloat16(), [&] { return uniform(random_); });
    else if (type.dtype == DType::Float32)
      values(float(), [&] { return type.shape.rank() == 0 ? 1e-3f : uniform(random_); });
    else if (type.dtype == DType::Int32)
      values(int32_t(), [&] { return random_() % 10; });
    else
      values(int64_t(), [&] { return random_() % 10; });
    Buffer buffer(*card_, type.bytes());
    const auto size = static_cast<int64_t>(pattern.size());
    for (int64_t at = 0; at < type.bytes(); at += size)
      card_->copy(*stream_, static_cast<char*>(buffer.data()) + at, pattern.data(), std::min(size, type.bytes() - at));
    stream_->wait();
    return buffer;
  }

  // Median seconds of one of several launches in a row.
  template <class Work>
  double timed(Work&& work) {
    work();
    stream_->wait();
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kLaunches; ++i) work();
      stream_->wait();
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kLaunches);
    }
    std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
    return times[kRounds / 2];
  }

  const std::shared_ptr<Device> card_;
  const std::shared_ptr<const Catalog> catalog_;
  std::unique_ptr<Stream> stream_;
  std::mt19937 random_{1};
};

TensorType floats(std::initializer_list<int64_t> shape) { return {DType::Float32, shape}; }

}  // namespace

int main(int argc, char** argv) try {
  constexpr int kSkipped = 77;
  const CudaProbe probe = probe_cuda();
  if (probe.cards.empty()) {
    std::printf("{\"no_gpu\":\"%s\"}\n", probe.reason.c_str());
    return kSkipped;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Bench bench;
  const int64_t mebibytes = argc > 1 ? std::max(1, std::atoi(argv[1])) : 256;
  const int64_t lanes = mebibytes << 8;  // of 1024 floats
  const auto square = [](DType dtype, int64_t n) { return TensorType{dtype, {n, n}}; };
  const auto multiply = [&](DType dtype, int64_t n) {
    bench.run("matmul", text(n, " cubed, ", name(dtype)).c_str(), {square(dtype, n), square(dtype, n)}, {}, 0);
  };
  if (argc > 2 && std::strcmp(argv[2], "product") == 0) {
    multiply(DType::BFloat16, mebibytes * 32);
    return bench.failed ? EXIT_FAILURE : EXIT_SUCCESS;
  }
  const double copy = bench.copy(mebibytes << 20);
  const TensorType many = floats({lanes * 1024}), scalar = floats({}), rows = floats({lanes, 1024}),
                   wide = floats({1024});
  bench.run("relu", "floats", {many}, {}, copy);
  bench.run("add", "floats", {many, many}, {}, copy);
  bench.run("gelu", "floats", {many}, {}, copy);
  bench.run("softmax", "rows of 1024", {rows}, {}, copy);
  bench.run("sparse_softmax_cross_entropy_with_logits", "rows of 1024", {{DType::Int32, {lanes}}, rows}, {}, copy);
  bench.run("layer_norm_core", "rows of 1024", {rows, wide, wide}, {{"begin_norm_axis", int64_t{1}}}, copy);
  bench.run("sgd_update", "floats", {many, many, scalar}, {}, copy);
  bench.run("momentum_update", "floats", {many, many, many, scalar}, {}, copy);
  bench.run("adam_update", "floats", {many, many, many, many, scalar, {DType::Int64, {}}}, {}, copy);
  // What ResNet-50 does between its convolutions, for as many images as there are MiB; x is read twice, once for the
  // statistics, and its gradient's inputs too.
  const auto images = [&](int64_t side, int64_t channels) {
    return TensorType{DType::BFloat16, {mebibytes, side, side, channels}};
  };
  const Attrs last{{"axis", int64_t{3}}};
  for (const auto& [x, c, words] : {std::tuple(images(56, 64), floats({64}), "bfloat16, 56 x 56 x 64"),
                                    std::tuple(images(14, 1024), floats({1024}), "bfloat16, 14 x 14 x 1024")}) {
    bench.run("batch_norm_relu", words, {x, c, c}, last, copy);
    bench.run("batch_norm_relu_grad", words, {x, c, c, c, c, x}, last, copy);
    bench.run("batch_norm_add_relu", words, {x, c, c, x}, last, copy);
    bench.run("batch_norm_add_relu_grad", words, {x, c, c, c, c, x, x}, last, copy);
  }
  for (const int64_t n : {mebibytes * 4, mebibytes * 32})
    for (const DType dtype : {DType::Float32, DType::BFloat16}) multiply(dtype, n);
  return bench.failed ? EXIT_FAILURE : EXIT_SUCCESS;
} catch (const std::exception& error) {
  std::printf("{\"failed\":\"%s\"}\n", error.what());
  return EXIT_FAILURE;
}
