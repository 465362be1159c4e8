// Errors for reading: the text of whatever was raised, and one traceback without the library's own frames.
// Plain functions of the Lua interface, so that the launcher needs no engine for them.
#pragma once

#include <lua.hpp>

namespace moonflow::lua {

// A message handler: turns any error into its text and a traceback. An error that brings a traceback keeps it: it was
// raised in a callback, and says more than the place that delivered it. Others that waited with it are counted.
int describe_error(lua_State* L);

// (text, folder, only_place) -> text: the frames in `folder`, and the C functions around them, folded into one line
// each time; those below the first of the user's are the way to his code, and left out. With `only_place`: the first
// line alone, behind the place of the user's first frame.
int fold_traceback(lua_State* L);

}  // namespace moonflow::lua
