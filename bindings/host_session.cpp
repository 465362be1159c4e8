#include "bindings/host_session.h"

#include <algorithm>
#include <string_view>

#include "bindings/host_library.h"
#include "bindings/lua_memory.h"
#include "bindings/lua_module.h"
#include "engine/process_end.h"
#include "engine/recycling_memory.h"

namespace moonflow::host {

namespace {

constexpr const char* kAttached = "moonflow.host";  // registry: a session lives in this state

int log_line(lua_State* L) {
  const HostSession* session = HostSession::held(L, lua_upvalueindex(1));
  if (session != nullptr) session->log(luaL_checkstring(L, 1));
  return 0;
}

int forget(lua_State* L) {
  if (HostSession* session = HostSession::held(L, lua_upvalueindex(1))) session->runs.clear();
  return 0;
}

}  // namespace

std::string text_at(lua_State* L, const char* field) {
  lua_getfield(L, -1, field);
  const char* value = lua_tostring(L, -1);
  std::string text = value ? value : "";
  lua_pop(L, 1);
  return text;
}

// ---- entering Lua ------------------------------------------------------------------------------------------------

struct HostSession::Call {
  Work work;
  void* data;
  std::exception_ptr thrown;  // by C++; Lua would turn it into a string
};

// upvalue 1: the state of the glue. Arguments: the call, then whatever goes on to the work.
int HostSession::run_call(lua_State* L) {
  auto* call = static_cast<Call*>(lua_touserdata(L, 1));
  lua_remove(L, 1);
  try {
    call->work(L, call->data);
  } catch (const Status&) {
    call->thrown = std::current_exception();
  } catch (const std::exception&) {
    call->thrown = std::current_exception();
  }
  return 0;
}

// Leaves the error on the stack when there is one. Uses four of the twenty slots that every C function has.
int HostSession::protected_call(Work work, void* data, bool with_traceback) {
  const int base = lua_gettop(lua_);
  const bool on_error = !with_traceback && base > 0;  // the work is about the value on the top
  Call call{work, data, nullptr};
  if (with_traceback) push(lua_, kTraced);
  push(lua_, kCall);
  lua_pushlightuserdata(lua_, &call);
  if (on_error) lua_pushvalue(lua_, base);
  const int code = lua_pcall(lua_, on_error ? 2 : 1, 0, with_traceback ? base + 1 : 0);
  if (with_traceback) lua_remove(lua_, base + 1);
  if (call.thrown) {
    lua_settop(lua_, base);
    std::rethrow_exception(call.thrown);
  }
  return code;
}

// The owner's thread is inside the library, or in a function that the library has called.
struct HostSession::Entry {
  HostSession& session;
  explicit Entry(HostSession& session) : session(session) { ++session.depth_; }
  ~Entry() {
    if (--session.depth_ > 0) return;
    Session* const engine = session.state_->newest.get();
    if (engine && engine->executor().interrupt_heeded() && engine->executor().in_flight() == 0)
      engine->executor().clear_interrupt();
  }
};

// Lua too knows that it is inside a function of the host.
struct HostSession::Handler {
  HostSession& session;
  explicit Handler(HostSession& session) : session(session) { session.set_delivering(true); }
  ~Handler() { session.set_delivering(false); }
};

void HostSession::call(Work work, void* data) {
  const Entry entry(*this);
  drop_references();
  if (const int code = protected_call(work, data, true)) throw_lua_error(code);
}

// Turns the error on the top of the stack into a thrown Status.
void HostSession::throw_lua_error(int code) {
  const int top = lua_gettop(lua_);
  std::vector<Status> statuses;
  const auto describe = [&](lua_State* L) {
    push_function(L, "describe");
    lua_insert(L, 1);
    lua_call(L, 1, 1);
    const int count = static_cast<int>(lua_objlen(L, -1));
    for (int i = 1; i <= count; ++i) {
      lua_rawgeti(L, -1, i);
      Status status(code_named(text_at(L, "code")), text_at(L, "text"));
      status.where = text_at(L, "where");
      status.job = text_at(L, "job");
      status.op = text_at(L, "op");
      status.traceback = text_at(L, "traceback");
      statuses.push_back(std::move(status));
      lua_pop(L, 1);
    }
  };
  using Describe = decltype(describe);
  int failed = code;
  if (code != LUA_ERRMEM)
    failed = protected_call([](lua_State* L, void* data) { (*static_cast<const Describe*>(data))(L); },
                            const_cast<void*>(static_cast<const void*>(&describe)), false);
  lua_settop(lua_, top - 1);
  if (failed == LUA_ERRMEM) refuse(MF_OUT_OF_MEMORY, "out of memory in Lua");
  if (failed != 0 || statuses.empty()) refuse(MF_INTERNAL, "an error that cannot be described");
  for (size_t i = statuses.size() - 1; i-- > 0;) statuses[i].cause = make_status(std::move(statuses[i + 1]));
  throw std::move(statuses[0]);
}

void HostSession::push_function(lua_State* L, const char* name) const {
  push(L, kHost);
  lua_getfield(L, -1, name);
  lua_remove(L, -2);
}

void HostSession::push_self(lua_State* L) const { push(L, kSelf); }

HostSession* HostSession::held(lua_State* L, int index) {
  return *static_cast<HostSession**>(lua_touserdata(L, index));
}

// ---- delivering ------------------------------------------------------------------------------------------------

bool HostSession::delivering() {
  if (depth_ > 0) return true;
  if (closed()) return false;
  bool inside = false;
  // A state that cannot tell is to be closed all the same.
  try_enter([&](lua_State* L) {
    push_function(L, "inside_handler");
    lua_call(L, 0, 1);
    inside = lua_toboolean(L, -1) != 0;
  });
  return inside;
}

bool HostSession::idle() const {
  return state_->newest && state_->newest->completions().empty() && !state_->looks_at_each_poll;
}

bool HostSession::deliver() {
  const std::shared_ptr<Session> engine = state_->newest;  // kept: the host's function may shut it down
  if (!engine || state_->looks_at_each_poll || engine->profile()) return false;
  if (engine->completions().empty() || engine->completions().announced()) return false;
  const Completion* next = engine->front();
  HostRun* const waiting = next ? runs.find(next->run) : nullptr;
  if (waiting == nullptr || waiting->only_lua) return false;
  for (; !next->end; next = engine->front()) {
    waiting->take(static_cast<size_t>(next->token) - 1, std::move(next->tensor));
    engine->pop();
  }
  mf_status* const failure = next->error ? status_from([&] { return Status(*next->error); }) : nullptr;
  engine->pop();
  const Entry entry(*this);
  const Handler handler(*this);
  runs.remove(waiting).finish(failure);
  return true;
}

// Writes where lua/moonflow/session.lua looks, into a slot that exists; this can neither fail nor call Lua.
void HostSession::set_delivering(bool delivering) {
  if (closed()) return;
  push(lua_, kDelivering);
  lua_pushboolean(lua_, delivering);
  lua_rawseti(lua_, -2, 1);
  lua_pop(lua_, 1);
}

// ---- opening -----------------------------------------------------------------------------------------------------

HostSession::HostSession(const mf_session_options& options)
    : interrupted_(std::make_shared<std::atomic<bool>>(false)), log_(options.log), log_user_(options.log_user) {
  references_.fill(LUA_NOREF);
  Stay().require_in_time();
  if (options.allocator.allocate != nullptr) {
    if (options.allocator.release == nullptr) refuse(MF_INVALID_ARGUMENT, "the allocator has no release function");
    const auto allocator = std::make_shared<HostAllocator>(options.allocator);
    if (options.lua_state == nullptr) lua_memory_ = std::make_unique<LuaMemory>(allocator);
    memory_ = allocator;
  } else {
    memory_ = std::make_shared<RecyclingMemory>();
  }
  auto* host_state = static_cast<lua_State*>(options.lua_state);
  try {
    if (host_state == nullptr) {
      // LuaJIT's own allocator is the faster one for its many small blocks.
      owned_ = lua_memory_ ? lua_memory_->make_state() : luaL_newstate();
      if (owned_ == nullptr) refuse(MF_OUT_OF_MEMORY, "no memory for a lua_State");
      if (!lua_memory_ && lua_cpcall(owned_, open_libraries, nullptr) != 0)
        refuse(MF_OUT_OF_MEMORY, "no memory for Lua's libraries");
      host_state = owned_;
    }
    main_ = host_state;
    load_library(host_state, options.library_path);
    enter([&](lua_State* L) {
      push_function(L, "open");
      lua_pushinteger(L, options.threads);
      if (log_) {
        push_self(L);
        lua_pushcclosure(L, log_line, 1);
      } else {
        lua_pushnil(L);
      }
      push_receive(L, *this);
      push_self(L);
      lua_pushcclosure(L, forget, 1);
      lua_call(L, 4, 0);
    });
  } catch (...) {  // nothing here calls Lua any more
    close();
    throw;
  }
}

HostSession::~HostSession() {
  if (!closed() && is_owner()) close();
}

// Loads the library into the state, unless it is there, and takes the references that `enter` needs.
void HostSession::load_library(lua_State* host_state, const char* library_path) {
  const std::string folder = library_folder(library_path);
  struct Loading {
    HostSession* session;
    const std::string* folder;
    lua::Given given;
    const char* refusal;
  } loading{this, &folder, {memory_, interrupted_}, nullptr};

  // The call below is plain, since `enter` needs what it loads.
  const auto load = [](lua_State* L) {
    auto* loading = static_cast<Loading*>(lua_touserdata(L, 1));
    HostSession& self = *loading->session;
    lua_getfield(L, LUA_REGISTRYINDEX, kAttached);
    if (!lua_isnil(L, -1)) {
      loading->refusal = "this lua_State has a session already";
      return 0;
    }
    push_core(L, *loading->folder, loading->given);
    lua_getfield(L, -1, "build_info");
    if (lua_tocfunction(L, -1) != lua::build_info) {
      loading->refusal = "this lua_State has loaded another copy of the library";
      return 0;
    }
    lua_getupvalue(L, -1, 1);
    self.state_ = static_cast<lua::State*>(lua_touserdata(L, -1));
    lua_pushcclosure(L, run_call, 1);
    self.anchor(L, kCall);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "moonflow");
    lua_call(L, 1, 0);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "moonflow.host");
    lua_call(L, 1, 1);
    lua_getfield(L, -1, "traced");
    self.anchor(L, kTraced);
    lua_getfield(L, -1, "delivering");
    self.anchor(L, kDelivering);
    self.anchor(L, kHost);
    self.self_ = static_cast<HostSession**>(lua_newuserdata(L, sizeof(HostSession*)));
    *self.self_ = &self;
    self.anchor(L, kSelf);
    lua_State* const thread = lua_newthread(L);
    self.anchor(L, kThread);
    lua_pushboolean(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, kAttached);
    self.lua_ = thread;
    self.is_root_ = lua_pushthread(L) != 0;
    return 0;
  };
  const int code = lua_cpcall(host_state, load, &loading);
  std::string message = code != 0 && lua_type(host_state, -1) == LUA_TSTRING ? lua_tostring(host_state, -1) : "";
  if (code != 0) lua_pop(host_state, 1);
  lua_cpcall(
      host_state,
      [](lua_State* L) {
        lua_pushnil(L);
        lua_setfield(L, LUA_REGISTRYINDEX, lua::kGivenKey);
        return 0;
      },
      nullptr);
  if (loading.refusal) refuse(MF_WRONG_STATE, loading.refusal);
  const std::string_view out = "\tnot enough memory";  // all that `require` keeps of a LUA_ERRMEM
  const bool is_out = message.size() > out.size() && message.compare(message.size() - out.size(), out.size(), out) == 0;
  if (code == LUA_ERRMEM || is_out) refuse(MF_OUT_OF_MEMORY, "no memory to load the library");
  if (code != 0) refuse(MF_SCRIPT_ERROR, message.empty() ? "the library does not load" : message);
  if (state_->newest) interrupted_ = state_->newest->executor().interrupt_flag();  // it was required before
  state_->interrupted = interrupted_;
  memory_ = state_->memory;
  recycle_for(std::this_thread::get_id());  // not for the thread that had required the library
}

void HostSession::close() {
  ++depth_;  // finalizers of scripts run, and what they call may not close it once more
  if (lua_ != nullptr) {
    // What Lua has no memory to forget goes with its state, or with the next session in it.
    try_enter([&](lua_State* L) {
      push_function(L, "close");
      lua_call(L, 0, 0);
      lua_pushnil(L);
      lua_setfield(L, LUA_REGISTRYINDEX, kAttached);
    });
    *self_ = nullptr;
  }
  // Where loading has failed there is no thread yet, but some of what it refers to.
  lua_State* const any = lua_ != nullptr ? lua_ : main_;
  lua_ = nullptr;
  if (owned_ != nullptr) {
    lua_close(std::exchange(owned_, nullptr));
  } else {
    for (int& reference : references_) luaL_unref(any, LUA_REGISTRYINDEX, std::exchange(reference, LUA_NOREF));
    for (const int reference : kept_) luaL_unref(any, LUA_REGISTRYINDEX, reference);
  }
  kept_.clear();
  runs.clear();
  --depth_;
}

// ---- its thread ------------------------------------------------------------------------------------------------

uint64_t thread_number() noexcept {
  static std::atomic<uint64_t> last{0};
  static thread_local uint64_t number = 0;
  if (number == 0) number = ++last;
  return number;
}

const char* HostSession::why_not_owner() const {
  if (!is_here()) return "the session stayed with the process that forked; open one of this process's own";
  if (owner_.load(std::memory_order_relaxed) == 0)
    return "the session has been handed over, and belongs to the thread that takes it over next";
  return "the session belongs to another thread, which has not handed it over";
}

void HostSession::require_owner() const {
  if (!is_owner()) refuse(MF_WRONG_THREAD, why_not_owner());
  if (closed()) refuse(MF_INVALID_HANDLE, "the session is closed");
}

// Whether this thread has come here from a function of Lua's. Not known where the host itself resumes coroutines.
bool HostSession::inside_lua() const {
  lua_Debug frame;
  return is_root_ && lua_getstack(main_, 0, &frame) != 0;
}

void HostSession::hand_over() {
  if (delivering() || inside_lua())
    refuse(MF_WRONG_STATE, "a call of the session, or of its lua_State, is under way on this thread; ",
           "hand the session over when that has returned");
  recycle_for({});  // this thread may still drop small arrays, those of prepared calls
  if (state_->newest) state_->newest->device().rest();
  owner_.store(0, std::memory_order_release);
}

bool HostSession::take_over() noexcept {
  uint64_t owner = 0;
  if (!is_here() || !owner_.compare_exchange_strong(owner, thread_number(), std::memory_order_acquire)) return false;
  recycle_for(std::this_thread::get_id());
  return true;
}

void HostSession::recycle_for(std::thread::id owner) {
  if (auto* recycling = dynamic_cast<RecyclingMemory*>(memory_.get())) recycling->set_owner(owner);
}

const std::shared_ptr<Session>& HostSession::newest() const { return state_->newest; }

Session& HostSession::engine() {
  if (!state_->newest) {
    enter([&](lua_State* L) {
      push_function(L, "reopen");
      lua_call(L, 0, 0);
    });
  }
  return *state_->newest;
}

int HostSession::keep_reference(lua_State* L) {
  kept_.push_back(LUA_NOREF);  // first, since it may throw
  return kept_.back() = luaL_ref(L, LUA_REGISTRYINDEX);
}

void HostSession::drop_reference(int reference) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(dropped_mutex_);
    dropped_.push_back(reference);
  } catch (const std::bad_alloc&) {
    // It is kept until the state closes.
  }
}

void HostSession::drop_references() {
  std::vector<int> dropped;
  {
    const std::lock_guard<std::mutex> lock(dropped_mutex_);
    dropped.swap(dropped_);
  }
  for (const int reference : dropped) {
    kept_.erase(std::find(kept_.begin(), kept_.end(), reference));
    luaL_unref(lua_, LUA_REGISTRYINDEX, reference);
  }
}

}  // namespace moonflow::host

// ---- the functions -----------------------------------------------------------------------------------------------

using namespace moonflow::host;

namespace {

// The options as this version knows them, out of a struct of this version or a later one. Nothing smaller was ever
// theirs, and what ends within a pointer would give half of one.
mf_session_options read_options(const mf_session_options* given) {
  if (given == nullptr) return {};
  require_size(*given, [] { return "the options"; });
  const mf_session_options options = *given;
  if (options.threads < 0) refuse(MF_INVALID_ARGUMENT, "threads is ", options.threads, ", wanted 0 or more");
  return options;
}

}  // namespace

extern "C" {

mf_status* mf_session_open(const mf_session_options* given, mf_session** session) {
  return guarded([&] {
    require_out(session, "session");
    *session = nullptr;
    auto handle = std::make_unique<SessionHandle>();
    handle->session = std::make_shared<HostSession>(read_options(given));
    *session = make_handle<mf_session>(std::move(handle));
  });
}

mf_code mf_session_close(mf_session* handle) {
  const Uncancelled uncancelled;
  {
    const Pinned<SessionHandle, mf_session> pinned(handle);
    if (!pinned) return MF_INVALID_HANDLE;
    HostSession& session = *pinned->session;
    if (!session.is_owner() && !session.take_over()) return MF_WRONG_THREAD;
    if (!session.may_close()) return MF_WRONG_STATE;
    session.close();
  }
  return close_handle<SessionHandle>(handle, true) ? MF_OK : MF_INVALID_HANDLE;
}

mf_status* mf_session_hand_over(mf_session* handle) {
  return guarded([&] { Entered(handle)->hand_over(); });
}

mf_status* mf_session_take_over(mf_session* handle) {
  return guarded([&] {
    const Checked<SessionHandle, mf_session> pinned(handle, "a session");
    HostSession& session = *pinned->session;
    if (session.take_over()) return;
    if (session.is_owner()) refuse(MF_WRONG_STATE, "the session belongs to this thread already");
    refuse(MF_WRONG_THREAD, session.why_not_owner());
  });
}

mf_status* mf_session_lua_state(mf_session* handle, void** lua_state) {
  return guarded([&] {
    require_out(lua_state, "lua_state");
    *lua_state = Entered(handle)->state();
  });
}

mf_status* mf_session_memory(mf_session* handle, mf_memory* memory) {
  return guarded([&] {
    require_out(memory, "memory");
    require_size(*memory, [] { return "the memory"; });
    const Entered session(handle);
    const std::shared_ptr<moonflow::HostMemory> arrays = session->memory();
    const auto recycling = std::dynamic_pointer_cast<moonflow::RecyclingMemory>(arrays);
    const auto& engine = session->newest();  // none, once a script has ended it
    memory->live = static_cast<uint64_t>(arrays->live_bytes.load(std::memory_order_relaxed));
    memory->spare = recycling ? recycling->spare_bytes() : 0;
    memory->variables = engine ? static_cast<uint64_t>(engine->variables().bytes()) : 0;
    memory->lua = uint64_t{1024} * static_cast<uint64_t>(lua_gc(session->state(), LUA_GCCOUNT, 0));
  });
}

mf_code mf_session_interrupt(mf_session* handle) {
  const Pinned<SessionHandle, mf_session> pinned(handle);
  if (!pinned) return MF_INVALID_HANDLE;
  pinned->session->interrupt();
  return MF_OK;
}

}  // extern "C"
