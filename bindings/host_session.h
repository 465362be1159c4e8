// A session of the C ABI: a lua_State, its own or the host's, with the library loaded into it, and the thread that may
// enter it. Everything that runs Lua goes through `enter`, so no Lua error leaves this file's callers as such.
//
// One thread at a time owns it. An owner hands it over by ceasing to be one, and what it has written is seen by the
// next owner, who takes over; in between nobody touches anything here but `owner_`.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "bindings/host_runs.h"

namespace moonflow::host {

class LuaMemory;

// A number of its own for each thread of the process, from 1: the id of one that has ended the system gives to another.
uint64_t thread_number() noexcept;

class HostSession : public std::enable_shared_from_this<HostSession> {
 public:
  explicit HostSession(const mf_session_options& options);
  ~HostSession();

  // Owner thread, where `may_close`.
  void close();
  bool closed() const { return lua_ == nullptr; }
  lua_State* state() const { return main_; }
  int depth() const { return depth_; }  // calls under way on the owner's stack
  // Whether one of its callbacks is running: one that the host has called, or a script of the host's own state.
  bool delivering();
  // Not in a callback, nor below a function of a state that would be gone when it goes on.
  bool may_close() { return !delivering() && !(owned_ != nullptr && inside_lua()); }
  bool is_owner() const { return owner_.load(std::memory_order_relaxed) == thread_number() && is_here(); }
  // Refuses other threads, and a session that is closed.
  void require_owner() const;
  // Owner thread, with nothing of the session or its lua_State under way on it.
  void hand_over();
  // Any thread. False when another one owns it, or this one already does.
  bool take_over() noexcept;
  // What the calling thread, which does not own the session, is to be told.
  const char* why_not_owner() const;

  // Runs `work(L)` protected. In it Lua may be used freely, arguments are read with the glue, and C++ objects with a
  // destructor belong outside. An error of either kind leaves as a thrown Status.
  template <class Work>
  void enter(Work&& work) {
    using Plain = std::remove_reference_t<Work>;
    call([](lua_State* L, void* data) { (*static_cast<Plain*>(data))(L); },
         const_cast<void*>(static_cast<const void*>(&work)));
  }
  // The same for what goes on all the same where it fails, also for want of memory to say how.
  template <class Work>
  void try_enter(Work&& work) {
    try {
      enter(work);
    } catch (const Status&) {
    } catch (const std::exception&) {
    }
  }
  // Pushes a function of lua/moonflow/host.lua. Inside `enter`.
  void push_function(lua_State* L, const char* name) const;
  // Pushes what functions in Lua hold of the session, which outlives it: a script may keep such a function. Inside
  // `enter`.
  void push_self(lua_State* L) const;
  // The session that a function holds at this index; nullptr once that is closed.
  static HostSession* held(lua_State* L, int index);

  // The engine below: the latest session of the lua_State, or a fresh one where a script has ended that.
  Session& engine();
  const std::shared_ptr<Session>& newest() const;
  // Nothing to deliver, and nobody would be told: a poll need not enter Lua.
  bool idle() const;
  // Delivers the next run without Lua, by the rules of a handler. False when there is none, or when Lua wants a say.
  // Outside of callbacks.
  bool deliver();
  void interrupt() noexcept { interrupted_->store(true, std::memory_order_release); }

  const std::shared_ptr<HostMemory>& memory() const { return memory_; }
  void log(const char* line) const {
    if (log_) log_(log_user_, line);
  }

  // Takes a value off the stack and keeps it, until the session closes or the reference is dropped. Inside `enter`.
  int keep_reference(lua_State* L);
  // The owner drops it when it next comes by: handles are closed on any thread.
  void drop_reference(int reference) noexcept;

  HostRuns runs;  // owner thread
  // What mf_variable_type goes through: the names of the variables of an engine.
  struct Listing {
    std::weak_ptr<const Session> of;
    uint64_t changes = 0;  // of its variables, when they were listed
    std::vector<std::string> names;
  };
  Listing variables;      // owner thread
  std::string last_name;  // what mf_variable_type gave
  // What mf_job_name goes through.
  struct JobListing {
    double changes = 0;  // of the names of jobs, when they were listed; 0: never
    std::vector<std::string> names;
  };
  JobListing jobs;  // owner thread

 private:
  using Work = void (*)(lua_State*, void*);
  // What it refers to of Lua's while it is open; `anchor` takes it off the stack.
  enum Reference { kCall, kTraced, kHost, kThread, kDelivering, kSelf, kReferences };
  void push(lua_State* L, Reference what) const { lua_rawgeti(L, LUA_REGISTRYINDEX, references_[what]); }
  void anchor(lua_State* L, Reference what) { references_[what] = luaL_ref(L, LUA_REGISTRYINDEX); }
  struct Call;
  struct Entry;
  struct Handler;
  static int run_call(lua_State* L);
  void call(Work work, void* data);
  int protected_call(Work work, void* data, bool with_traceback);
  [[noreturn]] void throw_lua_error(int code);
  void drop_references();
  void set_delivering(bool delivering);
  void load_library(lua_State* host_state, const char* library_path);
  bool is_here() const { return process_ == Executor::process(); }
  bool inside_lua() const;
  void recycle_for(std::thread::id owner);

  std::atomic<uint64_t> owner_{thread_number()};  // 0: handed over
  uint32_t process_ = Executor::process();
  std::shared_ptr<HostMemory> memory_;
  std::shared_ptr<std::atomic<bool>> interrupted_;
  mf_log_function log_;
  void* log_user_;
  lua_State* lua_ = nullptr;   // a thread of its own within the state; nullptr once closed
  lua_State* main_ = nullptr;  // the state, the host's or the session's own
  bool is_root_ = false;       // main_ is no coroutine, which might be collected
  std::unique_ptr<LuaMemory> lua_memory_;
  lua_State* owned_ = nullptr;    // the state, when it is the session's own
  lua::State* state_ = nullptr;   // of the glue
  HostSession** self_ = nullptr;  // a userdata
  std::array<int, kReferences> references_;
  int depth_ = 0;
  std::vector<int> kept_;  // owner thread
  std::mutex dropped_mutex_;
  std::vector<int> dropped_;
};

// What an mf_session stands for: shared, since jobs and prepared calls may outlive the handle.
struct SessionHandle {
  static constexpr Kind kKind = Kind::Session;
  std::shared_ptr<HostSession> session;
};

// The session of a handle, for its owner thread.
class Entered {
 public:
  explicit Entered(const mf_session* handle) : pinned_(handle, "a session") { pinned_->session->require_owner(); }
  HostSession* operator->() const { return pinned_->session.get(); }
  HostSession& operator*() const { return *pinned_->session; }

 private:
  Checked<SessionHandle, mf_session> pinned_;
};

// The field of the table on the top, as text; empty when it has none.
std::string text_at(lua_State* L, const char* field);

}  // namespace moonflow::host
