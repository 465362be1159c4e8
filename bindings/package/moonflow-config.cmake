# find_package(moonflow) gives moonflow::moonflow, the C interface, and moonflow::cpp, the C++ one on top of it. Both
# link LuaJIT, which pkg-config finds.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND AND NOT TARGET PkgConfig::moonflow_luajit)
  pkg_check_modules(moonflow_luajit QUIET IMPORTED_TARGET luajit)
endif()
if(TARGET PkgConfig::moonflow_luajit)
  include(${CMAKE_CURRENT_LIST_DIR}/moonflow-targets.cmake)
else()
  set(moonflow_FOUND FALSE)
  set(moonflow_NOT_FOUND_MESSAGE
    "moonflow needs LuaJIT 2.1, which pkg-config does not find; on Debian: libluajit-5.1-dev")
endif()
