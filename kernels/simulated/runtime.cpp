#include "kernels/simulated/runtime.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/cuda/context.h"
#include "kernels/cuda/device.h"
#include "kernels/simulated/enqueued.h"

namespace moonflow::cuda::simulated {

uint64_t Options::seed_of_environment() {
  const char* const said = std::getenv("MOONFLOW_SIMULATED_SEED");
  return said ? std::strtoull(said, nullptr, 10) : 1;
}

Properties SimulatedRuntime::properties(const Options& options) {
  return {"simulated card, its kernels run on the processor", options.capability, 132, options.memory_bytes,
          kMostSharedBytes};
}

SimulatedRuntime::SimulatedRuntime(const Options& options)
    : properties_(properties(options)),
      dice_(options.seed),
      fibers_(options.seed),
      ended_by_(options.ended_by),
      memory_(options.memory_bytes, [this](std::string text) { give_up(std::move(text)); }) {
  entered_.insert(std::this_thread::get_id());
}

SimulatedRuntime::~SimulatedRuntime() = default;

SimulatedRuntime::Queue& SimulatedRuntime::of(StreamHandle stream) { return *reinterpret_cast<Queue*>(stream); }
SimulatedRuntime::Event& SimulatedRuntime::of(EventHandle event) { return *reinterpret_cast<Event*>(event); }

// ---- errors --------------------------------------------------------------------------------------------------

void SimulatedRuntime::check() const {
  if (!failure_.empty()) fail(ErrorCode::Internal, failure_, kContextIsLost);
}

void SimulatedRuntime::give_up(std::string text) {
  if (failure_.empty()) failure_ = std::move(text);
}

SimulatedRuntime::Capture* SimulatedRuntime::capture_of_this_thread() const {
  for (const std::unique_ptr<Queue>& queue : queues_)
    if (queue->capture && queue->capture->thread == std::this_thread::get_id()) return queue->capture.get();
  return nullptr;
}

// What a thread must not do while it captures. Who tries has no graph in the end.
void SimulatedRuntime::refuse_while_capturing(const std::string& what) {
  Capture* const capture = capture_of_this_thread();
  if (!capture) return;
  if (capture->spoilt_by.empty()) capture->spoilt_by = what;
  fail(ErrorCode::Internal, what, " is not permitted while this thread records a graph");
}

void SimulatedRuntime::fail_after(int64_t pieces, std::string text) {
  const Lock lock(mutex_);
  fails_after_ = pieces;
  injected_ = std::move(text);
}

std::vector<std::string> SimulatedRuntime::latest_recording() const {
  const Lock lock(mutex_);
  return latest_recording_;
}

void SimulatedRuntime::check_launch() {
  const Lock lock(mutex_);
  check();
}

// ---- memory --------------------------------------------------------------------------------------------------

int64_t SimulatedRuntime::free_bytes() {
  const Lock lock(mutex_);
  return memory_.free_bytes();
}

void SimulatedRuntime::enter() {
  const Lock lock(mutex_);
  entered_.insert(std::this_thread::get_id());
}

void* SimulatedRuntime::allocate(int64_t bytes) {
  const Lock lock(mutex_);
  check();
  refuse_while_capturing("an allocation");
  return memory_.allocate(bytes);
}

void SimulatedRuntime::free(void* memory) noexcept {
  Lock lock(mutex_);
  const std::optional<Range> block = memory_.block_at(memory);
  if (!block) return give_up("memory is given back that the device has not given, or twice");
  if (capture_of_this_thread()) return give_up("memory is given back while this thread records a graph");
  drain(lock);
  memory_.free(*block);
  accesses_.forget(*block);
}

void* SimulatedRuntime::allocate_staging(int64_t bytes) {
  const Lock lock(mutex_);
  check();
  refuse_while_capturing("an allocation");
  return memory_.allocate_staging(bytes);
}

void SimulatedRuntime::free_staging(void* memory) noexcept {
  Lock lock(mutex_);
  const std::optional<Range> block = memory_.staging_at(memory);
  if (!block) return give_up("staging memory is given back that the device has not given, or twice");
  if (capture_of_this_thread()) return give_up("staging memory is given back while this thread records a graph");
  drain(lock);
  memory_.free_staging(*block);
  accesses_.forget(*block);
}

// ---- streams and events --------------------------------------------------------------------------------------

int SimulatedRuntime::new_line() {
  if (!free_lines_.empty()) {
    const int line = free_lines_.back();
    free_lines_.pop_back();
    return line;
  }
  ticks_.push_back(0);
  return static_cast<int>(ticks_.size()) - 1;
}

StreamHandle SimulatedRuntime::make_stream() {
  const Lock lock(mutex_);
  check();
  queues_.push_back(std::unique_ptr<Queue>(new Queue{*this, ++streams_made_, new_line()}));
  return reinterpret_cast<StreamHandle>(queues_.back().get());
}

void SimulatedRuntime::destroy(StreamHandle stream) noexcept {
  Lock lock(mutex_);
  drain(lock);
  free_lines_.push_back(of(stream).line);
  queues_.erase(std::find_if(queues_.begin(), queues_.end(), [&](const auto& q) { return q.get() == &of(stream); }));
}

EventHandle SimulatedRuntime::make_event() {
  const Lock lock(mutex_);
  check();
  return reinterpret_cast<EventHandle>(new Event);
}

void SimulatedRuntime::destroy(EventHandle event) noexcept {
  const Lock lock(mutex_);
  delete &of(event);
}

void SimulatedRuntime::record(StreamHandle stream, EventHandle event) {
  const Lock lock(mutex_);
  check();
  Queue& queue = of(stream);
  auto mark = std::make_shared<Mark>();
  if (queue.capture) {
    mark->capture = queue.capture;
    mark->nodes = queue.last_nodes;
  } else {
    Item item{Item::Record};
    item.host = host_;
    item.mark = mark;
    queue.items.push_back(std::move(item));
  }
  of(event).latest = std::move(mark);
}

void SimulatedRuntime::wait_for(StreamHandle stream, EventHandle event) {
  const Lock lock(mutex_);
  check();
  Queue& queue = of(stream);
  const std::shared_ptr<Mark> mark = of(event).latest;
  if (!mark) return;  // as CUDA has it
  if (!mark->capture) {
    require(!queue.capture, ErrorCode::Internal,
            "a graph that is being recorded cannot wait for an event outside of it");
    Item item{Item::Wait};
    item.host = host_;
    item.mark = mark;
    queue.items.push_back(std::move(item));
    return;
  }
  require(!mark->capture->ended && (!queue.capture || queue.capture == mark->capture), ErrorCode::Internal,
          queue.name(), " cannot wait for an event of another recording");
  if (!queue.capture) {
    queue.capture = mark->capture;
    queue.capture->branches.push_back(&queue);
  }
  for (const int node : mark->nodes)
    if (std::find(queue.last_nodes.begin(), queue.last_nodes.end(), node) == queue.last_nodes.end())
      queue.last_nodes.push_back(node);
}

bool SimulatedRuntime::done(EventHandle event) {
  synchronize(event);  // so that a schedule does not depend on how often somebody asks
  return true;
}

void SimulatedRuntime::synchronize(EventHandle event) {
  Lock lock(mutex_);
  refuse_while_capturing("a wait of the host");
  const std::shared_ptr<Mark> mark = of(event).latest;
  if (!mark) return check();
  require(!mark->capture, ErrorCode::Internal, "the host cannot wait for an event of a recording");
  run_until(lock, [&] { return mark->done; });
  learn(mark->clock);
}

void SimulatedRuntime::synchronize(StreamHandle stream) {
  Lock lock(mutex_);
  refuse_while_capturing("a wait of the host");
  // What others enqueue meanwhile is not waited for.
  const auto mark = std::make_shared<Mark>();
  Item item{Item::Record};
  item.host = host_;
  item.mark = mark;
  of(stream).items.push_back(std::move(item));
  run_until(lock, [&] { return mark->done; });
  learn(mark->clock);
}

// ---- flags ---------------------------------------------------------------------------------------------------

void SimulatedRuntime::lower(int* flag) {
  const Lock lock(mutex_);
  check();
  *flag = 0;
}

// As with an event, somebody who asks gets to see it, unless it never comes.
bool SimulatedRuntime::raised(const int* flag) {
  Lock lock(mutex_);
  const std::shared_ptr<StagingUse> write = memory_.last_write({flag, sizeof *flag});
  if (!write) return *flag == 1;
  try {
    run_until(lock, [&] { return write->performed; });
  } catch (const Error&) {  // the event tells of it
    return false;
  }
  learn(write->after);
  return *flag == 1;
}

// ---- work ----------------------------------------------------------------------------------------------------

void SimulatedRuntime::touches(StreamHandle stream, const std::vector<Range>& reads, const std::vector<Range>& writes) {
  const Lock lock(mutex_);
  for (const std::vector<Range>* ranges : {&reads, &writes})
    for (const Range& range : *ranges)
      require(memory_.is_known(range), ErrorCode::Internal, "what is to be launched touches ", range.bytes,
              " bytes that are not in one block of the device's memory");
  of(stream).reads = reads;
  of(stream).writes = writes;
}

void SimulatedRuntime::enqueue(StreamHandle stream, Grid grid) {
  simulated::check(grid);
  std::string name = grid.kernel;
  enqueue(stream, std::move(name), [this, grid = std::move(grid)] { fibers_.run(grid); });
}

void SimulatedRuntime::enqueue(StreamHandle stream, std::string name, std::function<void()> work) {
  const Lock lock(mutex_);
  check();
  require(entered_.count(std::this_thread::get_id()) > 0, ErrorCode::Internal, "the launch of ", name,
          " was refused: this thread has not entered the device");
  Queue& queue = of(stream);
  if (!queue.capture)
    loaded_.insert(name);
  else if (loaded_.count(name) == 0)
    refuse_while_capturing(text("the first launch of ", name, ", for which a card has to load it,"));
  add(queue, {std::move(name), std::move(work), queue.reads, queue.writes});
}

void SimulatedRuntime::copy(StreamHandle stream, void* to, const void* from, int64_t bytes) {
  Lock lock(mutex_);
  check();
  const Range target{to, bytes}, source{from, bytes};
  const bool to_host = !memory_.is_known(target), from_host = !memory_.is_known(source);
  if ((to_host || from_host) && of(stream).capture)
    refuse_while_capturing(text("a copy of ", bytes, " bytes with memory of the host that is not staging"));
  const char* const direction = to_host || memory_.is_staging(target)
                                    ? (from_host || memory_.is_staging(source) ? "within the host" : "to the host")
                                : from_host || memory_.is_staging(source) ? "to the device"
                                                                          : "within the device";
  Piece piece{text("a copy of ", bytes, " bytes ", direction), nullptr};
  if (!to_host) piece.writes.push_back(target);
  if (from_host) {
    std::vector<char> kept(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    piece.work = [to, kept = std::move(kept)] { std::memcpy(to, kept.data(), kept.size()); };
  } else {
    piece.reads.push_back(source);
    piece.work = [=] { std::memmove(to, from, bytes); };
  }
  add(of(stream), std::move(piece));
  if (!to_host) return;
  lock.unlock();
  synchronize(stream);
}

void SimulatedRuntime::fill(StreamHandle stream, void* memory, int byte, int64_t bytes) {
  const Lock lock(mutex_);
  check();
  Piece piece{text("a fill of ", bytes, " bytes"), [=] { std::memset(memory, byte, bytes); }};
  piece.writes.push_back({memory, bytes});
  add(of(stream), std::move(piece));
}

void SimulatedRuntime::call(StreamHandle stream, const std::function<void()>& work) {
  const Lock lock(mutex_);
  check();
  Queue& queue = of(stream);
  add(queue, {"a call of the host", [&work] { work(); }, queue.reads, queue.writes});
}

void SimulatedRuntime::add(Queue& queue, Piece piece) {
  piece.name += text(" on ", queue.name());
  if (queue.capture) {
    Capture& capture = *queue.capture;
    const int node = static_cast<int>(capture.nodes.size());
    const auto branch = std::find(capture.branches.begin(), capture.branches.end(), &queue);
    piece.name += ", recorded";
    capture.pieces.push_back(std::move(piece));
    capture.nodes.push_back({std::move(queue.last_nodes), static_cast<int>(branch - capture.branches.begin())});
    queue.last_nodes = {node};
    return;
  }
  Item item{Item::Work};
  item.host = host_;
  item.uses = {memory_.begin_uses(piece.name, piece.reads, piece.writes)};
  item.piece = std::move(piece);
  queue.items.push_back(std::move(item));
}

// ---- graphs --------------------------------------------------------------------------------------------------

void SimulatedRuntime::begin_capture(StreamHandle stream) {
  const Lock lock(mutex_);
  check();
  refuse_while_capturing("another recording");
  Queue& queue = of(stream);
  require(!queue.capture, ErrorCode::Internal, queue.name(), " is being recorded already");
  queue.capture = std::make_shared<Capture>();
  queue.capture->thread = std::this_thread::get_id();
  queue.capture->branches.assign(1, &queue);
}

GraphHandle SimulatedRuntime::end_capture(StreamHandle stream) {
  const Lock lock(mutex_);
  const std::shared_ptr<Capture> capture = of(stream).capture;
  require(capture && capture->branches[0] == &of(stream), ErrorCode::Internal, of(stream).name(),
          " is not one whose recording was begun");
  std::vector<int> joined = of(stream).last_nodes;
  capture->ended = true;
  for (Queue* const branch : capture->branches) {
    branch->capture = nullptr;
    branch->last_nodes.clear();
  }
  check();
  require(capture->spoilt_by.empty(), ErrorCode::Internal, "the recording gives no graph, since this was refused: ",
          capture->spoilt_by);
  std::vector<bool> seen(capture->nodes.size(), false);
  while (!joined.empty()) {
    const int node = joined.back();
    joined.pop_back();
    if (seen[node]) continue;
    seen[node] = true;
    joined.insert(joined.end(), capture->nodes[node].after.begin(), capture->nodes[node].after.end());
  }
  for (size_t node = 0; node < seen.size(); ++node)
    require(seen[node], ErrorCode::Internal, "the recording ends and nothing waits for ", capture->pieces[node].name);
  auto graph = std::make_shared<Graph>();
  latest_recording_.clear();
  for (const Piece& piece : capture->pieces) latest_recording_.push_back(piece.name);
  graph->pieces = std::move(capture->pieces);
  graph->nodes = std::move(capture->nodes);
  graph->lines.push_back(-1);
  for (size_t branch = 1; branch < capture->branches.size(); ++branch) graph->lines.push_back(new_line());
  return reinterpret_cast<GraphHandle>(new std::shared_ptr<Graph>(std::move(graph)));
}

void SimulatedRuntime::launch(StreamHandle stream, GraphHandle handle) {
  const Lock lock(mutex_);
  check();
  Queue& queue = of(stream);
  require(!queue.capture, ErrorCode::Internal, "a graph cannot be started while another is recorded");
  const std::shared_ptr<Graph>& graph = *reinterpret_cast<std::shared_ptr<Graph>*>(handle);
  Item item{Item::Start};
  item.host = host_;
  item.graph = graph;
  item.before = graph->last_start;
  item.mark = graph->last_start = std::make_shared<Mark>();
  for (const Piece& piece : graph->pieces)
    item.uses.push_back(memory_.begin_uses(piece.name, piece.reads, piece.writes));
  queue.items.push_back(std::move(item));
}

void SimulatedRuntime::destroy(GraphHandle handle) noexcept {
  const Lock lock(mutex_);
  delete reinterpret_cast<std::shared_ptr<Graph>*>(handle);
}

// ---- what kernels are launched by ----------------------------------------------------------------------------

void enqueue(moonflow::Stream& stream, Grid grid) {
  SimulatedRuntime::of_stream(native(stream)).enqueue(native(stream), std::move(grid));
  check_launch(stream);
}

void enqueue(moonflow::Stream& stream, std::string name, std::function<void()> work) {
  SimulatedRuntime::of_stream(native(stream)).enqueue(native(stream), std::move(name), std::move(work));
  check_launch(stream);
}

SimulatedRuntime& SimulatedRuntime::of_stream(StreamHandle stream) { return of(stream).runtime; }

}  // namespace moonflow::cuda::simulated
