// Variables and checkpoints of the C ABI.
#include <algorithm>

#include "bindings/host_job.h"
#include "bindings/lua_module.h"
#include "bindings/safetensors.h"
#include "engine/process_end.h"

using namespace moonflow;
using namespace moonflow::host;

namespace {

struct HostBytes {
  static constexpr Kind kKind = Kind::Bytes;
  std::string bytes;
};

void require_name(const char* name) {
  if (name == nullptr) refuse(MF_INVALID_ARGUMENT, "name is NULL");
}

// The host's memory, which is to be as the variable is.
Role of_variable(const char* name) { return {nullptr, "the array for variable", name}; }

// Gives first values to what has none.
void initialise(HostSession& session) {
  session.enter([&](lua_State* L) {
    session.push_function(L, "initialise");
    lua_call(L, 0, 0);
  });
}

// The names of all variables, by rising name.
const std::vector<std::string>& names_of(HostSession& session) {
  initialise(session);
  const Variables& variables = session.engine().variables();
  session.variables = {session.newest(), variables.changes(), variables.names()};
  return session.variables.names;
}

// The same for a host that goes through them: without looking again for each where nothing has come since.
const std::vector<std::string>& names_listed(HostSession& session) {
  const HostSession::Listing& listed = session.variables;
  const bool is_known =
      listed.of.lock() == session.newest() && listed.changes == session.engine().variables().changes();
  return is_known ? listed.names : names_of(session);
}

// The names of those to save: as the process ends no first values are computed any more, and what has none is left out.
std::vector<std::string> names_with_values(HostSession& session) {
  if (!process_ends()) return names_of(session);
  Variables& variables = session.engine().variables();
  std::vector<std::string> names = variables.names();
  const auto has_none = [&](const std::string& name) { return !variables.at(name).initialised(); };
  names.erase(std::remove_if(names.begin(), names.end(), has_none), names.end());
  return names;
}

// `name` lives as long as what the host gets.
void fill_type_of(mf_type* type, HostSession& session, const char* name) {
  fill_type(type, {name, session.engine().variables().at(name).type});
  type->name = name;
}

}  // namespace

extern "C" {

mf_status* mf_variable_count(mf_session* handle, int32_t* count) {
  return guarded([&] {
    require_out(count, "count");
    const Entered session(handle);
    *count = static_cast<int32_t>(names_of(*session).size());
  });
}

mf_status* mf_variable_type(mf_session* handle, int32_t index, mf_type* type) {
  return guarded([&] {
    const Entered session(handle);
    const std::vector<std::string>& names = index == 0 ? names_of(*session) : names_listed(*session);
    if (index < 0 || index >= static_cast<int32_t>(names.size()))
      refuse(MF_OUT_OF_RANGE, "there are ", names.size(), " variables, none at index ", index);
    session->last_name = names[static_cast<size_t>(index)];
    fill_type_of(type, *session, session->last_name.c_str());
  });
}

mf_status* mf_variable_find(mf_session* handle, const char* name, mf_type* type) {
  return guarded([&] {
    const Entered session(handle);
    require_name(name);
    if (session->engine().variables().find(name) == nullptr) initialise(*session);
    fill_type_of(type, *session, name);
  });
}

mf_status* mf_variable_read(mf_session* handle, const char* name, mf_array* value) {
  return guarded([&] {
    const Entered session(handle);
    require_name(name);
    require_out(value, "value");
    initialise(*session);
    fill_array(*value, session->engine().read(name), of_variable(name));
  });
}

mf_status* mf_variable_write(mf_session* handle, const char* name, const mf_array* value) {
  return guarded([&] {
    const Entered session(handle);
    require_name(name);
    if (value == nullptr) refuse(MF_INVALID_ARGUMENT, "value is NULL");
    Session& engine = session->engine();
    engine.write(name, tensor_of(*value, engine.variables().at(name).type, of_variable(name), session->memory()));
  });
}

mf_status* mf_session_save(mf_session* handle, const char* path, int32_t overwrite) {
  return guarded([&] {
    const Entered session(handle);
    if (path == nullptr) refuse(MF_INVALID_ARGUMENT, "path is NULL");
    session->enter([&](lua_State* L) {
      session->push_function(L, "save");
      lua_pushstring(L, path);
      lua_pushboolean(L, overwrite != 0);
      lua_call(L, 2, 0);
    });
  });
}

mf_status* mf_session_load(mf_session* handle, const char* path) {
  return guarded([&] {
    const Entered session(handle);
    if (path == nullptr) refuse(MF_INVALID_ARGUMENT, "path is NULL");
    session->enter([&](lua_State* L) {
      session->push_function(L, "load_checkpoint");
      lua_pushstring(L, path);
      lua_call(L, 1, 0);
    });
  });
}

mf_status* mf_session_save_memory(mf_session* handle, mf_bytes** bytes) {
  return guarded([&] {
    require_out(bytes, "bytes");
    *bytes = nullptr;
    const Entered session(handle);
    std::map<std::string, Tensor> tensors;
    for (const std::string& name : names_with_values(*session)) tensors.emplace(name, session->engine().read(name));
    if (tensors.empty()) refuse(MF_WRONG_STATE, "there are no variables to save; load a script that defines jobs");
    Metadata metadata;
    session->enter([&](lua_State* L) {
      session->push_function(L, "meta");
      lua_call(L, 0, 2);
      metadata = {{"seed", lua_tostring(L, -2)}, {"moonflow", lua_tostring(L, -1)}};
    });
    auto owned = std::make_unique<HostBytes>();
    owned->bytes = write_safetensors(tensors, metadata);
    *bytes = make_handle<mf_bytes>(std::move(owned));
  });
}

mf_status* mf_session_load_memory(mf_session* handle, const void* data, size_t size) {
  return guarded([&] {
    const Entered session(handle);
    if (data == nullptr) refuse(MF_INVALID_ARGUMENT, "data is NULL");
    Safetensors read = read_safetensors({static_cast<const char*>(data), size}, session->memory());
    session->enter([&](lua_State* L) {
      session->push_function(L, "load_values");
      lua::push_arrays(L, read.tensors);
      lua_pushstring(L, read.metadata["seed"].c_str());
      lua::push_texts(L, read.left_out);
      lua_call(L, 3, 0);
    });
  });
}

const void* mf_bytes_data(const mf_bytes* handle) {
  const Pinned<HostBytes, mf_bytes> bytes(handle);
  return bytes ? bytes->bytes.data() : nullptr;
}

size_t mf_bytes_size(const mf_bytes* handle) {
  const Pinned<HostBytes, mf_bytes> bytes(handle);
  return bytes ? bytes->bytes.size() : 0;
}

mf_code mf_bytes_free(mf_bytes* bytes) {
  if (bytes == nullptr) return MF_OK;
  return close_handle<HostBytes>(bytes) ? MF_OK : MF_INVALID_HANDLE;
}

}  // extern "C"
