// The loss of labels that lie somewhere along a sequence, and its gradient, on CUDA. A block has a row of the batch and
// goes from step to step; a thread has every 128th label with the blank before it. The ways lie in shared memory as
// long as they fit. Lengths and labels are checked as they are read: a bad one is noted, and the run ends with the
// error.
#include "kernels/ctc.h"

#include "kernels/cuda/indices.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

using ctc::Chance;

// The ways of a step: labels are one place on, so that there is one before the first, where nobody ever is.
struct Ways {
  Chance *label, *blank;
};

// What the threads of a block share: the ways of two steps, the shares of one, and of each label the next place that
// has it too (or -1), and whether none before has it, and it is not the blank.
struct Room {
  unsigned char* memory;
  int places;  // one more than labels

  static constexpr int64_t kBytesOfPlace = 4 * sizeof(Chance) + sizeof(double) + 4 * sizeof(int32_t);
  static int64_t bytes(int64_t labels) { return kBytesOfPlace * (labels + 1); }

  MOONFLOW_DEVICE Ways ways(int i) const {
    Chance* const chances = reinterpret_cast<Chance*>(memory) + 2 * i * places;
    return {chances, chances + places};
  }
  MOONFLOW_DEVICE double* shares() const { return reinterpret_cast<double*>(ways(2).label); }
  MOONFLOW_DEVICE int32_t* labels() const { return reinterpret_cast<int32_t*>(shares() + places); }
  MOONFLOW_DEVICE int32_t* next() const { return labels() + places; }
  MOONFLOW_DEVICE int32_t* is_first() const { return next() + places; }
};

template <class T>
struct KeptChance {
  T part, power;
  MOONFLOW_DEVICE operator Chance() const { return {static_cast<double>(part), static_cast<double>(power)}; }
};

template <class T>
struct CtcLoss {
  static constexpr int kThreads = 128;

  ctc::Sizes of;
  const T *input, *dy;  // dy, loss and dinput may be nullptr
  Indices target, input_lengths, target_lengths;
  T *loss, *dinput;
  KeptChance<T>* kept;    // of all rows, where there is a gradient
  unsigned char* memory;  // nullptr: the room is in shared memory

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t row = block.index();
    const int thread = block.thread();
    const int steps = static_cast<int>(checked(block, input_lengths, row, of.place_of_steps(row)));
    const int count = static_cast<int>(checked(block, target_lengths, row, of.place_of_labels(row)));
    if (steps < 0 || count < 0) return;  // the whole block
    const Room room{
        memory ? memory + row * Room::kBytesOfPlace * (of.labels + 1) : block.template shared<unsigned char>(),
        static_cast<int>(of.labels) + 1};
    for (int i = thread; i < count; i += kThreads) {
      const int64_t place = row * of.labels + i, label = checked(block, target, place, place);
      room.labels()[i] = static_cast<int32_t>(label < 0 ? of.blank : label);
    }

    const T* const x = input + row * of.steps * of.classes;
    KeptChance<T>* const own_kept = kept ? kept + row * of.steps * kept_of_step() : nullptr;
    begin(block, room, count);
    for (int t = 0; t < steps; ++t)
      step(block, room, count, x + t * of.classes, own_kept ? own_kept + t * kept_of_step() : nullptr, false, t % 2);
    const Ways last = room.ways(steps % 2);
    const Chance all = ctc::sum(last.label[count], last.blank[count]);
    if (loss && thread == 0) loss[row] = static_cast<T>(of.loss(all));
    if (!dinput) return;

    T* const dx = dinput + row * of.steps * of.classes;
    for (int64_t i = thread; i < of.steps * of.classes; i += kThreads) dx[i] = 0;
    if (all.part == 0) return;  // without a way there is no gradient
    Chance slope = ctc::inverse(all);
    slope.part *= -static_cast<double>(dy[row]);
    find_alike(room, count, thread);
    block.sync();  // before the ways are written over
    begin(block, room, count);
    for (int t = steps - 1; t >= 0; --t) {
      const int from = (steps - 1 - t) % 2;
      step(block, room, count, x + t * of.classes, nullptr, true, from);
      spread(block, room, count, own_kept + t * kept_of_step(), room.ways(1 - from), slope, dx + t * of.classes);
    }
  }

 private:
  MOONFLOW_DEVICE int64_t kept_of_step() const { return 2 * of.labels + 1; }

  // -1 where it is outside of its bound, which is noted.
  template <class Block>
  MOONFLOW_DEVICE int64_t checked(const Block& block, const Indices& indices, int64_t i, int64_t place) const {
    const int64_t value = indices.at(i);
    if (value >= 0 && value < indices.bound) return value;
    note_fault(block, indices.note, indices.step, place, value);
    return -1;
  }

  template <class Block>
  MOONFLOW_DEVICE void begin(const Block& block, const Room& room, int count) const {
    for (int i = block.thread(); i <= count; i += kThreads) {
      room.ways(0).label[i] = ctc::kNever;
      room.ways(0).blank[i] = i == 0 ? ctc::kCertain : ctc::kNever;
      if (i == 0) room.ways(1).label[0] = ctc::kNever;
    }
    block.sync();
  }

  // One step on, or back with the labels from the last to the first. `keep`, where it is given, gets what comes
  // together at each place before the step itself counts: blanks, then labels. `which` says where the ways are; then
  // they are in the other place.
  template <class Block>
  MOONFLOW_DEVICE void step(const Block& block, const Room& room, int count, const T* x, KeptChance<T>* keep,
                            bool is_back, int which) const {
    const Ways from = room.ways(which), to = room.ways(1 - which);
    const Chance said_blank = ctc::chance_of(static_cast<double>(x[of.blank]));
    for (int i = block.thread(); i <= count; i += kThreads) {
      const Chance before = from.label[i], blank = from.blank[i], at_blank = ctc::sum(blank, before);
      to.blank[i] = ctc::product(at_blank, said_blank);
      if (keep) keep[i] = rounded(at_blank);
      if (i == count) continue;
      const int32_t label = room.labels()[is_back ? count - 1 - i : i];
      bool skips = i > 0;
      if (skips) {
        const int32_t other = room.labels()[is_back ? count - i : i - 1];
        skips = is_back ? ctc::follows_at_once(other, label, of.blank) : ctc::follows_at_once(label, other, of.blank);
      }
      const Chance at_label = ctc::sum(from.label[i + 1], blank, ctc::only_if(skips, before));
      to.label[i + 1] = ctc::product(at_label, ctc::chance_of(static_cast<double>(x[label])));
      if (keep) keep[of.labels + 1 + i] = rounded(at_label);
    }
    block.sync();
  }

  // Links the places of each label, so that one thread adds up their shares.
  MOONFLOW_DEVICE void find_alike(const Room& room, int count, int thread) const {
    for (int i = thread; i < count; i += kThreads) {
      const int32_t label = room.labels()[i];
      int before = i - 1, behind = i + 1;
      while (before >= 0 && room.labels()[before] != label) --before;
      while (behind < count && room.labels()[behind] != label) ++behind;
      room.is_first()[i] = before < 0 && label != of.blank;
      room.next()[i] = behind < count ? behind : -1;
    }
  }

  // `slope` times the share of all ways that goes by each class at a step: what comes together there from before, and
  // from behind with the step itself.
  template <class Block>
  MOONFLOW_DEVICE void spread(const Block& block, const Room& room, int count, const KeptChance<T>* before,
                              const Ways& behind, Chance slope, T* dx) const {
    double of_blank = 0;
    for (int i = block.thread(); i <= count; i += kThreads) {
      of_blank += ctc::share(before[i], behind.blank[count - i], slope);
      if (i == count) continue;
      room.shares()[i] = ctc::share(before[of.labels + 1 + i], behind.label[count - i], slope);
      if (room.labels()[i] == of.blank) of_blank += room.shares()[i];
    }
    of_blank = over_block(block, of_blank, Sum());
    if (block.thread() == 0) dx[of.blank] = static_cast<T>(of_blank);
    for (int i = block.thread(); i < count; i += kThreads) {
      if (!room.is_first()[i]) continue;
      double sum = 0;
      for (int place = i; place >= 0; place = room.next()[place]) sum += room.shares()[place];
      dx[room.labels()[i]] = static_cast<T>(sum);
    }
  }

  static MOONFLOW_DEVICE KeptChance<T> rounded(Chance a) { return {static_cast<T>(a.part), static_cast<T>(a.power)}; }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// Which input is dy, and which output what; -1 where there is none. The loss's inputs begin at `input`.
struct Places {
  int input, dy, loss, dinput;
};

Launch prepare(KernelCall& call, Places places) {
  const ctc::Sizes of(call, places.input);
  const auto dtype = [&](int i) { return call.inputs[places.input + i].dtype; };
  const DType of_target = dtype(1), of_steps = dtype(2), of_labels = dtype(3);
  call.explain = [of](int64_t place, int64_t value) { of.fail_at(place, value); };
  if (of.batch == 0) return [](const LaunchCall&) {};
  return visit_floating(dtype(0), [&](auto zero) -> Launch {
    using T = decltype(zero);
    using Kernel = CtcLoss<T>;
    constexpr int64_t kMostShared = 40 << 10;  // of a block, so that a processor has room for several
    const int64_t room = Room::bytes(of.labels), shared = room <= kMostShared ? room : 0;
    const int64_t in_memory = shared > 0 ? 0 : checked_product(of.batch, room);
    const int64_t kept = checked_product(of.batch, checked_product(of.steps, 2 * of.labels + 1));
    const bool has_gradient = places.dinput >= 0;
    call.scratch_bytes = in_memory + (has_gradient ? checked_product(kept, sizeof(KeptChance<T>)) : 0);
    return [=](const LaunchCall& at) {
      unsigned char* const memory = static_cast<unsigned char*>(at.scratch);
      const auto indices = [&](int i, DType dtype, int64_t bound) {
        return Indices(at, places.input + i, dtype, bound);
      };
      launch(at.stream, of.batch,
             Kernel{of, at.input<T>(places.input), places.dy >= 0 ? at.input<T>(places.dy) : nullptr,
                    indices(1, of_target, of.classes), indices(2, of_steps, of.steps + 1),
                    indices(3, of_labels, of.labels + 1), places.loss >= 0 ? at.output<T>(places.loss) : nullptr,
                    has_gradient ? at.output<T>(places.dinput) : nullptr,
                    has_gradient ? reinterpret_cast<KeptChance<T>*>(memory + in_memory) : nullptr,
                    shared > 0 ? nullptr : memory},
             shared);
    };
  });
}

}  // namespace

void add_ctc(Kernels& kernels) {
  const auto add = [&](const char* op, Places places) {
    kernels[op] = {{[places](KernelCall& call) { return prepare(call, places); }}};
  };
  add("ctc_loss", {0, -1, 0, -1});
  add("ctc_loss_grad", {1, 0, -1, 0});
  add("ctc_loss_and_grad", {0, 4, 0, 1});
}

}  // namespace moonflow::cuda
