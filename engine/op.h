// What an op is: one struct, OpDef, that carries meaning, gradient, kernels, storage facts and examples.
// The engine treats ops as data; it knows none of them by name. Kernels follow "prepare, then launch".
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/device.h"
#include "engine/tensor.h"

namespace moonflow {

class Catalog;
class Graph;
class Rewriter;
struct Node;
using ValueId = int32_t;
using NodeId = int32_t;
constexpr int32_t kNone = -1;  // no value: an optional input left out, a gradient that does not exist

// ---- attributes: named parameters as plain data -------------------------------------------------------------

using Ints = std::vector<int64_t>;
// A type of its own, not another name: for a variant whose every type is its own or the standard library's and moves
// without throwing, libstdc++ 12 takes it that it always holds a value, and a copy that runs out of memory reads wild.
struct Floats : std::vector<double> {
  using std::vector<double>::vector;
};
using AttrValue = std::variant<bool, int64_t, double, std::string, DType, Ints, Floats>;

std::string str(const AttrValue& value);

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, AttrValue>> values);

  // The value of an attribute that the OpDef declares, so it is there and has this type.
  template <class T>
  const T& get(std::string_view name) const {
    return std::get<T>(at(name));
  }
  bool flag(std::string_view name) const { return get<bool>(name); }
  int64_t integer(std::string_view name) const { return get<int64_t>(name); }
  double number(std::string_view name) const { return get<double>(name); }
  const std::string& string(std::string_view name) const { return get<std::string>(name); }
  const Ints& ints(std::string_view name) const { return get<Ints>(name); }
  const Floats& floats(std::string_view name) const { return get<Floats>(name); }
  DType dtype(std::string_view name) const { return get<DType>(name); }

  const AttrValue& at(std::string_view name) const;
  const AttrValue* find(std::string_view name) const;
  void set(std::string name, AttrValue value);
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  bool empty() const { return values_.empty(); }
  // Do they ask for the same bits? 0 is not -0 here, and a NaN is itself.
  friend bool operator==(const Attrs& a, const Attrs& b);

 private:
  std::map<std::string, AttrValue, std::less<>> values_;
};

struct AttrDef {
  std::string name;
  AttrValue fallback;  // gives the type too; the default unless `required`
  std::string doc;
  bool required = false;
  // Name of an Ints attribute that takes a (nested) Lua table given for this one, flattened. `padding` uses it:
  // a string names a rule, a table gives the pads themselves.
  std::string table_form = {};
};

// ---- inputs, inference ---------------------------------------------------------------------------------------

struct InputDef {
  // Many: the op takes a list. Where further inputs follow, it takes any number of groups of all of them, one after the
  // other: (variable, gradient), (variable, gradient).
  enum Kind { One, Optional, Many };
  std::string name;
  Kind kind = One;
};

// An op with its input types: what inference sees. A left-out optional input has no type.
struct OpCall {
  const std::vector<const TensorType*>& inputs;  // nullptr for a left-out optional input
  const Attrs& attrs;

  int count() const { return static_cast<int>(inputs.size()); }
  bool has(int i) const { return i < count() && inputs[i] != nullptr; }
  const TensorType& type(int i) const { return *inputs[i]; }
  const Shape& shape(int i) const { return inputs[i]->shape; }
  DType dtype(int i) const { return inputs[i]->dtype; }
};

using Infer = std::function<std::vector<TensorType>(const OpCall&)>;

// ---- gradients -----------------------------------------------------------------------------------------------

// Gradients are written as graph code: they append ordinary nodes and never compute.
struct GradCall {
  Graph& graph;
  const Catalog& catalog;
  const std::string name;  // of the node being differentiated; gradient nodes are named after it
  const std::string site;
  const std::vector<ValueId> inputs;  // kNone for a left-out optional input
  const std::vector<ValueId> outputs;
  const std::vector<ValueId> grads;  // one per output; kNone where no gradient arrived
  const Attrs attrs;

  // Appends an op and gives its first output, or all of them.
  ValueId op(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {});
  std::vector<ValueId> ops(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {});
  TensorType type(ValueId value) const;  // by value: appending moves the graph's storage
};

// One gradient per input, kNone where there is none. May be empty in the OpDef: the op stops gradients.
using Grad = std::function<std::vector<ValueId>(GradCall&)>;

// ---- kernels -------------------------------------------------------------------------------------------------

struct LaunchCall {
  Stream& stream;
  void* const* inputs;  // nullptr for a left-out optional input
  void* const* outputs;
  void* scratch;  // 64-byte aligned, `scratch_bytes` long
  int step = 0;   // its place in the plan, for a fault found after the launch has returned; see KernelCall::explain

  template <class T>
  const T* input(int i) const {
    return static_cast<const T*>(inputs[i]);
  }
  template <class T>
  T* output(int i) const {
    return static_cast<T*>(outputs[i]);
  }
};

// Enqueues the work of one step. Allocates nothing, waits for nothing. May throw Error for bad values (a label
// outside the classes) before anything is written.
using Launch = std::function<void(const LaunchCall&)>;

// Everything known when a plan is made.
struct KernelCall {
  Device& device;
  const Attrs& attrs;
  std::vector<TensorType> inputs = {};  // a left-out optional input has present[i] == false
  std::vector<bool> present = {};
  std::vector<TensorType> outputs = {};
  std::vector<Layout> input_layouts = {};
  std::vector<Layout> output_layouts = {};
  int64_t scratch_bytes = 0;  // set by prepare
  // Products and convolutions may round float32 factors to TF32, 10 bits of fraction, and sum in float32.
  bool allow_tf32 = false;
  // Set by prepare where the device finds bad values only after the launch has returned, and notes where: throws the
  // Error that says what `value` at `place` means.
  std::function<void(int64_t place, int64_t value)> explain = {};

  bool has(int i) const { return i < static_cast<int>(present.size()) && present[i]; }
};

// The layout question, asked in plan order before anything is prepared. `inputs` holds what the producers offer;
// the kernel overwrites them with what it wants (a reorder is inserted where they differ) and sets `outputs`.
struct LayoutCall {
  Device& device;
  const Attrs& attrs;
  const std::vector<TensorType>& input_types;
  const std::vector<bool>& present;
  const std::vector<TensorType>& output_types;
  std::vector<Layout> inputs;
  std::vector<Layout> outputs;
  // By input: whether it is a constant, or follows from variables that the plan only reads, so that a reorder of it
  // runs once and is kept.
  std::vector<bool> lasting = {};
  bool allow_tf32 = false;         // as the KernelCall will have it
  bool quantizes_weights = false;  // a layout of what lasts may round it to numbers of 8 bits; see Graph
  // By output: the layout in which all that read it take it, where that is one and known. A kernel that can write it
  // so saves a reorder.
  std::vector<std::optional<Layout>> taken = {};
};

struct Kernel {
  std::function<Launch(KernelCall&)> prepare;     // empty: this device cannot run the op
  std::function<void(LayoutCall&)> layouts = {};  // empty: row-major everywhere
  bool heeds_readers = false;                     // `layouts` looks at LayoutCall::taken
  explicit operator bool() const { return static_cast<bool>(prepare); }
};

// ---- the op --------------------------------------------------------------------------------------------------

// How an op takes the narrow dtypes, bfloat16 and float16, and what automatic mixed precision may do with it in the one
// that a graph asks for (engine/mixed_precision.h).
struct NarrowUse {
  enum Role {
    Float32,  // it leaves the op in float32: a loss, statistics, an update
    // It gives the op what is narrow where that is there anyway, and wanted. An op with an attribute "mixed" is given
    // what is there, and told the dtype of its result.
    Follows,
    // The op is faster so. With an attribute "mixed" it is told the dtype of its result, and with one "rounds_to" the
    // narrow dtype, since all of its inputs may be float32.
    Computes,
  };
  Role role = Float32;
  // The CPU's kernels know both. To others they are given widened, and what those give is rounded.
  bool in_kernels = false;
  std::vector<int> keeps_float32 = {};  // inputs that stay float32 all the same: a bias
  std::vector<int> takes_either = {};   // inputs that are rounded as they are read, so that they need no conversion
  // Whether computing in this dtype, or following, is faster for these types on this processor, which only the CPU
  // asks; empty: always. Of what may come in either type, narrow is what does not change from run to run.
  std::function<bool(const OpCall&, DType narrow)> pays = {};
  // Of an op with an attribute "rounds_to" that does not compute in this dtype: whether it is faster all the same to
  // let the kernel round what it multiplies. It takes and gives float32 then, and is told by that attribute alone. Only
  // the CPU asks.
  std::function<bool(const OpCall&, DType narrow)> rounds = {};
};

// Where an output may live in the memory of an input.
struct Sharing {
  int output;
  int input;
};

// What the oracle test feeds: small types, attributes, and the range the values are drawn from.
struct Example {
  std::vector<TensorType> inputs;  // floating inputs are also tried in the other floating dtype
  Attrs attrs = {};
  double low = -1;  // floating values are uniform in [low, high)
  double high = 1;
  int64_t int_below = 4;  // integer values are uniform in [0, int_below)
};

struct Rewrite {
  std::string name;
  std::vector<std::string> makes;  // the ops it puts in; a device that lacks one of them goes without the rewrite
  // Looks at one node and, where its pattern holds, replaces nodes through the rewriter. True when it did.
  std::function<bool(Rewriter&, NodeId)> apply;
  bool last = false;  // looks only at what the other rewrites have left
};

struct OpDef {
  std::string name;      // internal name
  std::string lua = {};  // path under `flow` ("nn.softmax"); empty for helper ops such as gradients
  std::string doc = {};
  std::vector<InputDef> inputs = {};
  std::vector<std::string> outputs = {"out"};
  std::vector<AttrDef> attrs = {};
  Infer infer = {};
  Grad grad = {};
  Kernel cpu = {};  // those of other devices belong to the device, which may be opened long after the catalog is made
  // It is the host's work whatever the device: `cpu` computes it, of values in rows and with nothing of the device or
  // its stream.
  bool on_host = false;
  std::vector<Sharing> inplace = {};  // may overwrite the input when nobody reads it later; equal types only
  std::vector<Sharing> alias = {};    // is the input's memory under another type; the step does nothing
  std::vector<int> writes = {};       // inputs of a group updated in place (variables); such an op has no outputs
  bool random = false;                // depends on (seed, step), so the oracle compares devices but not differences
  bool meets_others = false;          // other processes take part, so it is done in every run, whatever its inputs are
  NarrowUse narrow = {};
  std::vector<Rewrite> rewrites = {};
  std::vector<Example> examples = {};
  // Floating-point operations of one launch, a multiply-add counted as two; empty where moving the data is the work.
  std::function<double(const KernelCall&)> flops = {};

  const AttrDef* attr(std::string_view name) const;
  // Whether it updates the input at this place of its list, which may hold several groups.
  bool updates(size_t place) const;
};

// Checks how many inputs there are; left-out optional ones at the end become kNone.
void fit_inputs(const OpDef& op, std::vector<ValueId>& inputs);

// The output types of an op, with their sizes checked.
std::vector<TensorType> infer(const OpDef& op, const OpCall& call);

// The attributes with every default filled in; an unknown name, a wrong type or a missing required one is an error.
Attrs complete(const OpDef& op, Attrs given);

// ---- the catalog ---------------------------------------------------------------------------------------------

// The ops of this process. Filled once, then read only, so sessions may share one.
class Catalog {
 public:
  void add(OpDef op);
  // Lets `change` see to each op: what families leave to whoever puts them together.
  void revise(const std::function<void(OpDef&)>& change);
  const OpDef& at(std::string_view name) const;  // NotFound, with the nearest name
  const OpDef* find(std::string_view name) const;
  const std::map<std::string, OpDef, std::less<>>& ops() const { return ops_; }

  // The op that adds two values of one type. Autodiff uses it where a value has several consumers.
  std::string sum_op;
  // The op that gives a value the dtype of its attribute "dtype". Mixed precision uses it.
  std::string cast_op;

 private:
  std::map<std::string, OpDef, std::less<>> ops_;
};

// The candidate nearest to `name`, or nullptr when none is near: half of it must be the same, in letters of any size.
// The beginning of a word counts as near to it.
const std::string* nearest(std::string_view name, const std::vector<std::string>& candidates);
// "; did you mean 'strides'?", or nothing when no candidate is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace moonflow
