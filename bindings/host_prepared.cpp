// Prepared calls of the C ABI: a job's graph compiled once more, for the control loop of a host.
#include "bindings/host_job.h"
#include "bindings/lua_module.h"
#include "engine/prepared.h"
#include "kernels/catalog.h"

namespace moonflow::host {

class HostPrepared {
 public:
  static constexpr Kind kKind = Kind::Prepared;

  HostPrepared(std::shared_ptr<HostSession> session, const Graph& graph, const std::string& job, Token last_watch)
      : session(std::move(session)),
        call(graph, job, make_real_time_cpu_device(this->session->memory()), last_watch, this->session->memory()) {}

  // Owner thread: the weights as they are after the runs submitted so far.
  void publish() {
    Session& engine = session->engine();
    call.publish([&](const Variable& weight) { return engine.read(weight.name); });
  }

  const std::shared_ptr<HostSession> session;
  PreparedCall call;
};

namespace {

constexpr int kWarmUpRuns = 16;

// What a prepared mf_prepared stands for: shared with the session's list of those to publish to.
struct PreparedHandle {
  static constexpr Kind kKind = Kind::Prepared;
  std::shared_ptr<HostPrepared> prepared;
};

// flow.publish(): to all prepared calls of the session that are still open. Gives their number.
int publish_all(lua_State* L) {
  HostSession* const session = HostSession::held(L, lua_upvalueindex(2));
  int count = 0;
  lua::protect(L, [&] {
    if (session == nullptr) return;
    auto& list = session->prepared;
    for (size_t i = 0; i < list.size();) {
      if (const std::shared_ptr<HostPrepared> prepared = list[i].lock()) {
        prepared->publish();
        ++i;
        ++count;
      } else {
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  });
  lua_pushnumber(L, count);
  return 1;
}

std::shared_ptr<HostPrepared> prepare(const HostJob& job) {
  const std::shared_ptr<HostSession>& session = job.session;
  std::shared_ptr<HostPrepared> prepared;
  session->enter([&](lua_State* L) {
    session->push_function(L, "parts");
    job.push(L);
    lua_call(L, 1, 2);
    const lua::GraphBox& graph = lua::box_at<lua::GraphBox>(L, -2, "a graph");
    const Token last_watch = static_cast<Token>(lua_tonumber(L, -1));
    prepared = std::make_shared<HostPrepared>(session, *graph.graph, job.name, last_watch);
    // Under its name in lua/moonflow/host.lua, where flow.publish finds it.
    lua_pushvalue(L, lua_upvalueindex(1));
    session->push_self(L);
    lua_pushcclosure(L, publish_all, 2);
    session->set_function(L, "publisher");
  });
  prepared->publish();
  session->prepared.push_back(prepared);
  return prepared;
}

mf_status* buffer_of(mf_prepared* handle, int32_t index, mf_array* buffer,
                     const std::vector<Tensor>& (PreparedCall::*list)() const, const char* what) {
  return guarded([&] {
    const Checked<PreparedHandle, mf_prepared> pinned(handle, "a prepared call");
    require_out(buffer, "buffer");
    const std::vector<Tensor>& tensors = (pinned->prepared->call.*list)();
    if (index < 0 || index >= static_cast<int32_t>(tensors.size()))
      refuse(MF_OUT_OF_RANGE, "there are ", tensors.size(), " ", what, "s, none at index ", index);
    *buffer = view_of(tensors[index]);
  });
}

}  // namespace

}  // namespace moonflow::host

using namespace moonflow;
using namespace moonflow::host;

extern "C" {

mf_status* mf_job_prepare(mf_job* handle, mf_prepared** prepared) {
  return guarded([&] {
    require_out(prepared, "prepared");
    *prepared = nullptr;
    const EnteredJob job(handle);
    auto owned = std::make_unique<PreparedHandle>();
    owned->prepared = prepare(*job);
    *prepared = make_handle<mf_prepared>(std::move(owned));
    if (*prepared == nullptr) throw std::bad_alloc();
  });
}

mf_status* mf_prepared_input(mf_prepared* handle, int32_t index, mf_array* buffer) {
  return buffer_of(handle, index, buffer, &PreparedCall::inputs, "input");
}

mf_status* mf_prepared_output(mf_prepared* handle, int32_t index, mf_array* buffer) {
  return buffer_of(handle, index, buffer, &PreparedCall::outputs, "output");
}

mf_code mf_prepared_run(mf_prepared* handle) {
  const Pinned<PreparedHandle, mf_prepared> pinned(handle);
  if (!pinned) return MF_INVALID_HANDLE;
  try {
    pinned->prepared->call.run();
    return MF_OK;
  } catch (const Error& error) {
    return code_of(error.code);
  } catch (const std::bad_alloc&) {
    return MF_OUT_OF_MEMORY;
  } catch (const std::exception&) {
    return MF_INTERNAL;
  }
}

mf_code mf_prepared_warm_up(mf_prepared* handle) {
  mf_code code = MF_OK;
  for (int i = 0; i < kWarmUpRuns && code == MF_OK; ++i) code = mf_prepared_run(handle);
  return code;
}

uint64_t mf_prepared_generation(mf_prepared* handle) {
  const Pinned<PreparedHandle, mf_prepared> pinned(handle);
  return pinned ? pinned->prepared->call.generation() : 0;
}

mf_status* mf_prepared_publish(mf_prepared* handle) {
  return guarded([&] {
    const Checked<PreparedHandle, mf_prepared> pinned(handle, "a prepared call");
    pinned->prepared->session->require_owner();
    pinned->prepared->publish();
  });
}

mf_code mf_prepared_close(mf_prepared* handle) {
  return close_handle<PreparedHandle>(handle, true) ? MF_OK : MF_INVALID_HANDLE;
}

}  // extern "C"
