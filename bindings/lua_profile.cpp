// Looking at what ran: session:profile, the trace file that browsers show as a timeline, and the steps of a plan.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

#include "bindings/file.h"
#include "bindings/json.h"
#include "bindings/lua_module.h"
#include "engine/profile.h"
#include "kernels/catalog.h"

namespace moonflow::lua {

namespace {

Session& session_at(lua_State* L) { return *box_at<SessionBox>(L, 1, "a session").session; }

// ---- the trace: one JSON object per event, in the format of Chrome's about:tracing and of Perfetto ------------------

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

Json values_text(const std::vector<TensorType>& types) {
  Json::Array list;
  for (const TensorType& type : types) list.push_back(type.str());
  return list;
}

Json describe_event(const ProfileEvent& event) {
  Json::Object line = {{"ph", "X"},
                       {"pid", 1},
                       {"tid", event.thread},
                       {"ts", microseconds(event.begin_ns)},
                       {"dur", microseconds(event.end_ns - event.begin_ns)}};
  Json::Object arguments;
  if (event.run != 0) arguments["run"] = event.run;
  if (event.plan == nullptr) {
    line["name"] = event.name;
    line["cat"] = "delivery";
  } else if (event.step < 0) {
    line["name"] = event.plan->job;
    line["cat"] = "run";
  } else {
    const Step& step = event.plan->steps[static_cast<size_t>(event.step)];
    line["name"] = step.label;
    line["cat"] = "step";
    arguments["inputs"] = values_text(step.input_types);
    arguments["outputs"] = values_text(step.output_types);
    arguments["bytes"] = step.bytes();
    if (step.flops > 0) arguments["flops"] = step.flops;
    if (!step.site.empty()) arguments["line"] = step.site;
  }
  line["args"] = std::move(arguments);
  return line;
}

// The arrow from the end of a run to its first delivery.
Json arrow(const ProfileEvent& event, const char* phase, int64_t ns) {
  Json::Object line = {{"ph", phase},     {"pid", 1},        {"tid", event.thread}, {"ts", microseconds(ns)},
                       {"id", event.run}, {"name", "queue"}, {"cat", "queue"}};
  if (phase[0] == 'f') line["bp"] = "e";
  return line;
}

std::string trace_of(const std::vector<ProfileEvent>& events) {
  std::string text = "[\n";
  const auto write = [&](const Json& line) { text += write_json(line, JsonStyle::Line, InvalidUtf8::Replace) + ",\n"; };
  std::map<uint64_t, bool> arrived;  // runs with an arrow that has not ended
  int threads = 0;
  for (const ProfileEvent& event : events) {
    threads = std::max(threads, event.thread + 1);
    write(describe_event(event));
    if (event.run == 0) continue;
    if (event.plan && event.step < 0) {
      write(arrow(event, "s", event.end_ns));
      arrived[event.run] = false;
    } else if (!event.plan && arrived.count(event.run) && !arrived[event.run]) {
      write(arrow(event, "f", event.begin_ns));
      arrived[event.run] = true;
    }
  }
  for (int thread = 0; thread < threads; ++thread)
    write(Json::Object{{"ph", "M"},
                       {"pid", 1},
                       {"tid", thread},
                       {"name", "thread_name"},
                       {"args", Json::Object{{"name", "thread " + std::to_string(thread)}}}});
  write(Json::Object{{"ph", "M"}, {"pid", 1}, {"name", "process_name"}, {"args", Json::Object{{"name", "moonflow"}}}});
  text.replace(text.size() - 2, 2, "\n]\n");
  return text;
}

// ---- the steps of a plan -----------------------------------------------------------------------------------------

// "float32 (100, 10)", and how it lies in memory where that is not by rows.
std::string value_text(const Device& device, const TensorType& type, const Layout& layout) {
  return layout.row_major() ? type.str() : type.str() + " " + device.describe(layout);
}

struct StepText {
  std::string label, site, inputs, output;
  std::vector<int> reads;                     // the steps that made its inputs
  std::vector<std::string> feeds, variables;  // those it reads; a variable may have been written by a step before
  std::vector<std::string> written;           // variables
  std::vector<Token> taps;                    // of what it makes
};

StepText describe_step(const Plan& plan, const Step& step) {
  StepText text;
  text.label = step.label;
  text.site = step.site;
  for (size_t i = 0; i < step.output_types.size(); ++i)
    text.output += (i > 0 ? ", " : "") + value_text(*plan.device, step.output_types[i], step.output_layouts[i]);
  for (size_t i = 0; i < step.input_types.size(); ++i)
    text.inputs += (i > 0 ? ", " : "") + value_text(*plan.device, step.input_types[i], step.input_layouts[i]);
  return text;
}

template <class Value>
void add_once(std::vector<Value>& list, const Value& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

// Finds out what each step reads. A plan keeps addresses alone, so this is who wrote last what lies there. Those of
// feeds and of values made for a tap alone change while the plan runs: they are not looked at, and known without it.
void trace_reads(const Plan& plan, std::vector<StepText>& texts) {
  std::map<const void*, std::string> variables;
  for (const PlannedVariable& use : plan.variables) variables[use.copy->memory.data()] = use.variable->name;
  std::set<std::pair<int, int>> fed, tapped;  // step and input, step and output
  for (const PlannedFeed& feed : plan.feeds) {
    for (const PlannedFeed::Place& place : feed.places) {
      fed.emplace(place.step, place.input);
      add_once(texts[place.step].feeds, feed.name);
    }
  }
  for (const PlannedTap& tap : plan.taps) {
    if (tap.after_step >= 0 && tap.feed < 0) texts[tap.after_step].taps.push_back(tap.token);
    if (tap.output >= 0) tapped.emplace(tap.after_step, tap.output);
  }
  std::map<const void*, int> writer;
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
    const Step& step = plan.steps[s];
    for (int i = 0; i < static_cast<int>(step.inputs.size()); ++i) {
      if (fed.count({s, i})) continue;
      const auto made = writer.find(step.inputs[i]);
      if (made != writer.end()) add_once(texts[s].reads, made->second);
      const auto variable = variables.find(step.inputs[i]);
      if (variable == variables.end()) continue;
      add_once(step.writes_input(i) ? texts[s].written : texts[s].variables, variable->second);
    }
    for (int i = 0; i < static_cast<int>(step.inputs.size()); ++i)
      if (step.writes_input(i) && !fed.count({s, i})) writer[step.inputs[i]] = s;
    for (int i = 0; i < static_cast<int>(step.outputs.size()); ++i)
      if (!tapped.count({s, i}) && step.output_types[i].shape.count() > 0) writer[step.outputs[i]] = s;
  }
}

}  // namespace

// session:profile_start(most events to keep, or nil)
int profile_start(lua_State* L) {
  protect(L, [&] {
    const size_t most = lua_isnoneornil(L, 2) ? Profile::kMost : static_cast<size_t>(integer_at(L, 2, "most"));
    session_at(L).attach(std::make_shared<Profile>(most));
  });
  return 0;
}

// session:profile_note(name, begin, run): something that began at `begin` (of core.clock) and ends now
int profile_note(lua_State* L) {
  protect(L, [&] {
    const std::shared_ptr<Profile>& profile = session_at(L).profile();
    if (!profile) return;
    ProfileEvent event;
    event.name = std::string(string_at(L, 2, "name"));
    event.begin_ns = static_cast<int64_t>(number_at(L, 3, "begin") * 1e9);
    event.run = static_cast<uint64_t>(integer_at(L, 4, "run"));
    profile->add(std::move(event));
  });
  return 0;
}

// session:profile_stop(path or nil) -> number of events, and of those that were left out
int profile_stop(lua_State* L) {
  lua_settop(L, 2);
  size_t count = 0, left_out = 0;
  protect(L, [&] {
    const std::shared_ptr<Profile> profile = session_at(L).attach(nullptr);
    if (!profile) return;
    std::vector<ProfileEvent> events;
    std::tie(events, left_out) = profile->end();
    count = events.size() + left_out;
    if (!lua_isnil(L, 2)) replace_file(path_at(L, 2), trace_of(events), nullptr, 0);
  });
  lua_pushnumber(L, static_cast<double>(count));
  lua_pushnumber(L, static_cast<double>(left_out));
  return 2;
}

// plan:steps(), and of a prepared call too -> list of { label, site, inputs, output, branch, flops, bytes, ns,
// launches, reads, feeds, variables, written, taps }: reads are places in this list, from 1
int plan_steps(lua_State* L) {
  lua_settop(L, 1);
  auto& texts = keep<std::vector<StepText>>(L);
  const Plan* plan = nullptr;
  protect(L, [&] {
    plan = &plan_at(L, 1);
    for (const Step& step : plan->steps) texts.push_back(describe_step(*plan, step));
    trace_reads(*plan, texts);
  });
  lua_createtable(L, static_cast<int>(texts.size()), 0);
  for (size_t i = 0; i < texts.size(); ++i) {
    const Step& step = plan->steps[i];
    lua_createtable(L, 0, 14);
    set_string(L, "label", texts[i].label);
    set_string(L, "site", texts[i].site);
    set_string(L, "inputs", texts[i].inputs);
    set_string(L, "output", texts[i].output);
    set_number(L, "branch", step.branch);
    set_number(L, "flops", step.flops);
    set_number(L, "bytes", static_cast<double>(step.bytes()));
    set_number(L, "ns", static_cast<double>(step.spent.ns.load()));
    set_number(L, "launches", static_cast<double>(step.spent.launches.load()));
    set_list(L, "reads", texts[i].reads, [](lua_State* state, int place) { lua_pushinteger(state, place + 1); });
    set_list(L, "feeds", texts[i].feeds, push_string);
    set_list(L, "variables", texts[i].variables, push_string);
    set_list(L, "written", texts[i].written, push_string);
    set_list(L, "taps", texts[i].taps, lua_pushnumber);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

}  // namespace moonflow::lua
