-- From the top of the source tree:
--   luarocks --lua-version 5.1 make bindings/package/moonflow-scm-1.rockspec
-- CMAKE_BUILD_PARALLEL_LEVEL=8 before it builds with eight processes. .ci/setup lists the packages that must be there.
rockspec_format = "3.0"
package = "moonflow"
version = "scm-1"
source = {
  url = "git+file://.",  -- only `make`, which takes the tree it is called in
}
description = {
  summary = "Deep learning with job functions, driven from Lua",
  license = "MIT",
}
supported_platforms = { "linux" }
dependencies = { "lua == 5.1" }  -- LuaJIT 2.1 it must be; it counts as 5.1
build = {
  type = "cmake",
  variables = {
    CMAKE_BUILD_TYPE = "Release",
    CMAKE_INSTALL_PREFIX = "$(PREFIX)",
    MOONFLOW_LUA_DIR = "$(LUADIR)",
    MOONFLOW_LUA_C_DIR = "$(LIBDIR)",
    MOONFLOW_LUA_ONLY = "ON",
    MOONFLOW_TESTS = "OFF",
  },
}
