// Ctrl-C for a program that runs Lua on one thread. The signal stops what the engine runs, before its next step, and
// sets a hook that raises "interrupted" in the state. Compiled loops never look at hooks, and a single step may be
// long, so a script that does not stop in time is ended with exit code 130; at a prompt it takes three Ctrl-C in a row.
//
// A script meets SIGTERM, by which services are stopped, in the same way, and the process then dies of it. A prompt it
// ends at once.
#pragma once

#include <lua.hpp>

namespace moonflow::interruption {

constexpr int kExitCode = 130;

// Called once, on the thread that runs the state, before it loads the library.
void listen(lua_State* L);
// Whether an unanswered Ctrl-C ends the process. It does until a prompt says otherwise.
void ends_process(bool ends);
bool asked();
// That of a process whose script was stopped. After SIGTERM there is none, and it does not come back.
int exit_code();
// True once per Ctrl-C; the state runs on as if nothing had happened.
bool take();
// Ends the process soon, if it does not end by itself.
void end_soon();

}  // namespace moonflow::interruption
