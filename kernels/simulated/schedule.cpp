// In which order a simulated card does what is enqueued.
#include <algorithm>

#include "kernels/simulated/enqueued.h"

namespace moonflow::cuda::simulated {

void SimulatedRuntime::learn(const Clock& clock) {
  host_.join(clock);
  memory_.end_uses(host_);
}

void SimulatedRuntime::run_until(Lock& lock, const std::function<bool()>& reached) {
  check();
  if (reached()) return;
  // Some waits are served in no order at all; others have favourites, so that a stream may run far ahead of one that
  // nobody favours, or lag behind all the others.
  const uint64_t mood = dice_();
  memory_.open();
  // Others may enqueue meanwhile. Where the machine has other work, each yield lasts, so it is not done at every step.
  constexpr int kStepsInARow = 8;
  for (int steps = 1; failure_.empty() && !reached(); ++steps) {
    if (!step(mood)) give_up("the host waits for what can never happen");
    lock.unlock();
    if (steps % kStepsInARow == 0) std::this_thread::yield();
    lock.lock();
  }
  memory_.close();
  check();
}

void SimulatedRuntime::drain(Lock& lock) noexcept {
  const auto idle = [&] {
    return std::all_of(queues_.begin(), queues_.end(), [](const auto& queue) { return queue->items.empty(); });
  };
  try {
    if (failure_.empty()) run_until(lock, idle);
  } catch (const Error&) {  // whoever asks next is told
  }
}

bool SimulatedRuntime::step(uint64_t mood) {
  std::vector<Queue*> able;
  for (const std::unique_ptr<Queue>& queue : queues_)
    if (can_go_on(*queue)) able.push_back(queue.get());
  if (able.empty()) return false;
  Queue* chosen = able[dice_.below(static_cast<int64_t>(able.size()))];
  const auto favour = [mood](const Queue* queue) { return (mood ^ queue->number) * 0x9e3779b97f4a7c15u >> 7; };
  if (mood % 2 == 0)
    chosen = *std::max_element(able.begin(), able.end(), [&](auto* a, auto* b) { return favour(a) < favour(b); });
  go_on(*chosen);
  return true;
}

bool SimulatedRuntime::can_go_on(const Queue& queue) const {
  if (queue.items.empty()) return false;
  const Item& item = queue.items.front();
  if (item.kind == Item::Wait) return item.mark->done;
  if (item.kind == Item::Start) return item.begun || !item.before || item.before->done;
  return true;
}

void SimulatedRuntime::go_on(Queue& queue) {
  Item& item = queue.items.front();
  switch (item.kind) {
    case Item::Work: {
      queue.clock.join(item.host);
      perform(item.piece, item.uses[0], queue.line, queue.clock);
      break;
    }
    case Item::Record:
      queue.clock.join(item.host);
      item.mark->clock = queue.clock;
      item.mark->done = true;
      break;
    case Item::Wait:
      queue.clock.join(item.host);
      queue.clock.join(item.mark->clock);
      break;
    case Item::Start:
      if (!go_on(queue, item)) return;
      break;
  }
  if (failure_.empty()) queue.items.pop_front();
}

// One node of a graph. Whether it was the last.
bool SimulatedRuntime::go_on(Queue& queue, Item& item) {
  const std::vector<Node>& nodes = item.graph->nodes;
  if (!item.begun) {
    queue.clock.join(item.host);
    if (item.before) queue.clock.join(item.before->clock);
    item.begun = true;
    item.left = static_cast<int>(nodes.size());
    item.after.resize(nodes.size());
    for (const Node& node : nodes) {
      item.missing.push_back(static_cast<int>(node.after.size()));
      if (node.after.empty()) item.ready.push_back(static_cast<int>(item.missing.size()) - 1);
    }
  }
  if (item.left > 0) {
    const auto pick = item.ready.begin() + dice_.below(static_cast<int64_t>(item.ready.size()));
    const int at = *pick;
    item.ready.erase(pick);
    Clock clock = queue.clock;
    for (const int before : nodes[at].after) clock.join(item.after[before]);
    const int branch = nodes[at].branch;
    perform(item.graph->pieces[at], item.uses[at], branch == 0 ? queue.line : item.graph->lines[branch], clock);
    item.after[at] = std::move(clock);
    for (size_t next = 0; next < nodes.size(); ++next)
      for (const int before : nodes[next].after)
        if (before == at && --item.missing[next] == 0) item.ready.push_back(static_cast<int>(next));
    --item.left;
  }
  if (item.left > 0) return false;
  for (const Clock& after : item.after) queue.clock.join(after);
  item.mark->clock = queue.clock;
  item.mark->done = true;
  return true;
}

// `clock` is what the piece knows to be done; afterwards it knows itself.
void SimulatedRuntime::perform(const Piece& piece, const Uses& uses, int line, Clock& clock) {
  if (fails_after_ >= 0 && fails_after_-- == 0) return give_up(injected_);
  if (const char* const end = ended_by_ ? ended_by_->load() : nullptr) return give_up(end);
  const Moment moment{line, ++ticks_[line], std::make_shared<const std::string>(piece.name)};
  for (const std::vector<Range>* ranges : {&piece.reads, &piece.writes})
    for (const Range& range : *ranges)
      if (!memory_.is_known(range))
        return give_up(text(piece.name, " touches ", range.bytes, " bytes that are no memory of the device any more"));
  if (const std::optional<std::string> wrong = accesses_.note(moment, clock, piece.reads, piece.writes))
    return give_up(*wrong);
  for (const std::shared_ptr<StagingUse>& use : uses)
    if (!memory_.unchanged(*use)) return;
  clock.set(line, moment.tick);
  memory_.perform(piece.name, piece.reads, piece.writes, piece.work);
  for (const std::shared_ptr<StagingUse>& use : uses) {
    use->moment = moment;
    use->after = clock;
    use->performed = true;
  }
}

}  // namespace moonflow::cuda::simulated
