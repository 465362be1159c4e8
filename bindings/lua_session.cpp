// The session userdata: variables, immediate evaluation, and the pull side of the completion queue.
#include <climits>

#include "bindings/lua_attrs.h"
#include "bindings/lua_element.h"
#include "bindings/lua_module.h"
#include "engine/process_end.h"
#include "engine/recycling_memory.h"
#include "kernels/catalog.h"
#include "kernels/cuda.h"

namespace moonflow::lua {

namespace {

constexpr int kWaitMs = 50;  // a wait returns at least this often, so that hooks (Ctrl-C) run

Session& any_session(lua_State* L) { return *box_at<SessionBox>(L, 1, "a session").session; }

// For what waits or delivers, which a fork leaves to its parent.
Session& session_here(lua_State* L) {
  Session& session = any_session(L);
  session.executor().require_here();
  return session;
}

Session& open_session(lua_State* L) {
  Session& session = session_here(L);
  require(!session.closed(), ErrorCode::WrongState, "the session is closed");
  return session;
}

// core.session{ threads = n }
int make_session(lua_State* L) {
  lua_settop(L, 1);
  SessionBox& box = push_box<SessionBox>(L);
  protect_allocating(L, [&] {
    int threads = 0;
    if (!lua_isnil(L, 1)) {
      table_at(L, 1, "options");
      lua_settop(L, 2);
      lua_pushnil(L);
      while (lua_next(L, 1) != 0) {
        const std::string_view key = string_at(L, -2, "name of an option");
        require(key == "threads", ErrorCode::InvalidArgument, "a session has no option '", key, "', only 'threads'");
        threads = static_cast<int>(integer_at(L, -1, "threads", 0, 4096));
        lua_pop(L, 1);
      }
    }
    const Stay stay;
    stay.require_in_time();
    State& state = state_of(L);
    box.session = std::make_shared<Session>(all_ops(), make_cpu_device(threads, state.memory), state.memory,
                                            state.interrupted, open_cuda_device);
    state.newest = box.session;
  });
  return 1;
}

// ---- completions ---------------------------------------------------------------------------------------------

// session:next(with_end) -> nil when nothing is ready; run, token, ndarray, sequence for a tap; run, 0, nil or error,
// sequence at an end. With `with_end` the last tap of a run brings its end along, as a fifth value: true.
// A completion leaves the queue when Lua has all of it, so one that meets a full Lua heap is given again.
int next(lua_State* L) {
  SessionBox* const self = find_box<SessionBox>(L, 1);
  if (self == nullptr || !self->session->executor().is_here()) protect(L, [&] { session_here(L); });  // raises
  Session& session = *self->session;
  const bool with_end = lua_toboolean(L, 2) != 0;
  for (;;) {
    lua_settop(L, 1);
    Completion* next = session.front();
    if (next == nullptr) return 0;
    const uint64_t sequence = next->sequence;
    const bool end = next->end;
    lua_pushnumber(L, static_cast<double>(next->run));
    lua_pushnumber(L, static_cast<double>(next->token));
    Tensor* array = nullptr;
    if (!end) {
      array = &push_array(L);
    } else if (next->error) {
      push_error(L, PlainError(*next->error));
    } else {
      lua_pushnil(L);
    }
    // A finalizer that ran meanwhile may have taken this very completion.
    next = session.front();
    if (next == nullptr || next->sequence != sequence) continue;
    if (array) *array = std::move(next->tensor);
    session.pop();
    lua_pushnumber(L, static_cast<double>(sequence));
    if (end || !with_end || !session.completions().at_end()) return 4;
    session.front();  // has no error, or there would have been no value
    session.pop();
    lua_pushboolean(L, true);
    return 5;
  }
}

int wait(lua_State* L) {
  bool ready = false;
  protect(L, [&] {
    double timeout_ms = kWaitMs;
    if (!lua_isnoneornil(L, 2)) {
      const double wanted = number_at(L, 2, "timeout_ms");
      if (wanted >= 0 && wanted < kWaitMs) timeout_ms = wanted;
    }
    ready = session_here(L).completions().wait(timeout_ms);
  });
  lua_pushboolean(L, ready);
  return 1;
}

int in_flight(lua_State* L) {
  int count = 0;
  protect(L, [&] { count = any_session(L).executor().in_flight(); });
  lua_pushnumber(L, count);
  return 1;
}

// session:has_ended(run) -> whether it has, delivered or not
int has_ended(lua_State* L) {
  bool ended = false;
  protect(L, [&] { ended = any_session(L).completions().has_ended(static_cast<RunId>(number_at(L, 2, "run"))); });
  lua_pushboolean(L, ended);
  return 1;
}

// session:wait_idle(timeout_ms) -> whether it is idle; without a time it waits until it is
int wait_idle(lua_State* L) {
  bool idle = false;
  protect(L, [&] {
    const double timeout_ms = lua_isnoneornil(L, 2) ? -1 : number_at(L, 2, "timeout_ms");
    require(timeout_ms == timeout_ms, ErrorCode::InvalidArgument,
            "timeout_ms must be a number of milliseconds, got nan");
    idle = any_session(L).executor().wait_idle(timeout_ms);
  });
  lua_pushboolean(L, idle);
  return 1;
}

int descriptor(lua_State* L) {
  int descriptor = -1;
  protect(L, [&] { descriptor = any_session(L).completions().descriptor(); });
  if (descriptor < 0) return 0;
  lua_pushnumber(L, descriptor);
  return 1;
}

// Lua holds something to deliver itself: the descriptor becomes readable until the next pull.
int announce(lua_State* L) {
  protect(L, [&] { session_here(L).completions().announce(); });
  return 0;
}

// session:device() -> "cpu, 2 threads, oneDNN 2.7.3"
int device(lua_State* L) {
  std::string& text = push_box<std::string>(L);
  protect(L, [&] { text = any_session(L).device().describe(); });
  push_string(L, text);
  return 1;
}

// session:open_gpu(index) -> true; or nil, why not, and the code of the error
int open_gpu(lua_State* L) {
  std::string& reason = push_box<std::string>(L);
  std::string& code = push_box<std::string>(L);
  bool there = false;
  protect(L, [&] {
    Session& session = open_session(L);
    const int index = static_cast<int>(integer_at(L, 2, "index of a gpu", 0, INT_MAX));
    try {
      there = session.gpu(index) != nullptr;
    } catch (const Error& error) {
      reason = error.what();
      code = moonflow::name(error.code);
    }
  });
  if (there) {
    lua_pushboolean(L, 1);
    return 1;
  }
  lua_pushnil(L);
  push_string(L, reason);
  push_string(L, code);
  return 3;
}

// core.look_at_each_poll(flag)
int look_at_each_poll(lua_State* L) {
  protect(L, [&] { state_of(L).looks_at_each_poll = flag_at(L, 1, "flag"); });
  return 0;
}

int interrupt(lua_State* L) {
  protect(L, [&] { any_session(L).executor().interrupt(); });
  return 0;
}

// session:cancel(run)
int cancel(lua_State* L) {
  protect(L, [&] {
    const double run = number_at(L, 2, "run");
    require(run >= 1 && run < static_cast<double>(kExact), ErrorCode::InvalidArgument, "this is the number of no run");
    session_here(L).executor().cancel(static_cast<RunId>(run));
  });
  return 0;
}

int clear_interrupt(lua_State* L) {
  protect(L, [&] { any_session(L).executor().clear_interrupt(); });
  return 0;
}

int interrupted(lua_State* L) {
  bool interrupted = false;
  protect(L, [&] { interrupted = any_session(L).executor().interrupted(); });
  lua_pushboolean(L, interrupted);
  return 1;
}

int set_max_in_flight(lua_State* L) {
  protect(L, [&] {
    any_session(L).executor().max_in_flight = static_cast<int>(integer_at(L, 2, "max_in_flight", 1, INT_MAX));
  });
  return 0;
}

int close(lua_State* L) {
  protect(L, [&] {
    any_session(L).close();
    std::shared_ptr<Session>& newest = state_of(L).newest;
    if (newest.get() == &any_session(L)) newest.reset();
  });
  return 0;
}

// ---- variables and memory ------------------------------------------------------------------------------------

struct KnownVariable {
  std::string name;
  TensorType type;
  bool initialised;
};

int variables(lua_State* L) {
  lua_settop(L, 1);
  // Copied before anything is pushed: a finalizer that runs meanwhile may forget variables.
  auto& known = keep<std::vector<KnownVariable>>(L);
  protect(L, [&] {
    Variables& variables = any_session(L).variables();
    for (const std::string& name : variables.names()) {
      const Variable& variable = *variables.find(name);
      known.push_back({name, variable.type, variable.initialised()});
    }
  });
  push_list(L, known, [](lua_State* to, const KnownVariable& variable) {
    lua_createtable(to, 0, 4);
    set_string(to, "name", variable.name);
    set_type(to, variable.type);
    set_flag(to, "initialised", variable.initialised);
  });
  return 1;
}

// session:without_value() -> the names of all variables that have no value yet
int without_value(lua_State* L) {
  auto& names = keep<std::vector<std::string>>(L);
  protect(L, [&] { names = any_session(L).variables().without_value(); });
  push_list(L, names, push_string);
  return 1;
}

// session:has_value(name) -> boolean; nil where there is no such variable
int has_value(lua_State* L) {
  const Variable* variable = nullptr;
  protect(L, [&] { variable = any_session(L).variables().find(std::string(string_at(L, 2, "name of a variable"))); });
  if (!variable) return 0;
  lua_pushboolean(L, variable->initialised());
  return 1;
}

// session:forget_variables(list of names)
int forget_variables(lua_State* L) {
  protect(L, [&] { open_session(L).forget_variables(strings_at(L, 2, "name of a variable")); });
  return 0;
}

int read(lua_State* L) {
  lua_settop(L, 2);
  Tensor& value = push_array(L);
  protect_allocating(L, [&] { value = open_session(L).read(std::string(string_at(L, 2, "name of a variable"))); });
  return 1;
}

int write(lua_State* L) {
  protect(L, [&] {
    const std::string name(string_at(L, 2, "name of a variable"));
    const Tensor value = array_at(L, 3, "value");
    open_session(L).write(name, value);
  });
  return 0;
}

// Evaluates an op in a box, of the attributes that `put` gives, which puts the inputs there; the outputs are left
// there. `called` is what errors name in the place of the op: the function that the user has called.
template <class Put>
void evaluate_in(Session& session, SessionBox& box, const OpDef& op, std::string_view called, const Put& put) {
  try {
    const Attrs attrs = put();
    box.outputs.clear();
    session.evaluate(op, box.inputs, attrs, box.outputs);
  } catch (const std::exception&) {
    Error error = current_error();
    box.inputs.clear();
    box.outputs.clear();
    if (!called.empty())
      error.op = called;
    else if (error.op.empty())
      error.op = op.name;
    throw error;
  }
  box.inputs.clear();
}

// session:evaluate(op, { ndarray or false, ... }, attrs, called) -> ndarray, ...
int evaluate(lua_State* L) {
  lua_settop(L, 5);
  const OpDef* op = nullptr;
  protect(L, [&] { op = &open_session(L).catalog().at(string_at(L, 2, "op")); });
  // One result is made in its box. Several are kept until each of them has one.
  Tensor* const single = op->outputs.size() == 1 ? &push_array(L) : nullptr;
  std::vector<Tensor>* const several = single ? nullptr : &keep<std::vector<Tensor>>(L);
  protect_allocating(L, [&] {
    lua_settop(L, 6);
    Session& session = open_session(L);
    SessionBox& box = box_at<SessionBox>(L, 1, "a session");
    evaluate_in(session, box, *op, optional_string_at(L, 5, "called"), [&] {
      Attrs attrs = attrs_at(L, 4, *op);  // may run a finalizer, which may come here itself
      box.inputs.clear();
      each_at(L, 3, "inputs", [&](int at) {
        const bool left_out = lua_isnil(L, at) || (lua_isboolean(L, at) && !lua_toboolean(L, at));
        box.inputs.push_back(left_out ? Tensor() : array_at(L, at, "input"));
      });
      return attrs;
    });
    if (single)
      *single = std::move(box.outputs.at(0));
    else
      several->swap(box.outputs);
    box.outputs.clear();
  });
  if (single) return 1;
  const int count = static_cast<int>(several->size());
  luaL_checkstack(L, count, "too many results");
  for (Tensor& result : *several) {
    Tensor& array = push_array(L);
    array = std::move(result);
  }
  return count;
}

// session:reduce(op, ndarray, called) -> the number that a reduction makes of all elements: what session:evaluate gives
// for it, without arrays for what goes in and comes out. Of an op along one axis all elements are that axis.
int reduce(lua_State* L) {
  double number = 0;
  protect_allocating(L, [&] {
    Session& session = open_session(L);
    SessionBox& box = box_at<SessionBox>(L, 1, "a session");
    const OpDef& op = session.catalog().at(string_at(L, 2, "op"));
    const Tensor array = array_at(L, 3, "a");
    const bool is_along_one = std::holds_alternative<int64_t>(op.attr("axis")->fallback);
    evaluate_in(session, box, op, string_at(L, 4, "called"), [&] {
      box.inputs.assign(1, is_along_one ? array.reshaped({array.count()}) : array);
      return is_along_one ? Attrs{{"axis", int64_t{0}}} : Attrs();
    });
    const Tensor result = std::move(box.outputs.at(0));
    box.outputs.clear();
    number = load_number(result, 0, "a:item");
  });
  lua_pushnumber(L, number);
  return 1;
}

int memory(lua_State* L) {
  int64_t live = 0, variables = 0;
  size_t spare = 0;
  protect(L, [&] {
    const std::shared_ptr<HostMemory>& memory = any_session(L).memory();
    variables = any_session(L).variables().bytes();
    live = memory->live_bytes.load(std::memory_order_relaxed);
    if (const auto* recycling = dynamic_cast<const RecyclingMemory*>(memory.get())) spare = recycling->spare_bytes();
  });
  lua_createtable(L, 0, 3);
  set_number(L, "live_bytes", static_cast<double>(live));
  set_number(L, "variable_bytes", static_cast<double>(variables));
  set_number(L, "spare_bytes", static_cast<double>(spare));
  return 1;
}

}  // namespace

void add_session(lua_State* L, State& state) {
  static const luaL_Reg kFunctions[] = {
      {"session", make_session}, {"look_at_each_poll", look_at_each_poll}, {nullptr, nullptr}};
  static const luaL_Reg kMethods[] = {{"next", next},
                                      {"wait", wait},
                                      {"in_flight", in_flight},
                                      {"has_ended", has_ended},
                                      {"wait_idle", wait_idle},
                                      {"fd", descriptor},
                                      {"announce", announce},
                                      {"device", device},
                                      {"open_gpu", open_gpu},
                                      {"interrupt", interrupt},
                                      {"cancel", cancel},
                                      {"clear_interrupt", clear_interrupt},
                                      {"interrupted", interrupted},
                                      {"set_max_in_flight", set_max_in_flight},
                                      {"close", close},
                                      {"variables", variables},
                                      {"without_value", without_value},
                                      {"has_value", has_value},
                                      {"forget_variables", forget_variables},
                                      {"read", read},
                                      {"write", write},
                                      {"evaluate", evaluate},
                                      {"reduce", reduce},
                                      {"memory", memory},
                                      {"ops", list_ops},
                                      {"op", find_op},
                                      {"op_paths", op_paths},
                                      {"graph", make_graph},
                                      {"compile", compile_graph},
                                      {"prepare", prepare_graph},
                                      {"publish", publish_weights},
                                      {"profile_start", profile_start},
                                      {"profile_note", profile_note},
                                      {"profile_stop", profile_stop},
                                      {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
  new_class(L, state, Tag::Session, finalize<SessionBox>, "moonflow session", kMethods);
}

}  // namespace moonflow::lua
