// The prepared call userdata: a job with buffers and weights of its own, run on the thread that calls. Its environment
// is the list of its outputs, which are always the same arrays.
#include <algorithm>
#include <climits>

#include "bindings/lua_element.h"
#include "bindings/lua_module.h"
#include "engine/overlap.h"
#include "kernels/catalog.h"

namespace moonflow::lua {

namespace {

const PreparedBox& self(lua_State* L) { return box_at<PreparedBox>(L, 1, "a prepared call"); }

const PreparedBox& self_or_raise(lua_State* L, const State& state) {
  const PreparedBox* const box = find_box<PreparedBox>(L, 1, state);
  if (box == nullptr) protect(L, [&] { self(L); });  // raises
  return *box;
}

// Pushes the array of an output out of the list at `list`, made again where the script has released or taken it.
void push_output(lua_State* L, State& state, int list, const PreparedBox& box, int index) {
  lua_rawgeti(L, list, index + 1);
  Tensor* array = find_box<Tensor>(L, -1, state);
  if (array == nullptr) {
    lua_pop(L, 1);
    array = &push_array(L, state);
    lua_pushvalue(L, -1);
    lua_rawseti(L, list, index + 1);
  }
  if (!*array) *array = box.call->outputs()[static_cast<size_t>(index)];
}

// Does an array lie in one of the inputs, but for its own?
bool is_in_another(const Tensor& feed, const std::vector<Tensor>& inputs, size_t own) {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (i != own && overlap(range_of(feed), range_of(inputs[i]))) return true;
  return false;
}

// prepared:run(feeds...) -> true, ndarray... of all outputs; nil, error, refused when it failed, or (refused) when it
// was not even begun. Without feeds it takes what lies in its inputs. Does not raise, which spares the caller a pcall.
int run(lua_State* L) {
  const int last = lua_gettop(L);
  State& state = state_of(L);
  const PreparedBox& box = self_or_raise(L, state);
  bool begun = false;
  const auto work = [&] {
    const std::vector<Tensor>& inputs = box.call->inputs();
    const size_t count = static_cast<size_t>(last - 1);
    require(count == 0 || count == inputs.size(), ErrorCode::InvalidArgument, "takes ", inputs.size(),
            " arrays, or none, got ", count);
    // What was now may be what is before, so of such a feed a copy is taken before any input is written. Numbers are
    // tried before as well, since the dtype may not have them.
    std::vector<Tensor> aside;
    for (size_t i = 0; i < count; ++i) {
      const int at = static_cast<int>(i) + 2;
      if (is_scalar_at(L, at, inputs[i].type())) {
        alignas(double) char any_element[sizeof(double)];
        store_number_at(L, at, inputs[i].dtype(), any_element);
        continue;
      }
      const Tensor& feed = array_at(L, at, "input", state);
      require(feed.type() == inputs[i].type(), ErrorCode::ShapeMismatch, "input ", i + 1, " is ", inputs[i].type(),
              ", got ", feed.type());
      if (!is_in_another(feed, inputs, i)) continue;
      aside.resize(count);
      aside[i] = feed.copy(state.memory);
    }
    for (size_t i = 0; i < count; ++i) {
      const int at = static_cast<int>(i) + 2;
      char* const input = inputs[i].data<char>();
      if (is_scalar_at(L, at, inputs[i].type())) {
        store_number_at(L, at, inputs[i].dtype(), input);
        continue;
      }
      const Tensor& given = *find_box<Tensor>(L, at, state);
      const Tensor& feed = aside.empty() || !aside[i] ? given : aside[i];
      if (feed.data() != inputs[i].data()) std::copy_n(feed.data<char>(), feed.bytes(), input);
    }
    begun = true;
    box.call->run();
  };
  if (!attempt(state, work)) {
    const PlainError error = state.take_fault();
    lua_pushnil(L);
    push_error(L, error);
    lua_pushboolean(L, !begun);
    return 3;
  }
  const int output_count = static_cast<int>(box.call->outputs().size());
  constexpr int kOther = 4;  // what is on the stack beside the outputs
  if (output_count > LUA_MINSTACK - kOther) luaL_checkstack(L, output_count + kOther, "too many results");
  lua_getfenv(L, 1);
  lua_pushboolean(L, true);
  for (int i = 0; i < output_count; ++i) push_output(L, state, last + 1, box, i);
  return 1 + output_count;
}

// prepared:inputs() -> { ndarray, ... }, the buffers that a run reads
int inputs(lua_State* L) {
  lua_settop(L, 1);
  State& state = state_of(L);
  const std::vector<Tensor>& inputs = self_or_raise(L, state).call->inputs();
  lua_createtable(L, static_cast<int>(inputs.size()), 0);
  for (size_t i = 0; i < inputs.size(); ++i) {
    push_array(L, state) = inputs[i];
    lua_rawseti(L, 2, static_cast<int>(i) + 1);
  }
  return 1;
}

// prepared:outputs() -> { ndarray, ... }, the buffers that a run writes
int outputs(lua_State* L) {
  lua_settop(L, 1);
  State& state = state_of(L);
  const PreparedBox& box = self_or_raise(L, state);
  const int count = static_cast<int>(box.call->outputs().size());
  lua_getfenv(L, 1);
  lua_createtable(L, count, 0);
  for (int i = 0; i < count; ++i) {
    push_output(L, state, 2, box, i);
    lua_rawseti(L, 3, i + 1);
  }
  return 1;
}

// prepared:reset()
int reset(lua_State* L) {
  protect(L, [&] { self(L).call->reset(); });
  return 0;
}

// prepared:publish()
int publish(lua_State* L) {
  protect_allocating(L, [&] { self(L).publish(); });
  return 0;
}

// prepared:generation() -> how many times a run has taken new weights
int generation(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(self_or_raise(L, state_of(L)).call->generation()));
  return 1;
}

}  // namespace

void prepare_parts(lua_State* L, int index, const std::shared_ptr<HostMemory>& memory, PreparedBox& box) {
  const GraphBox& graph = box_at<GraphBox>(L, index, "a graph");
  const auto first = static_cast<Token>(integer_at(L, index + 1, "first", 0, INT_MAX));
  const auto last = static_cast<Token>(integer_at(L, index + 2, "last", 0, INT_MAX));
  std::vector<int64_t> numbers;  // two for each
  each_at(L, index + 3, "counters", [&](int at) { numbers.push_back(integer_at(L, at, "counters")); });
  std::vector<Counter> counters;
  for (size_t i = 0; i + 1 < numbers.size(); i += 2) counters.push_back({numbers[i], numbers[i + 1]});
  box.call = graph.session->prepare(*graph.graph, graph.job, make_real_time_cpu_device(memory), first, last,
                                    std::move(counters));
  box.session = graph.session;
}

// session:prepare(graph, first, last, counters) -> prepared call, whose outputs are the taps with these tokens
int prepare_graph(lua_State* L) {
  lua_settop(L, 5);
  State& state = state_of(L);
  collect_where_due(L, state);
  PreparedBox& box = push_box<PreparedBox>(L, state);
  lua_newtable(L);
  lua_setfenv(L, -2);
  protect_allocating(L, [&] {
    const SessionBox& session = box_at<SessionBox>(L, 1, "a session");
    const GraphBox& graph = box_at<GraphBox>(L, 2, "a graph");
    require(graph.session == session.session, ErrorCode::InvalidArgument, "the graph is of another session");
    prepare_parts(L, 2, state.memory, box);
  });
  return 1;
}

// session:publish() -> the number of prepared calls that the weights were handed to
int publish_weights(lua_State* L) {
  int count = 0;
  protect_allocating(L, [&] { count = box_at<SessionBox>(L, 1, "a session").session->publish(); });
  lua_pushnumber(L, count);
  return 1;
}

void add_prepared(lua_State* L, State& state) {
  static const luaL_Reg kMethods[] = {{"run", run},        {"inputs", inputs},    {"outputs", outputs},
                                      {"reset", reset},    {"publish", publish},  {"generation", generation},
                                      {"info", plan_info}, {"steps", plan_steps}, {nullptr, nullptr}};
  new_class(L, state, Tag::Prepared, finalize<PreparedBox>, "moonflow prepared call", kMethods);
}

}  // namespace moonflow::lua
