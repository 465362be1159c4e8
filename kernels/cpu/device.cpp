#include "kernels/cpu/device.h"

#include <omp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "engine/recycling_memory.h"
#include "engine/size_text.h"
#include "kernels/catalog.h"
#include "kernels/cpu/blocked.h"
#include "kernels/cpu/box.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/conv_quantized.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/matmul_quantized.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/simd.h"

namespace moonflow {
namespace cpu {
namespace {

// Everything a launch enqueues is done when it returns, so there is nothing to wait for.
class CpuStream : public Stream {
 public:
  explicit CpuStream(const dnnl::engine& engine) : stream(engine) {}
  void wait() override {}

  dnnl::stream stream;
};

void copy_bytes(void* to, const void* from, int64_t bytes) {
  parallel_for(bytes, 8 * kGrain, [=](int64_t first, int64_t last) {
    std::memcpy(static_cast<char*>(to) + first, static_cast<const char*>(from) + first, last - first);
  });
}

// Asks for large pages inside of a block, which Linux gives to those who ask. A matrix whose rows lie kilobytes apart
// otherwise costs an entry of the TLB per row. A wish: where it is not granted, nothing is lost.
void prefer_large_pages(void* memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kLargePage = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(memory), end = begin + bytes;
  const uintptr_t first = (begin + kLargePage - 1) / kLargePage * kLargePage, last = end / kLargePage * kLargePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

// Whether the system has so much for the process now, which a limit of its address space (`ulimit -v`) may forbid.
bool is_room(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  munmap(memory, bytes);
  return true;
}

// An error that says what there is at most: a limit of the process below what the machine has, or that.
[[noreturn]] void fail_for_want_of(int64_t bytes, const char* purpose) {
  const int64_t machine = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  rlimit limit{};
  const bool is_limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(machine);
  if (is_limited)
    fail(ErrorCode::OutOfMemory, "no room for ", size_text(bytes), purpose, " on the cpu: the address space of the ",
         "process is limited to ", size_text(static_cast<int64_t>(limit.rlim_cur)), ", by ulimit -v or LimitAS=");
  fail(ErrorCode::OutOfMemory, "no room for ", size_text(bytes), purpose, " on the cpu, where the machine has ",
       size_text(machine), " in all");
}

// libgomp gives the threads of a loop back to the next one, and in a fork waits for them for ever, since there are
// none. So whoever forks first lets go of its own; the next loop makes new ones, here as there.
void leave_no_thread_to_forks() {
  [[maybe_unused]] static const int once =
      pthread_atfork([] { omp_pause_resource_all(omp_pause_soft); }, nullptr, nullptr);
}

// How many of so many threads there can be now, this one among them. Where the system gives libgomp none, that ends the
// process; so it is asked for no more.
int obtainable(int wanted) {
  std::vector<std::thread> others;
  std::mutex gate;
  {
    const std::lock_guard<std::mutex> closed(gate);  // so that all of them live at once
    try {
      for (int i = 1; i < wanted; ++i) others.emplace_back([&] { const std::lock_guard<std::mutex> passed(gate); });
    } catch (const std::exception&) {
      // It has given what it has.
    }
  }
  for (std::thread& other : others) other.join();
  const int all = 1 + static_cast<int>(others.size());
  return all == wanted ? wanted : std::max(1, all / 2);  // what is left is for others who come later
}

std::string_view simd_limit() {
  const char* const wanted = std::getenv("MOONFLOW_SIMD");
  return wanted ? wanted : "";
}

// Known to every build, whatever its processors have: a limit is an upper one.
void check_simd_limit() {
  const std::string_view limit = simd_limit();
  require(limit.empty() || limit == "plain" || limit == "avx2" || limit == "avx512", ErrorCode::InvalidArgument,
          "the environment variable MOONFLOW_SIMD is '", limit, "', wanted plain, avx2 or avx512");
}

class CpuDevice : public Device {
 public:
  CpuDevice(int threads, std::shared_ptr<HostMemory> memory, bool real_time)
      : engine(dnnl::engine::kind::cpu, 0),
        real_time(real_time),
        memory_(memory ? std::move(memory) : std::make_shared<HostMemory>()) {
    leave_no_thread_to_forks();
    check_simd_limit();
    const int available = std::min({omp_get_num_procs(), omp_get_max_threads(), omp_get_thread_limit()});
    // More threads than cores only slow each other down, but a caller who asks for them gets them (tests do).
    threads_ = std::max(1, threads > 0 ? std::min(threads, omp_get_thread_limit()) : available);
    if (omp_get_max_active_levels() == 0) threads_ = 1;  // no loop has more
    threads_ = obtainable(threads_);
    enter();
  }

  DeviceKind kind() const override { return DeviceKind::Cpu; }

  std::string describe() const override {
    const dnnl_version_t* version = dnnl_version();
    return text("cpu, ", threads_, threads_ == 1 ? " thread" : " threads", ", oneDNN ", version->major, ".",
                version->minor, ".", version->patch);
  }

  std::string describe(const Layout& layout) const override;
  Layout reshaped(const TensorType& type, const Layout& layout, const TensorType& to) const override;

  // oneDNN and parallel_for both ask OpenMP, which keeps the count per thread. There must not be fewer than that: a
  // primitive has divided its work among so many when it was made, and each waits for the others.
  void enter() override {
    if (omp_get_max_threads() != threads_) omp_set_num_threads(threads_);
    if (omp_get_dynamic() != 0) omp_set_dynamic(0);
  }

  // libgomp's threads hardly spin when there are more than cores, and those a thread has used count until it gives them
  // back: beside them the loops of another thread wait for each other with the kernel's help, three times as long.
  void rest() noexcept override { omp_pause_resource_all(omp_pause_soft); }

  void* allocate(int64_t bytes) override {
    // Zeroing touches every page; more than the machine has would end the process instead of this call.
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    const bool fits = bytes >= 0 && (pages <= 0 || bytes / page_bytes < pages);
    const size_t rounded = fits ? (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment : 0;
    void* memory = fits ? memory_->allocate(rounded) : nullptr;
    if (!memory) fail_for_want_of(bytes, "");
    prefer_large_pages(memory, rounded);  // before the first touch, which is what gets them
    parallel_for(static_cast<int64_t>(rounded), 8 * kGrain, [=](int64_t first, int64_t last) {
      std::memset(static_cast<char*>(memory) + first, 0, static_cast<size_t>(last - first));
    });
    return memory;
  }

  void free(void* memory) noexcept override { memory_->release(memory); }

  // A primitive takes a few blocks of 256 KiB, and up to some megabytes.
  void require_room_for_code() {
    constexpr int64_t kCode = int64_t{8} << 20;
    if (is_room(kCode)) return;
    if (auto* recycling = dynamic_cast<RecyclingMemory*>(memory_.get())) recycling->drop_spare();
    if (!is_room(kCode)) fail_for_want_of(kCode, " of oneDNN's code");
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(engine); }

  void copy(Stream&, void* to, const void* from, int64_t bytes) override { copy_bytes(to, from, bytes); }

  Launch reorder(const TensorType& type, const Layout& from, const Layout& to) override;

  const dnnl::engine engine;
  const bool real_time;

 private:
  Launch reorder_primitive(const Blocked& from, const Blocked& to, const TensorType& type);

  std::shared_ptr<HostMemory> memory_;
  int threads_ = 1;
};

Layout CpuDevice::reshaped(const TensorType& type, const Layout& layout, const TensorType& to) const {
  return is_blocked(layout) ? cpu::reshaped_image(type, layout, to) : Layout{};
}

// In rows where the layout is row-major, of the axes that the other side has: a form may split one (grouped filters),
// and rows are the same memory under either shape.
Blocked form_beside(const TensorType& type, const Layout& layout, const Layout& other) {
  if (!layout.row_major() || other.row_major()) return blocked(type, layout);
  const Blocked like = blocked(type, other);
  return Blocked::row_major({like.dims.begin(), like.dims.begin() + like.rank});
}

Launch CpuDevice::reorder(const TensorType& type, const Layout& from, const Layout& to) {
  if (from == to) {
    const int64_t bytes = from.bytes_of(type);
    return [bytes](const LaunchCall& call) { copy_bytes(call.outputs[0], call.inputs[0], bytes); };
  }
  if (is_winograd_filter(to) || is_quantized(to) || is_quantized_filter(to)) {
    require(from.row_major(), ErrorCode::Unsupported, "such a form of a weight is made of rows");
    return is_quantized_filter(to) ? quantized_filter(to) : is_quantized(to) ? quantizer(to) : winograd_filter(to);
  }
  const Blocked source = form_beside(type, from, to), target = form_beside(type, to, from);
  const bool is_simple = !source.is_padded() && !target.is_padded() && source.block_count + target.block_count < 2;
  if (!is_simple && !real_time) {
    try {
      return reorder_primitive(source, target, type);
    } catch (const dnnl::error&) {  // of forms that only we have
    }
  }
  const std::optional<std::vector<Box>> boxes = reorder_boxes(source, target);
  require(boxes.has_value(), ErrorCode::Unsupported, "no way from ", source.name(), " to ", target.name(),
          " in memory");
  std::vector<BoxCopy> copies;
  for (const Box& box : *boxes) copies.emplace_back(size_of(type.dtype), box);
  const int64_t padded_bytes = target.is_padded() ? to.bytes : 0;
  return [copies, padded_bytes](const LaunchCall& call) {
    if (padded_bytes > 0) std::memset(call.outputs[0], 0, padded_bytes);
    for (const BoxCopy& copy : copies) copy.run(call.outputs[0], call.inputs[0]);
  };
}

// Faster than copies where blocks are turned over or filled up.
Launch CpuDevice::reorder_primitive(const Blocked& from, const Blocked& to, const TensorType& type) {
  const ThreadLimit limit(cpu::threads_for(static_cast<double>(type.shape.count()), kGrain));
  const dnnl::memory::desc source = descriptor(from, dnnl_type(type.dtype));
  const dnnl::memory::desc target = descriptor(to, dnnl_type(type.dtype));
  const dnnl::reorder::primitive_desc desc(engine, source, engine, target, user_scratchpad());

  // Owned by the launch, and shared because a std::function must be copyable.
  auto bound = std::make_shared<Bound>(generated<dnnl::reorder>(desc, *this), *this);
  const int source_index = bound->add(DNNL_ARG_FROM, source), target_index = bound->add(DNNL_ARG_TO, target);
  auto scratch = std::make_shared<Buffer>(*this, static_cast<int64_t>(desc.scratchpad_desc().get_size()));
  bound->set(bound->add(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()), scratch->data());
  return [bound, scratch, source_index, target_index](const LaunchCall& call) {
    bound->set(source_index, call.inputs[0]);
    bound->set(target_index, call.outputs[0]);
    bound->execute(call.stream);
  };
}

std::string CpuDevice::describe(const Layout& layout) const {
  if (layout.row_major()) return "rows";
  if (is_winograd_filter(layout)) return "winograd";
  if (is_quantized(layout) || is_quantized_filter(layout)) return "8 bits";
  return is_blocked(layout) ? blocked({}, layout).name() : "private";
}

}  // namespace

int threads() { return omp_get_max_threads(); }

int64_t first_cache_bytes() {
  static const int64_t bytes = [] {
    int64_t told = 0;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    told = sysconf(_SC_LEVEL1_DCACHE_SIZE);
#endif
    return told > 0 ? told : 32 << 10;
  }();
  return bytes;
}

Simd simd() {
  static const Simd chosen = [] {
    const std::string_view limit = simd_limit();
    if (limit == "plain") return Simd::Plain;
#ifdef MOONFLOW_SIMULATED_AVX512
    return limit == "avx2" ? Simd::Avx2 : Simd::Avx512;
#elif defined(__x86_64__)
    if (limit != "avx2" && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      return Simd::Avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Simd::Avx2;
#endif
    return Simd::Plain;
  }();
  return chosen;
}

bool has_tiles() {
  static const bool has = [] {
    if (simd() != Simd::Avx512 || simd_limit() == "avx512") return false;
#if defined(MOONFLOW_SIMULATED_AVX512)
    return true;
#elif defined(__x86_64__) && defined(__linux__)
    // Their state is large, so Linux saves it for those processes alone that have asked.
    constexpr int kRequest = 0x1023, kTiles = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("amx-bf16") &&
           syscall(SYS_arch_prctl, kRequest, kTiles) == 0;
#else
    return false;
#endif
  }();
  return has;
}

bool has_byte_products() {
#ifdef MOONFLOW_SIMD_VERSIONS
  static const bool has = simd() == Simd::Avx512 && __builtin_cpu_supports("avx512vnni");
  return has;
#else
  return false;
#endif
}

ThreadLimit::ThreadLimit(int threads) { omp_set_num_threads(threads); }

const dnnl::engine& dnnl_engine(Device& device) {
  auto& cpu = static_cast<CpuDevice&>(device);
  if (cpu.real_time) throw dnnl::error(dnnl_unimplemented, "a primitive is not fit for real time");
  return cpu.engine;
}
void require_room_for_code(Device& device) { static_cast<CpuDevice&>(device).require_room_for_code(); }
dnnl::stream& dnnl_stream(Stream& stream) { return static_cast<CpuStream&>(stream).stream; }

}  // namespace cpu

KeptThreads::KeptThreads() : threads_(omp_get_max_threads()), dynamic_(omp_get_dynamic()) {}

KeptThreads::~KeptThreads() {
  if (omp_get_max_threads() != threads_) omp_set_num_threads(threads_);
  if (omp_get_dynamic() != dynamic_) omp_set_dynamic(dynamic_);
}

std::vector<const char*> cpu_features() {
  std::vector<const char*> features;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) features.push_back("avx2");
  if (__builtin_cpu_supports("avx512f")) features.push_back("avx512f");
  if (__builtin_cpu_supports("avx512bf16")) features.push_back("avx512_bf16");
  if (__builtin_cpu_supports("amx-tile")) features.push_back("amx");
#elif defined(__aarch64__)
  features.push_back("neon");  // which each has
#endif
  return features;
}

std::unique_ptr<Device> make_cpu_device(int threads, std::shared_ptr<HostMemory> memory) {
  return std::make_unique<cpu::CpuDevice>(threads, std::move(memory), false);
}

std::unique_ptr<Device> make_real_time_cpu_device(std::shared_ptr<HostMemory> memory) {
  return std::make_unique<cpu::CpuDevice>(1, std::move(memory), true);
}

}  // namespace moonflow
