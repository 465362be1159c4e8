// What this machine's card can do at best: the figures that speeds of ours are compared with. Prints one JSON object
// per line. Given a path, it writes cuDNN's own description of the card there, from which cuDNN makes plans on machines
// without one. Without a card it says why and ends with 77.
//   gpu_probe [card.json]
#include <cuda_runtime.h>
#include <cudnn.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("{\"failed\":\"%s\",\"error\":\"%s\"}\n", what, cudaGetErrorName(status));
  std::exit(EXIT_FAILURE);
}
#define CHECK(call) check(call, #call)

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Median microseconds of `body()`, after some calls that do not count.
template <class Body>
double median_us(int calls, Body&& body) {
  for (int i = 0; i < calls / 10 + 2; ++i) body();
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    const Clock::time_point start = Clock::now();
    body();
    times.push_back(microseconds_since(start));
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[calls / 2];
}

__global__ void __launch_bounds__(32) touch(int* counts) {
  if (threadIdx.x == 0) ++counts[blockIdx.x];
}

// The same, begun while the one before it is still ending, which cards can from 9.0 on.
__global__ void __launch_bounds__(32) touch_early(int* counts) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  if (threadIdx.x == 0) ++counts[blockIdx.x];
}

__global__ void __launch_bounds__(32) raise_flag(volatile unsigned* flag, unsigned value) {
  if (threadIdx.x == 0) *flag = value;
}

__global__ void __launch_bounds__(256) add_one(const float4* from, float4* to, size_t count) {
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < count; i += gridDim.x * size_t{256}) {
    const float4 x = from[i];
    to[i] = {x.x + 1, x.y + 1, x.z + 1, x.w + 1};
  }
}

class Probe {
 public:
  Probe() {
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&apart_, cudaEventDisableTiming));
    CHECK(cudaMalloc(&counts_, 4096 * sizeof(int)));
    CHECK(cudaMemsetAsync(counts_, 0, 4096 * sizeof(int), stream_));
    CHECK(cudaStreamSynchronize(stream_));
  }

  void card() {
    cudaDeviceProp card;
    CHECK(cudaGetDeviceProperties(&card, 0));
    int driver = 0, runtime = 0;
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaRuntimeGetVersion(&runtime));
    std::printf(
        "{\"card\":\"%s\",\"capability\":\"%d.%d\",\"multiprocessors\":%d,\"memory_bytes\":%zu,\"l2_bytes\":%d,"
        "\"shared_bytes\":%zu,\"copy_engines\":%d,\"driver\":%d,\"runtime\":%d}\n",
        card.name, card.major, card.minor, card.multiProcessorCount, card.totalGlobalMem, card.l2CacheSize,
        card.sharedMemPerBlockOptin, card.asyncEngineCount, driver, runtime);
    can_begin_early_ = card.major >= 9;
  }

  void launches() {
    const double alone = median_us(2000, [&] {
      touch<<<1, 32, 0, stream_>>>(counts_);
      CHECK(cudaStreamSynchronize(stream_));
    });
    constexpr int kMany = 500;
    double enqueue = 0;
    const double in_a_row = median_us(50, [&] {
      const Clock::time_point start = Clock::now();
      for (int i = 0; i < kMany; ++i) touch<<<1, 32, 0, stream_>>>(counts_);
      enqueue = microseconds_since(start) / kMany;
      CHECK(cudaStreamSynchronize(stream_));
    });
    std::printf("{\"launch_and_wait_us\":%.2f,\"launch_in_a_row_us\":%.3f,\"host_us_per_launch\":%.3f}\n", alone,
                in_a_row / kMany, enqueue);
  }

  // Chains of tiny kernels as graphs: what a node costs, with and without beginning early.
  void graphs() {
    for (int early = 0; early <= (can_begin_early_ ? 1 : 0); ++early)
      for (const int blocks : {1, 132})
        for (const int nodes : {1, 5, 20, 100}) chain(nodes, blocks, early == 1);
    for (const int forks : {1, 4}) chain(14, 1, false, forks);
  }

  void transfers() {
    for (const size_t bytes :
         {size_t{4}, size_t{4000}, size_t{78400}, size_t{313600}, size_t{1} << 24, size_t{1} << 28}) {
      void *pinned = nullptr, *on_card = nullptr;
      CHECK(cudaHostAlloc(&pinned, bytes, cudaHostAllocPortable));
      CHECK(cudaMalloc(&on_card, bytes));
      std::vector<char> pageable(bytes, 1);
      std::memset(pinned, 1, bytes);
      const int calls = bytes > (1 << 20) ? 20 : 500;
      const auto copying = [&](void* to, const void* from) {
        return median_us(calls, [&] {
          CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
          CHECK(cudaStreamSynchronize(stream_));
        });
      };
      const double in = copying(on_card, pinned), out = copying(pinned, on_card);
      const double in_pageable = copying(on_card, pageable.data());
      const double by_host = median_us(calls, [&] { std::memcpy(pinned, pageable.data(), bytes); });
      const double both = median_us(calls, [&] {
        CHECK(cudaMemcpyAsync(on_card, pinned, bytes / 2, cudaMemcpyDefault, stream_));
        CHECK(cudaMemcpyAsync(static_cast<char*>(pinned) + bytes / 2, static_cast<char*>(on_card) + bytes / 2,
                              bytes / 2, cudaMemcpyDefault, other_));
        CHECK(cudaStreamSynchronize(stream_));
        CHECK(cudaStreamSynchronize(other_));
      });
      const double gigabytes = static_cast<double>(bytes) * 1e-3;  // over microseconds
      std::printf(
          "{\"copy_bytes\":%zu,\"in_us\":%.2f,\"out_us\":%.2f,\"in_pageable_us\":%.2f,\"memcpy_of_host_us\":%.2f,"
          "\"half_each_way_us\":%.2f,\"in_GBps\":%.1f,\"out_GBps\":%.1f}\n",
          bytes, in, out, in_pageable, by_host, both, gigabytes / in, gigabytes / out);
      CHECK(cudaFree(on_card));
      CHECK(cudaFreeHost(pinned));
    }
    void* pinned = nullptr;
    std::printf("{\"pin_4MiB_us\":%.0f}\n", median_us(20, [&] {
                  CHECK(cudaHostAlloc(&pinned, 4 << 20, cudaHostAllocPortable));
                  CHECK(cudaFreeHost(pinned));
                }));
  }

  // How soon the host hears that a kernel is done.
  void completions() {
    unsigned* flag = nullptr;
    CHECK(cudaHostAlloc(&flag, 64, cudaHostAllocMapped));
    *flag = 0;
    unsigned value = 0;
    const double by_flag = median_us(2000, [&] {
      raise_flag<<<1, 32, 0, stream_>>>(flag, ++value);
      while (*static_cast<volatile unsigned*>(flag) != value) {
      }
    });
    cudaEvent_t event;
    const auto by_event = [&](auto&& wait) {
      return median_us(2000, [&] {
        touch<<<1, 32, 0, stream_>>>(counts_);
        CHECK(cudaEventRecord(event, stream_));
        wait();
      });
    };
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
    const double asking = by_event([&] {
      while (cudaEventQuery(event) == cudaErrorNotReady) {
      }
    });
    const double sleeping = by_event([&] { CHECK(cudaEventSynchronize(event)); });
    CHECK(cudaEventDestroy(event));
    CHECK(cudaFreeHost(flag));
    std::printf("{\"done_by_flag_us\":%.2f,\"done_by_asking_us\":%.2f,\"done_by_sleeping_us\":%.2f}\n", by_flag, asking,
                sleeping);
  }

  // Bytes read and written per second, over memory that no cache holds.
  void bandwidth() {
    for (const size_t bytes : {size_t{256} << 20, size_t{2} << 30}) {
      void *from = nullptr, *to = nullptr;
      CHECK(cudaMalloc(&from, bytes));
      CHECK(cudaMalloc(&to, bytes));
      CHECK(cudaMemsetAsync(from, 0x3e, bytes, stream_));
      const double copied = median_us(20, [&] {
        CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
        CHECK(cudaStreamSynchronize(stream_));
      });
      const double added = median_us(20, [&] {
        add_one<<<132 * 16, 256, 0, stream_>>>(static_cast<const float4*>(from), static_cast<float4*>(to), bytes / 16);
        CHECK(cudaStreamSynchronize(stream_));
      });
      const double moved = 2e-6 * static_cast<double>(bytes);
      std::printf("{\"bandwidth_bytes\":%zu,\"copy_TBps\":%.3f,\"kernel_TBps\":%.3f}\n", bytes, moved / copied,
                  moved / added);
      CHECK(cudaFree(from));
      CHECK(cudaFree(to));
    }
  }

 private:
  void launch(bool early, int blocks) {
    if (!early) {
      touch<<<static_cast<unsigned>(blocks), 32, 0, stream_>>>(counts_);
      return;
    }
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(32);
    config.stream = stream_;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, touch_early, counts_));
  }

  // Beside each of the first `forks` nodes there is another one that only the node after it waits for.
  void chain(int nodes, int blocks, bool early, int forks = 0) {
    launch(early, blocks);  // loads the kernel, which a capture must not
    CHECK(cudaStreamSynchronize(stream_));
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < nodes; ++i) {
      if (i < forks) {
        CHECK(cudaEventRecord(apart_, stream_));
        CHECK(cudaStreamWaitEvent(other_, apart_, 0));
        touch<<<static_cast<unsigned>(blocks), 32, 0, other_>>>(counts_ + 2048);
        CHECK(cudaEventRecord(apart_, other_));
      }
      launch(early, blocks);
      if (i < forks) CHECK(cudaStreamWaitEvent(stream_, apart_, 0));
    }
    CHECK(cudaStreamEndCapture(stream_, &graph));
    cudaGraphInstantiateParams parameters{};
    parameters.flags = cudaGraphInstantiateFlagUpload;
    parameters.uploadStream = stream_;
    cudaGraphExec_t made;
    const Clock::time_point start = Clock::now();
    CHECK(cudaGraphInstantiateWithParams(&made, graph, &parameters));
    const double instantiate = microseconds_since(start);
    CHECK(cudaStreamSynchronize(stream_));
    const double alone = median_us(300, [&] {
      CHECK(cudaGraphLaunch(made, stream_));
      CHECK(cudaStreamSynchronize(stream_));
    });
    constexpr int kMany = 100;
    double enqueue = 0;
    const double in_a_row = median_us(20, [&] {
      const Clock::time_point first = Clock::now();
      for (int i = 0; i < kMany; ++i) CHECK(cudaGraphLaunch(made, stream_));
      enqueue = microseconds_since(first) / kMany;
      CHECK(cudaStreamSynchronize(stream_));
    });
    std::printf(
        "{\"graph_nodes\":%d,\"forks\":%d,\"blocks\":%d,\"early\":%s,\"instantiate_us\":%.1f,"
        "\"launch_and_wait_us\":%.2f,"
        "\"in_a_row_us\":%.2f,\"host_us_per_launch\":%.2f,\"us_per_node\":%.3f}\n",
        nodes, forks, blocks, early ? "true" : "false", instantiate, alone, in_a_row / kMany, enqueue,
        in_a_row / kMany / nodes);
    CHECK(cudaGraphExecDestroy(made));
    CHECK(cudaGraphDestroy(graph));
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
  cudaEvent_t apart_ = nullptr;
  int* counts_ = nullptr;
  bool can_begin_early_ = false;
};

// What cuDNN says of card 0, to be committed as data.
void describe_card(const char* path) {
  void* const library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    std::printf("{\"cudnn\":\"%s\"}\n", dlerror());
    return;
  }
  const auto create =
      reinterpret_cast<decltype(&cudnnBackendCreateDescriptor)>(dlsym(library, "cudnnBackendCreateDescriptor"));
  const auto set = reinterpret_cast<decltype(&cudnnBackendSetAttribute)>(dlsym(library, "cudnnBackendSetAttribute"));
  const auto get = reinterpret_cast<decltype(&cudnnBackendGetAttribute)>(dlsym(library, "cudnnBackendGetAttribute"));
  const auto finalize = reinterpret_cast<decltype(&cudnnBackendFinalize)>(dlsym(library, "cudnnBackendFinalize"));
  const auto version = reinterpret_cast<decltype(&cudnnGetVersion)>(dlsym(library, "cudnnGetVersion"));
  if (!create || !set || !get || !finalize || !version) {
    std::printf("{\"cudnn\":\"without the graph interface\"}\n");
    return;
  }
  cudnnBackendDescriptor_t card = nullptr;
  int32_t index = 0;
  int64_t size = 0;
  std::string text;
  int status = create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &card);
  if (status == 0) status = set(card, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &index);
  if (status == 0) status = finalize(card);
  if (status == 0) status = get(card, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &size, nullptr);
  if (status == 0) {
    text.resize(static_cast<size_t>(size));
    status = get(card, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, size, &size, text.data());
  }
  std::printf("{\"cudnn\":%zu,\"description_status\":%d,\"description_bytes\":%lld}\n", version(), status,
              static_cast<long long>(size));
  if (status != 0) return;
  if (FILE* const file = std::fopen(path, "wb")) {
    std::fputs(text.c_str(), file);
    std::fputc('\n', file);
    std::fclose(file);
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    std::printf("{\"no_gpu\":\"%s\"}\n", cudaGetErrorString(status));
    return kSkipped;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 1) describe_card(argv[1]);
  Probe probe;
  probe.card();
  probe.launches();
  probe.graphs();
  probe.completions();
  probe.transfers();
  probe.bandwidth();
}
