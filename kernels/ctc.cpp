// The loss of labels that lie somewhere along a sequence, and its gradient. Both are one pass over a row's steps for
// the loss, and one back for the gradient; where the gradient does not depend on the loss, one op does both, and the
// ways that lie between never leave a thread's scratch. Lengths and labels are checked, all of them, before anything is
// written.
#include "kernels/ctc.h"

#include <algorithm>

#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using ctc::Chance;

// ---- meaning -------------------------------------------------------------------------------------------------

// (input, target, input_lengths, target_lengths), the first of which is the op's input `first` -> (batch)
TensorType infer_loss(const OpCall& call, int first) {
  require_floating(call, first, "input");
  const TensorType &input = call.type(first), &target = call.type(first + 1);
  require(input.shape.rank() == 3, ErrorCode::ShapeMismatch, "input is ", input, ", wanted (batch, steps, classes)");
  const int64_t batch = input.shape[0], classes = input.shape[2], blank = call.attrs.integer("blank");
  require_indices(call, first + 1, "target");
  require(target.shape.rank() == 2 && target.shape[0] == batch, ErrorCode::ShapeMismatch, "target is ", target,
          ", wanted (", batch, ", labels) beside input ", input);
  for (const int i : {2, 3}) {
    const char* const name = i == 2 ? "input_lengths" : "target_lengths";
    require_indices(call, first + i, name);
    require(call.shape(first + i) == Shape{batch}, ErrorCode::ShapeMismatch, name, " is ", call.type(first + i),
            ", wanted (", batch, ")");
  }
  require(blank >= 0 && blank < classes, ErrorCode::InvalidArgument, "blank must be one of the ", classes,
          " classes, from 0 on, got ", blank);
  return {input.dtype, {batch}};
}

// A loss and its gradient, one pass in the place of three.
constexpr const char* kFused = "ctc_loss_and_grad";

bool fuse_loss_and_grad(Rewriter& graph, NodeId id) {
  const Node& loss = graph.node(id);
  for (const NodeId grad_id : graph.readers(loss.inputs[0])) {
    const Node& grad = graph.node(grad_id);
    if (grad.op->name != "ctc_loss_grad" ||
        !std::equal(loss.inputs.begin(), loss.inputs.end(), grad.inputs.begin() + 1))
      continue;
    const ValueId dy = grad.inputs[0];
    if (grad.attrs.integer("blank") != loss.attrs.integer("blank") || follows_from(graph, dy, id)) continue;
    std::vector<ValueId> inputs = loss.inputs;
    inputs.push_back(dy);
    graph.fuse({id, grad_id}, kFused, std::move(inputs), loss.attrs, {loss.outputs[0], grad.outputs[0]});
    return true;
  }
  return false;
}

// ---- CPU -----------------------------------------------------------------------------------------------------

// Chances side by side.
template <class T>
struct Line {
  T *part, *power;

  // Takes the room for `count` of them.
  static Line in(T*& room, int64_t count) {
    const Line line{room, room + count};
    room += 2 * count;
    return line;
  }
  Chance at(int64_t i) const { return {part[i], power[i]}; }
  void set(int64_t i, Chance a) const {
    part[i] = static_cast<T>(a.part);
    power[i] = static_cast<T>(a.power);
  }
};

// At labels and at blanks.
template <class T>
struct Ways {
  Line<T> label, blank;
};

// What came together at each place of a step before the step itself counted, for the way back. It is rounded to the
// dtype of the op: a share has no more digits.
template <class T>
struct Kept : Ways<T> {
  static int64_t room(int64_t labels) { return 4 * labels + 2; }
  Kept(T* room, int64_t labels) : Ways<T>{Line<T>::in(room, labels), Line<T>::in(room, labels + 1)} {}
  void keep_label(int64_t i, Chance a) const { this->label.set(i, a); }
  void keep_blank(int64_t i, Chance a) const { this->blank.set(i, a); }
};
struct KeepsNothing {
  void keep_label(int64_t, Chance) const {}
  void keep_blank(int64_t, Chance) const {}
};

// The ways along some labels, in one direction, step by step. Places of labels are one on, so that there is one before
// the first, where nobody ever is.
class Sweep {
 public:
  static int64_t room(int64_t labels) { return 10 * (labels + 1); }

  Sweep(double* room, const int64_t* labels, int64_t count, int64_t blank)
      : labels_(labels), count_(count), blank_(blank) {
    for (Ways<double>* const ways : {&now_, &then_})
      *ways = {Line<double>::in(room, count + 1), Line<double>::in(room, count + 1)};
    logs_ = room;
    skips_ = room + count + 1;
    for (int64_t i = 0; i <= count; ++i) {
      now_.label.set(i, ctc::kNever);
      now_.blank.set(i, i == 0 ? ctc::kCertain : ctc::kNever);
    }
    then_.label.set(0, ctc::kNever);
  }

  // Whether this label may follow the one before it at once.
  void let_follow(int64_t i, bool may) { skips_[i] = may; }

  template <class T, class Keep>
  void step(const T* x, const Keep& keep) {
    const int64_t count = count_;
    for (int64_t i = 0; i < count; ++i) logs_[i] = static_cast<double>(x[labels_[i]]);
    const Chance said_blank = ctc::chance_of(static_cast<double>(x[blank_]));
    const double *const logs = logs_, *const skips = skips_;
    const Ways<double> now = now_, then = then_;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const Chance before = ctc::only_if(skips[i] != 0, now.label.at(i));
      const Chance at_label = ctc::sum(now.label.at(i + 1), now.blank.at(i), before);
      keep.keep_label(i, at_label);
      then.label.set(i + 1, ctc::product(at_label, ctc::chance_of(logs[i])));
    }
#pragma GCC ivdep
    for (int64_t i = 0; i <= count; ++i) {
      const Chance at_blank = ctc::sum(now.blank.at(i), now.label.at(i));
      keep.keep_blank(i, at_blank);
      then.blank.set(i, ctc::product(at_blank, said_blank));
    }
    std::swap(now_, then_);
  }

  Chance at_label(int64_t i) const { return now_.label.at(i + 1); }
  Chance at_blank(int64_t i) const { return now_.blank.at(i); }
  // Of all ways that have said everything.
  Chance ended() const { return ctc::sum(at_label(count_ - 1), at_blank(count_)); }

 private:
  const int64_t* labels_;
  int64_t count_, blank_;
  Ways<double> now_, then_;
  double *logs_, *skips_;
};

// Where a kernel reads and writes; `loss` or `dinput` and `dy` may be nullptr.
template <class T>
struct Values {
  const T *input, *dy;
  T *loss, *dinput;
};

template <class T>
class Rows {
 public:
  // The inputs from `input` on are those of the loss.
  Rows(KernelCall& call, int input, bool has_gradient)
      : of_(call, input), input_(input), types_(call.inputs), has_gradient_(has_gradient) {
    // A place of a step is some twenty instructions, half as many again on the way back.
    const int64_t work = of_.batch * of_.steps * (2 * of_.labels + 1) * 16;
    slots_ = std::clamp<int64_t>(std::min(work / cpu::kGrain, of_.batch), 1, cpu::threads());
    const int64_t integers = checked_product(of_.batch, of_.labels + 2);
    kept_ = has_gradient ? checked_product(of_.steps, Kept<T>::room(of_.labels)) : 0;
    // The labels the other way round, two sweeps, the shares of a step, and what is kept.
    slot_bytes_ =
        (of_.labels + 2 * Sweep::room(of_.labels) + of_.labels) * 8 + checked_product(kept_, sizeof(T)) / 8 * 8 + 8;
    call.scratch_bytes = integers * 8 + checked_product(slots_, slot_bytes_);
  }

  void operator()(const LaunchCall& at, const Values<T>& values) const {
    int64_t* const integers = static_cast<int64_t*>(at.scratch);
    const Given given = check(at, integers);
    char* const rooms = reinterpret_cast<char*>(integers + of_.batch * (of_.labels + 2));
    cpu::parallel_for(slots_, 1, [&](int64_t first, int64_t last) {
      for (int64_t slot = first; slot < last; ++slot) {
        for (int64_t row = of_.batch * slot / slots_; row < of_.batch * (slot + 1) / slots_; ++row)
          cpu::widest([&] { compute(values, given, row, rooms + slot * slot_bytes_); });
      }
    });
  }

 private:
  struct Given {
    const int64_t *labels, *steps, *counts;
  };

  Given check(const LaunchCall& at, int64_t* integers) const {
    int64_t* const labels = integers;
    int64_t* const steps = labels + of_.place_of_steps(0);
    int64_t* const counts = labels + of_.place_of_labels(0);
    const auto read = [&](int which, int64_t count, int64_t* to) {
      visit(types_[input_ + which].dtype, [&](auto zero) {
        std::transform(at.input<decltype(zero)>(input_ + which), at.input<decltype(zero)>(input_ + which) + count, to,
                       [](auto value) { return static_cast<int64_t>(value); });
      });
    };
    read(1, of_.batch * of_.labels, labels);
    read(2, of_.batch, steps);
    read(3, of_.batch, counts);
    for (int64_t row = 0; row < of_.batch; ++row) {
      if (steps[row] < 0 || steps[row] > of_.steps) of_.fail_at(of_.place_of_steps(row), steps[row]);
      if (counts[row] < 0 || counts[row] > of_.labels) of_.fail_at(of_.place_of_labels(row), counts[row]);
      for (int64_t place = row * of_.labels; place < row * of_.labels + counts[row]; ++place)
        if (labels[place] < 0 || labels[place] >= of_.classes) of_.fail_at(place, labels[place]);
    }
    return {labels, steps, counts};
  }

  void compute(const Values<T>& values, const Given& given, int64_t row, char* room) const {
    const int64_t count = given.counts[row], steps = given.steps[row];
    const int64_t* const labels = given.labels + row * of_.labels;
    int64_t* const turned = reinterpret_cast<int64_t*>(room);
    double* const doubles = reinterpret_cast<double*>(turned + of_.labels);
    const T* const x = values.input + row * of_.steps * of_.classes;
    Sweep forward(doubles, labels, count, of_.blank);
    for (int64_t i = 0; i < count; ++i)
      forward.let_follow(i, i > 0 && ctc::follows_at_once(labels[i], labels[i - 1], of_.blank));
    double* const shares = doubles + 2 * Sweep::room(of_.labels);
    T* const kept = reinterpret_cast<T*>(shares + of_.labels);
    for (int64_t t = 0; t < steps; ++t) {
      if (has_gradient_)
        forward.step(x + t * of_.classes, kept_at(kept, t, count));
      else
        forward.step(x + t * of_.classes, KeepsNothing());
    }
    const Chance all = forward.ended();
    if (values.loss) values.loss[row] = static_cast<T>(of_.loss(all));
    if (!has_gradient_) return;

    T* const dx = values.dinput + row * of_.steps * of_.classes;
    const int64_t counted = all.part == 0 ? 0 : steps;  // without a way there is no gradient
    std::fill(dx + counted * of_.classes, dx + of_.steps * of_.classes, T(0));
    if (counted == 0) return;
    std::reverse_copy(labels, labels + count, turned);
    Sweep backward(doubles + Sweep::room(of_.labels), turned, count, of_.blank);
    for (int64_t i = 0; i < count; ++i)
      backward.let_follow(i, i > 0 && ctc::follows_at_once(turned[i - 1], turned[i], of_.blank));
    Chance slope = ctc::inverse(all);
    slope.part *= -static_cast<double>(values.dy[row]);
    for (int64_t t = steps - 1; t >= 0; --t) {
      backward.step(x + t * of_.classes, KeepsNothing());
      spread(kept_at(kept, t, count), backward, slope, count, labels, shares, dx + t * of_.classes);
    }
  }

  Kept<T> kept_at(T* kept, int64_t t, int64_t count) const {
    return Kept<T>(kept + t * Kept<T>::room(of_.labels), count);
  }

  // `slope` times the share of all ways that goes by each class at a step: what comes together there from before, and
  // from behind with the step itself.
  void spread(const Kept<T>& from, const Sweep& behind, Chance slope, int64_t count, const int64_t* labels,
              double* shares, T* dx) const {
    double blank = 0;
#pragma omp simd reduction(+ : blank)
    for (int64_t i = 0; i <= count; ++i) blank += ctc::share(from.blank.at(i), behind.at_blank(count - i), slope);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) shares[i] = ctc::share(from.label.at(i), behind.at_label(count - 1 - i), slope);
    std::fill_n(dx, of_.classes, T(0));
    dx[of_.blank] = static_cast<T>(blank);
    for (int64_t i = 0; i < count; ++i) dx[labels[i]] += static_cast<T>(shares[i]);
  }

  ctc::Sizes of_;
  int input_;
  std::vector<TensorType> types_;
  bool has_gradient_;
  int64_t slots_, kept_, slot_bytes_;
};

Launch prepare_loss(KernelCall& call) {
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows = Rows<T>(call, 0, false)](const LaunchCall& at) {
      rows(at, {at.input<T>(0), nullptr, at.output<T>(0), nullptr});
    };
  });
}

Launch prepare_grad(KernelCall& call) {
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows = Rows<T>(call, 1, true)](const LaunchCall& at) {
      rows(at, {at.input<T>(1), at.input<T>(0), nullptr, at.output<T>(0)});
    };
  });
}

Launch prepare_loss_and_grad(KernelCall& call) {
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rows = Rows<T>(call, 0, true)](const LaunchCall& at) {
      rows(at, {at.input<T>(0), at.input<T>(4), at.output<T>(0), at.output<T>(1)});
    };
  });
}

// ---- the ops -------------------------------------------------------------------------------------------------

const std::vector<InputDef> kInputs = {{"input"}, {"target"}, {"input_lengths"}, {"target_lengths"}};

AttrDef blank_attr() { return {"blank", int64_t{0}, "the class of a step that says nothing"}; }

// Lengths drawn from few numbers, of which some leave no room, and labels of which some are alike.
std::vector<Example> examples(const std::vector<TensorType>& before, const std::vector<TensorType>& behind,
                              const Attrs& also) {
  const auto example = [&](int64_t steps, int64_t classes, int64_t labels, DType integers, int64_t blank,
                           int64_t below) {
    Example e{before, also, -3, 0, below};
    const Shape each = {4};
    for (const TensorType& type : {f32({4, steps, classes}), TensorType{integers, {4, labels}},
                                   TensorType{integers, each}, TensorType{integers, each}})
      e.inputs.push_back(type);
    e.inputs.insert(e.inputs.end(), behind.begin(), behind.end());
    e.attrs.set("blank", blank);
    return e;
  };
  return {example(7, 4, 3, DType::Int32, 0, 4), example(4, 5, 4, DType::Int64, 3, 5),
          example(9, 8, 8, DType::UInt8, 2, 8), example(3, 2, 0, DType::Int32, 1, 1)};
}

}  // namespace

void add_ctc(Catalog& catalog) {
  OpDef op;
  op.name = "ctc_loss";
  op.doc =
      "Connectionist temporal classification, in nats: how unlikely it is that the steps say the target.\n"
      "  out[n] = -log(sum over all ways w with collapsed(w) = target[n] of the product of exp(input[n, t, w(t)]) over "
      "t)\n"
      "Of each row the first input_lengths[n] steps and target_lengths[n] labels count; what is behind may be "
      "anything.\n"
      "shapes: input (batch, steps, classes), target (batch, labels), lengths (batch) -> out (batch)\n"
      "dtypes: input float32 or float64 -> the same; target and lengths of an integer dtype. Ways are summed in "
      "float64\n"
      "errors: a label outside [0, classes) or a length beyond its axis names its position, nothing is written\n"
      "note: has a gradient, for input, and that has none of its own\n"
      "source: Graves and others, \"Connectionist temporal classification\", ICML 2006";
  op.inputs = kInputs;
  op.attrs = {blank_attr(), {"zero_infinity", false, "a target that its steps have no room for costs 0, not infinity"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> { return {infer_loss(call, 0)}; };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const ValueId dinput = g.op("ctc_loss_grad", {g.grads[0], g.inputs[0], g.inputs[1], g.inputs[2], g.inputs[3]},
                                {{"blank", g.attrs.integer("blank")}});
    return {dinput, kNone, kNone, kNone};
  };
  op.cpu = {prepare_loss};
  op.rewrites = {{"ctc loss + its gradient", {kFused}, fuse_loss_and_grad}};
  // No difference can be taken of infinities.
  op.examples = examples({}, {}, {{"zero_infinity", true}});
  catalog.add(op);

  OpDef grad;
  grad.name = "ctc_loss_grad";
  grad.doc =
      "Gradient of ctc_loss for the input.\n"
      "  dinput[n, t, c] = -dy[n] * the share that ways through class c at step t have in the sum over all ways\n"
      "It is 0 behind the steps that count, and where there is no way.\n"
      "shapes: dy (batch), the others as there -> dinput as input";
  grad.inputs = kInputs;
  grad.inputs.insert(grad.inputs.begin(), {"dy"});
  grad.outputs = {"dinput"};
  grad.attrs = {blank_attr()};
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_type(call, 0, "dy", infer_loss(call, 1));
    return {call.type(1)};
  };
  grad.cpu = {prepare_grad};
  grad.examples = examples({f32({4})}, {}, {});
  catalog.add(grad);

  OpDef both;
  both.name = kFused;
  both.doc =
      "ctc_loss and its gradient for the input. Made by fusion.\n"
      "shapes: input, target and lengths as there, dy (batch) -> out (batch), dinput as input";
  both.inputs = kInputs;
  both.inputs.push_back({"dy"});
  both.outputs = {"out", "dinput"};
  both.attrs = op.attrs;
  both.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType out = infer_loss(call, 0);
    require_type(call, 4, "dy", out);
    return {out, call.type(0)};
  };
  both.cpu = {prepare_loss_and_grad};
  both.examples = examples({}, {f32({4})}, {});
  catalog.add(both);
}

}  // namespace moonflow
