// The prompt: reads chunks of lines, with the line editor where there is a terminal, and hands them to a conversation.
// That is a Lua object: the evaluator of lua/moonflow/repl.lua, or the attached one of lua/moonflow/serve.lua. Its
// methods: incomplete(text), evaluate(text) -> fine, leave; complete(text) -> word, choices; pump() -> fine, leave;
// descriptor() -> number or nil.
#pragma once

#include <lua.hpp>

namespace moonflow {

// Reads until the input ends, or the conversation does; it is on the top of the stack, and is taken from there. False
// when something failed and nobody was there to see it.
bool run_prompt(lua_State* L);

}  // namespace moonflow
