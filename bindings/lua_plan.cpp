// The plan userdata: a compiled graph, and the submit side of runs.
#include <climits>

#include "bindings/lua_element.h"
#include "bindings/lua_module.h"

namespace moonflow::lua {

namespace {

PlanBox& self(lua_State* L) { return box_at<PlanBox>(L, 1, "a plan"); }

// What is given for the i-th input of the plan.
Tensor feed_at(lua_State* L, int index, const Plan& plan, size_t i, const State& state) {
  if (i < plan.feeds.size() && is_scalar_at(L, index, plan.feeds[i].type))
    return scalar_at(L, index, plan.feeds[i].type.dtype, state.memory);
  return array_at(L, index, "input", state);
}

// plan:submit(may_inline, taps_on or nil, feeds...) -> run, or nil, "busy"
int submit(lua_State* L) {
  const int last = lua_gettop(L);
  RunId run = 0;
  protect_allocating(L, [&] {
    lua_settop(L, last);
    PlanBox& box = self(L);
    Executor::Submission submission;
    submission.may_run_inline = flag_at(L, 2, "may_inline");
    if (!lua_isnoneornil(L, 3)) {
      table_at(L, 3, "taps_on");
      const size_t count = box.plan->taps.size();
      submission.taps_on.resize(count);
      for (size_t i = 0; i < count; ++i) {
        lua_rawgeti(L, 3, static_cast<int>(i + 1));
        submission.taps_on[i] = flag_at(L, -1, "taps_on");
        lua_pop(L, 1);
      }
    }
    if (last > 3) submission.feeds.reserve(static_cast<size_t>(last - 3));
    const State& state = state_of(L);
    for (int i = 4; i <= last; ++i)
      submission.feeds.push_back(feed_at(L, i, *box.plan, static_cast<size_t>(i - 4), state));
    run = box.session->submit(box.plan, std::move(submission));
  });
  if (run == 0) {
    lua_pushnil(L);
    lua_pushliteral(L, "busy");
    return 2;
  }
  lua_pushnumber(L, static_cast<double>(run));
  return 1;
}

// plan:call(feeds...) -> true, ndarray... of all taps; false when the run must be submitted; nil, error, refused when
// it failed, or (refused) when it was not even begun. Does not raise, which spares the caller a pcall.
int call(lua_State* L) {
  const int last = lua_gettop(L), feed_count = last - 1;
  State& state = state_of(L);
  PlanBox* const box = find_box<PlanBox>(L, 1, state);
  if (box == nullptr) protect(L, [&] { self(L); });  // raises
  const int tap_count = static_cast<int>(box->plan->taps.size());
  constexpr int kOther = 5;  // what is on the stack beside the results, and while an error is made
  if (tap_count > LUA_MINSTACK - kOther) luaL_checkstack(L, tap_count + kOther, "too many results");
  lua_pushboolean(L, true);
  // Nothing of Lua's runs before the call is over. So a single array is read, or made, in its box; several must lie
  // side by side.
  Tensor* tapped = nullptr;
  for (int i = 0; i < tap_count; ++i) tapped = &push_array(L, state);
  bool done = false;
  const auto run = [&] {
    Tensor* feeds = nullptr;
    if (feed_count == 1 && lua_type(L, 2) != LUA_TNUMBER) {
      feeds = &array_at(L, 2, "input", state);
    } else {
      box->feeds.resize(static_cast<size_t>(feed_count));
      for (int i = 0; i < feed_count; ++i) box->feeds[i] = feed_at(L, i + 2, *box->plan, static_cast<size_t>(i), state);
      feeds = box->feeds.data();
    }
    if (tap_count > 1) {
      box->tapped.resize(static_cast<size_t>(tap_count));
      tapped = box->tapped.data();
    }
    // The state keeps the failure: no object with a destructor may be alive when Lua raises.
    done = box->session->executor().run_now(*box->plan, feeds, static_cast<size_t>(feed_count), tapped,
                                            box->session->memory(), state.fault);
    if (tap_count > 1)
      for (int i = 0; i < tap_count; ++i) box_pushed<Tensor>(L, last + 2 + i) = std::move(tapped[i]);
  };
  const bool begun = attempt_allocating(L, state, run);
  for (Tensor& feed : box->feeds) feed = Tensor();
  for (Tensor& value : box->tapped) value = Tensor();  // which may not all have been made
  if (begun && !state.fault && done) return 1 + tap_count;
  if (begun && !state.fault) {
    lua_pushboolean(L, false);
    return 1;
  }
  const PlainError error = state.take_fault();
  lua_pushnil(L);
  push_error(L, error);
  lua_pushboolean(L, !begun);
  return 3;
}

int dump(lua_State* L) {
  std::string& text = push_box<std::string>(L);
  protect(L, [&] { text = self(L).plan->dump(); });
  push_string(L, text);
  return 1;
}

void push_feed(lua_State* L, const PlannedFeed& feed) {
  lua_createtable(L, 0, 3);
  set_string(L, "name", feed.name);
  set_type(L, feed.type);
}

}  // namespace

const Plan& plan_at(lua_State* L, int index) {
  if (const PreparedBox* const prepared = find_box<PreparedBox>(L, index)) return prepared->call->plan();
  return *box_at<PlanBox>(L, index, "a plan").plan;
}

int plan_info(lua_State* L) {
  const Plan* plan = nullptr;
  std::string& device = push_box<std::string>(L);
  protect(L, [&] {
    plan = &plan_at(L, 1);
    device = plan->device->describe();
  });
  lua_createtable(L, 0, 16);
  set_string(L, "device", device);
  set_string(L, "job", plan->job);
  set_number(L, "steps", static_cast<double>(plan->steps.size()));
  set_number(L, "kept_steps", plan->kept_steps);
  set_number(L, "form_bytes", static_cast<double>(plan->form_bytes()));
  set_number(L, "merged_ops", plan->merged_ops);
  set_number(L, "first_write", plan->first_write);
  set_number(L, "branches", plan->branch_count);
  set_number(L, "taps", static_cast<double>(plan->taps.size()));
  set_number(L, "bytes", static_cast<double>(plan->bytes()));
  set_number(L, "arena_bytes", static_cast<double>(plan->arena_bytes));
  set_number(L, "arena_lower_bound", static_cast<double>(plan->arena_lower_bound));
  set_number(L, "in_flight", plan->in_flight);
  set_number(L, "max_in_flight", plan->max_in_flight);
  set_list(L, "variables", plan->variables,
           [](lua_State* state, const PlannedVariable& use) { push_string(state, use.variable->name); });
  set_list(L, "feeds", plan->feeds, push_feed);
  return 1;
}

namespace {

// plan:forgotten() -> the first of its variables that the session has forgotten, or nil
int forgotten(lua_State* L) {
  protect(L, [&] { self(L); });
  const std::string& name = find_box<PlanBox>(L, 1)->plan->forgotten;
  if (name.empty()) return 0;
  push_string(L, name);
  return 1;
}

int set_max_in_flight(lua_State* L) {
  protect(L, [&] { self(L).plan->max_in_flight = static_cast<int>(integer_at(L, 2, "max_in_flight", 1, INT_MAX)); });
  return 0;
}

}  // namespace

// session:compile(graph, index of a gpu or nil) -> plan
int compile_graph(lua_State* L) {
  lua_settop(L, 3);
  State& state = state_of(L);
  collect_where_due(L, state);
  PlanBox& box = push_box<PlanBox>(L, state);
  protect_allocating(L, [&] {
    const SessionBox& session = box_at<SessionBox>(L, 1, "a session");
    const GraphBox& graph = box_at<GraphBox>(L, 2, "a graph");
    require(!session.session->closed(), ErrorCode::WrongState, "the session is closed");
    require(graph.session == session.session, ErrorCode::InvalidArgument, "the graph is of another session");
    std::shared_ptr<Device> gpu;
    if (!lua_isnil(L, 3)) gpu = session.session->gpu(static_cast<int>(integer_at(L, 3, "gpu", 0, INT_MAX)));
    box.session = session.session;
    box.plan = session.session->compile(*graph.graph, graph.job, std::move(gpu));
  });
  return 1;
}

void add_plan(lua_State* L, State& state) {
  static const luaL_Reg kMethods[] = {{"submit", submit},
                                      {"call", call},
                                      {"dump", dump},
                                      {"steps", plan_steps},
                                      {"info", plan_info},
                                      {"forgotten", forgotten},
                                      {"set_max_in_flight", set_max_in_flight},
                                      {nullptr, nullptr}};
  new_class(L, state, Tag::Plan, finalize<PlanBox>, "moonflow plan", kMethods);
}

}  // namespace moonflow::lua
