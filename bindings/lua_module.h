// The parts of the module `moonflow.core`, one function per file. Each sets its functions into the module table on the
// top of the stack and makes the metatables it needs.
#pragma once

#include "bindings/lua_glue.h"

namespace moonflow::lua {

void add_shape(lua_State* L, State& state);
void add_ndarray(lua_State* L, State& state);
void add_places(lua_State* L, State& state);
void add_array_sources(lua_State* L, State& state);
void add_draws(lua_State* L, State& state);
void add_session(lua_State* L, State& state);
void add_graph(lua_State* L, State& state);
void add_plan(lua_State* L, State& state);
void add_prepared(lua_State* L, State& state);
void add_chunks(lua_State* L, State& state);
void add_files(lua_State* L, State& state);
void add_pictures(lua_State* L, State& state);
void add_onnx(lua_State* L, State& state);
void add_system(lua_State* L, State& state);
void add_socket(lua_State* L, State& state);
void add_lines(lua_State* L, State& state);

int build_info(lua_State* L);

// Methods of the session that live with what they make.
int list_ops(lua_State* L);
int find_op(lua_State* L);
int op_paths(lua_State* L);
int make_graph(lua_State* L);
int compile_graph(lua_State* L);
int prepare_graph(lua_State* L);
int publish_weights(lua_State* L);
int profile_start(lua_State* L);
int profile_note(lua_State* L);
int profile_stop(lua_State* L);
// Methods of plans, and of prepared calls, which have one.
int plan_info(lua_State* L);
int plan_steps(lua_State* L);
// The plan of either.
const Plan& plan_at(lua_State* L, int index);

// Makes the prepared call of what prepared.parts of the library gives, four values at `index`: a graph, the first and
// the last token of its results, and its counters, { next, step, next, step, ... }.
void prepare_parts(lua_State* L, int index, const std::shared_ptr<HostMemory>& memory, PreparedBox& box);

// Pushes a shape userdata.
void push_shape(lua_State* L, const Shape& shape);
// The fields `dtype` and `shape` of the table on top of the stack.
void set_type(lua_State* L, const TensorType& type);

// Pushes { key -> text }. `texts` must be held as arrays are.
void push_texts(lua_State* L, const std::map<std::string, std::string>& texts);
// Pushes { name -> ndarray }. `arrays` must be held by a box, or by a caller of C.
void push_arrays(lua_State* L, const std::map<std::string, Tensor>& arrays);

}  // namespace moonflow::lua
