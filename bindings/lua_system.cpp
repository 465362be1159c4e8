// The little that the Lua side needs of the operating system and that plain Lua cannot tell: a steady clock, the
// terminal, the names in a folder, the machine's GPUs, the processes that compute together.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <filesystem>
#include <thread>

#include "bindings/file.h"
#include "bindings/lua_module.h"
#include "engine/process_end.h"
#include "kernels/catalog.h"
#include "kernels/cpu/simd.h"
#include "kernels/cuda.h"
#include "kernels/processes.h"

namespace moonflow::lua {

namespace {

// Seconds since some fixed moment; never steps back.
int clock(lua_State* L) {
  lua_pushnumber(L, std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
  return 1;
}

int has_begun_to_end(lua_State* L) {
  lua_pushboolean(L, process_ends());
  return 1;
}

// core.measure_peak_flops(threads) -> number; 0: as many threads as cores
int measure_peak(lua_State* L) {
  double flops = 0;
  protect(L, [&] {
    const auto threads = static_cast<int>(integer_at(L, 1, "threads", 0, 4096));
    flops = measure_peak_flops(threads > 0 ? threads : static_cast<int>(std::thread::hardware_concurrency()));
  });
  lua_pushnumber(L, flops);
  return 1;
}

// core.multiplies_bytes() -> whether the processor multiplies whole numbers of 8 bits at least as fast as floats
int multiplies_bytes(lua_State* L) {
  bool does = false;
  protect(L, [&] { does = cpu::simd() != cpu::Simd::Plain; });
  lua_pushboolean(L, does);
  return 1;
}

void push_card(lua_State* L, const CudaCard& card) {
  lua_createtable(L, 0, 3);
  set_string(L, "name", card.name);
  set_number(L, "memory_bytes", static_cast<double>(card.memory_bytes));
  set_number(L, "capability", card.capability / 10.0);
}

// core.gpu_devices() -> { { name, memory_bytes, capability }, ... }, and with an empty list the reason
int gpu_devices(lua_State* L) {
  lua_settop(L, 0);
  auto& probe = keep<CudaProbe>(L);
  protect(L, [&] { probe = probe_cuda(); });
  push_list(L, probe.cards, push_card);
  if (!probe.cards.empty()) return 1;
  push_string(L, probe.reason);
  return 2;
}

// core.processes() -> rank, size, rank on this machine
int processes_now(lua_State* L) {
  lua_pushinteger(L, processes().rank());
  lua_pushinteger(L, processes().size());
  lua_pushinteger(L, processes().local_rank());
  return 3;
}

// core.join_processes(patience in seconds) -> as core.processes
int join(lua_State* L) {
  protect(L, [&] { join_processes(number_at(L, 1, "patience"), state_of(L).interrupt); });
  return processes_now(L);
}

// core.stop_processes(): tells the others that this one has been stopped
int stop(lua_State* L) {
  protect(L, [] { processes().stop(); });
  return 0;
}

// core.part(): waits for the others, where one of them has been stopped
int part(lua_State* L) {
  protect(L, [] { processes().part(); });
  return 0;
}

int is_terminal(lua_State* L) {
  bool terminal = false;
  protect(L, [&] { terminal = ::isatty(static_cast<int>(integer_at(L, 1, "descriptor", 0, INT_MAX))) == 1; });
  lua_pushboolean(L, terminal);
  return 1;
}

// core.terminal_columns(descriptor) -> number, or nil when it is no terminal
int terminal_columns(lua_State* L) {
  winsize size{};
  protect(L, [&] { ::ioctl(static_cast<int>(integer_at(L, 1, "descriptor", 0, INT_MAX)), TIOCGWINSZ, &size); });
  if (size.ws_col == 0) return 0;
  lua_pushnumber(L, size.ws_col);
  return 1;
}

// core.list_directory(path) -> sorted names, or nil when there is no such folder
int list_directory(lua_State* L) {
  lua_settop(L, 1);
  auto& names = keep<std::vector<std::string>>(L);
  bool found = true;
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    found = folder || (errno != ENOENT && errno != ENOTDIR);
    if (!found) return;
    if (!folder) fail_errno(path, "list");
    names = names_in(folder, path);
  });
  if (!found) return 0;
  push_list(L, names, push_string);
  return 1;
}

// core.make_directory(path): also those above it; nothing happens when it is there
int make_directory(lua_State* L) {
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    std::error_code problem;
    std::filesystem::create_directories(path, problem);
    require(!problem, ErrorCode::Io, "cannot make the folder '", path, "': ", problem.message());
  });
  return 0;
}

}  // namespace

void add_system(lua_State* L, State& state) {
  static const luaL_Reg kFunctions[] = {{"clock", clock},
                                        {"process_ends", has_begun_to_end},
                                        {"measure_peak_flops", measure_peak},
                                        {"multiplies_bytes", multiplies_bytes},
                                        {"gpu_devices", gpu_devices},
                                        {"processes", processes_now},
                                        {"join_processes", join},
                                        {"stop_processes", stop},
                                        {"part", part},
                                        {"isatty", is_terminal},
                                        {"terminal_columns", terminal_columns},
                                        {"list_directory", list_directory},
                                        {"make_directory", make_directory},
                                        {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
}

}  // namespace moonflow::lua
