#include "bindings/host_job.h"

#include <cstring>
#include <exception>

#include "bindings/lua_module.h"

namespace moonflow::host {

namespace {

static_assert(MF_MAX_RANK == Shape::kMaxRank);
static_assert(static_cast<int>(DType::Float32) == MF_FLOAT32 && static_cast<int>(DType::Float64) == MF_FLOAT64);
static_assert(static_cast<int>(DType::Int8) == MF_INT8 && static_cast<int>(DType::UInt8) == MF_UINT8);
static_assert(static_cast<int>(DType::Int32) == MF_INT32 && static_cast<int>(DType::Int64) == MF_INT64);
static_assert(static_cast<int>(DType::BFloat16) == MF_BFLOAT16 && static_cast<int>(DType::Float16) == MF_FLOAT16);

// The list of { name, dtype, shape } at the top of the stack.
std::vector<NamedValue> read_values(lua_State* L) {
  std::vector<NamedValue> values;
  const int count = static_cast<int>(lua_objlen(L, -1));
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, -1, i);
    NamedValue value;
    lua_getfield(L, -1, "name");
    value.name = lua::string_at(L, -1, "name");
    lua_getfield(L, -2, "dtype");
    value.type.dtype = lua::dtype_at(L, -1, "dtype");
    lua_getfield(L, -3, "shape");
    value.type.shape = lua::shape_at(L, lua_gettop(L), "shape");
    lua_pop(L, 4);
    values.push_back(std::move(value));
  }
  return values;
}

Role input_role(const HostJob& job, size_t index) {
  return {job.name.c_str(), "input", job.inputs[index].name.c_str()};
}
Role output_role(const HostJob& job, size_t index) {
  return {job.name.c_str(), "output", job.outputs[index].name.c_str()};
}

// The inputs of a call as tensors, before Lua is entered.
std::vector<Tensor> read_inputs(const HostJob& job, const mf_array* inputs, int32_t count) {
  if (count != static_cast<int32_t>(job.inputs.size()))
    refuse(MF_INVALID_ARGUMENT, job.name, ": takes ", job.inputs.size(),
           job.inputs.size() == 1 ? " input, got " : " inputs, got ", count);
  if (inputs == nullptr && count > 0) refuse(MF_INVALID_ARGUMENT, job.name, ": inputs is NULL");
  std::vector<Tensor> feeds;
  for (int32_t i = 0; i < count; ++i)
    feeds.push_back(tensor_of(inputs[i], job.inputs[i].type, input_role(job, i), job.session->memory()));
  return feeds;
}

// What a job whose arrays may have other shapes gives for these inputs.
std::vector<NamedValue> outputs_for(const HostJob& job, const std::vector<Tensor>& feeds) {
  std::vector<NamedValue> outputs;
  job.session->enter([&](lua_State* L) {
    luaL_checkstack(L, static_cast<int>(feeds.size()) + 2, "too many arrays");
    job.session->push_function(L, "outputs");
    job.push(L);
    for (const Tensor& feed : feeds) push_tensor(L, feed);
    lua_call(L, static_cast<int>(feeds.size()) + 1, 1);
    outputs = read_values(L);
  });
  return outputs;
}

// Before the run, so that a training step is not made for nothing.
void check_outputs(const HostJob& job, const std::vector<Tensor>& feeds, const mf_array* outputs, int32_t count) {
  if (count != static_cast<int32_t>(job.outputs.size()))
    refuse(MF_INVALID_ARGUMENT, job.name, ": gives ", job.outputs.size(),
           job.outputs.size() == 1 ? " output, got " : " outputs, got ", count);
  if (outputs == nullptr && count > 0) refuse(MF_INVALID_ARGUMENT, job.name, ": outputs is NULL");
  std::vector<NamedValue> others;
  if (job.dynamic) others = outputs_for(job, feeds);
  const std::vector<NamedValue>& given = job.dynamic ? others : job.outputs;
  for (int32_t i = 0; i < count; ++i) check_destination(outputs[i], given[i].type, output_role(job, i));
}

// Starts a run and gives its number, or 0 when too much is in flight.
mf_run launch(const HostJob& job, const std::vector<Tensor>& feeds, HostRun run) {
  HostRuns& runs = job.session->runs;
  runs.reserve();
  job.session->enter([&](lua_State* L) {
    luaL_checkstack(L, static_cast<int>(feeds.size()) + 8, "too many arrays");
    job.session->push_function(L, "launch");
    job.push(L);
    for (const Tensor& feed : feeds) push_tensor(L, feed);
    lua_call(L, static_cast<int>(feeds.size()) + 1, 2);
    run.id = static_cast<RunId>(lua_tonumber(L, -2));
    run.only_lua = lua_toboolean(L, -1) != 0;
  });
  return run.id == 0 ? 0 : runs.add(std::move(run));
}

// A run whose results go to arrays of a call that waits for it; given up where that returns without them.
class Outcome {
 public:
  Outcome(const HostJob& job, mf_array* outputs) : job_(job), outputs_(outputs) {}
  ~Outcome() {
    HostRun* const run = job_.session->runs.find_number(number_);
    if (run == nullptr) return;
    run->forget_function();
    job_.session->newest()->executor().cancel(run->id);
  }
  Outcome(const Outcome&) = delete;

  // Fills the arrays, or throws what the run has failed with; false when the time is over first.
  bool come_by(const std::vector<Tensor>& feeds, const Deadline& deadline) {
    while ((number_ = launch(job_, feeds, HostRun(receive, this, job_.outputs.size()))) == 0)
      if (!deliver_next(*job_.session, deadline) || deadline.is_over()) return false;  // there is no room
    if (!deliver_run(*job_.session, number_, deadline)) return false;
    if (!has_come_) refuse(MF_WRONG_STATE, job_.name, ": the run was given up when its session was closed");
    if (failure_) std::rethrow_exception(failure_);
    return true;
  }

 private:
  static void receive(void* user, const mf_status* error, const mf_array* outputs, int32_t count) {
    Outcome& self = *static_cast<Outcome*>(user);
    self.has_come_ = true;
    try {
      if (error) throw copy_of(error);
      for (int32_t i = 0; i < count; ++i) self.fill(i, outputs[i]);
    } catch (...) {
      self.failure_ = std::current_exception();
    }
  }

  void fill(int32_t index, const mf_array& value) const {
    const TensorType type{static_cast<DType>(value.dtype), Shape(value.dims, value.dims + value.rank)};
    check_destination(outputs_[index], type, output_role(job_, static_cast<size_t>(index)));
    if (value.count > 0) std::memcpy(outputs_[index].data, value.data, static_cast<size_t>(type.bytes()));
  }

  const HostJob& job_;
  mf_array* const outputs_;
  mf_run number_ = 0;
  bool has_come_ = false;
  std::exception_ptr failure_;
};

}  // namespace

// ---- arrays ------------------------------------------------------------------------------------------------------

TensorType check_array(const mf_array& array, const TensorType& signature, const Role& role) {
  require_size(array, [&] { return role.str(); });
  if (array.dtype != static_cast<mf_dtype>(signature.dtype)) {
    const bool known = array.dtype >= MF_FLOAT32 && array.dtype <= MF_FLOAT16;
    refuse(MF_DTYPE_MISMATCH, role.str(), " is ", known ? name(static_cast<DType>(array.dtype)) : "of no dtype",
           ", wanted ", signature);
  }
  TensorType type = signature;
  if (array.dims != nullptr) {
    if (array.rank < 0 || array.rank > MF_MAX_RANK)
      refuse(MF_SHAPE_MISMATCH, role.str(), " has rank ", array.rank, ", wanted ", signature);
    type.shape = Shape();
    for (int axis = 0; axis < array.rank; ++axis) type.shape.push_back(array.dims[axis]);
    check_size(type);
  }
  if (array.count != static_cast<uint64_t>(type.count()))
    refuse(MF_SHAPE_MISMATCH, role.str(), " has ", array.count, " elements, wanted ", type, " with ", type.count());
  if (array.data == nullptr && array.count > 0) refuse(MF_INVALID_ARGUMENT, role.str(), " has no data");
  return type;
}

Tensor tensor_of(const mf_array& array, const TensorType& signature, const Role& role,
                 const std::shared_ptr<HostMemory>& memory) {
  Tensor tensor = Tensor::allocate(check_array(array, signature, role), memory);
  if (tensor.bytes() > 0) std::memcpy(tensor.data(), array.data, static_cast<size_t>(tensor.bytes()));
  return tensor;
}

void check_destination(const mf_array& array, const TensorType& type, const Role& role) {
  const TensorType given = check_array(array, type, role);
  if (given != type) refuse(MF_SHAPE_MISMATCH, role.str(), " is ", given, ", wanted ", type);
}

void fill_array(const mf_array& array, const Tensor& value, const Role& role) {
  check_destination(array, value.type(), role);
  if (value.bytes() > 0) std::memcpy(array.data, value.data(), static_cast<size_t>(value.bytes()));
}

mf_array view_of(const Tensor& value) {
  mf_array array =
      mf_array_of(static_cast<mf_dtype>(value.dtype()), value.data(), static_cast<uint64_t>(value.count()));
  array.dims = value.shape().begin();
  array.rank = value.shape().rank();
  return array;
}

void fill_type(mf_type* type, const NamedValue& value) {
  if (type == nullptr) refuse(MF_INVALID_ARGUMENT, "type is NULL");
  require_size(*type, [] { return "type"; });
  type->dtype = static_cast<mf_dtype>(value.type.dtype);
  type->rank = value.type.shape.rank();
  type->reserved = 0;
  for (int axis = 0; axis < MF_MAX_RANK; ++axis) type->dims[axis] = axis < type->rank ? value.type.shape[axis] : 0;
  type->count = static_cast<uint64_t>(value.type.count());
  type->name = value.name.c_str();
}

void push_tensor(lua_State* L, const Tensor& value) {
  Tensor& array = lua::push_array(L);
  array = value;
}

Tensor& tensor_at(lua_State* L, int index) { return lua::array_at(L, index, "value"); }

// ---- jobs --------------------------------------------------------------------------------------------------------

HostJob::HostJob(std::shared_ptr<HostSession> owner, const char* wanted) : session(std::move(owner)), name(wanted) {
  session->enter([&](lua_State* L) {
    session->push_function(L, "find");
    lua_pushstring(L, wanted);
    lua_call(L, 1, 1);
    session->push_function(L, "signature");
    lua_pushvalue(L, -2);
    lua_call(L, 1, 3);
    dynamic = lua_toboolean(L, -1) != 0;
    lua_pop(L, 1);
    outputs = read_values(L);
    lua_pop(L, 1);
    inputs = read_values(L);
    lua_pop(L, 1);
    reference = session->keep_reference(L);
  });
}

}  // namespace moonflow::host

using namespace moonflow::host;
using moonflow::RunId;
using moonflow::Tensor;

namespace {

// The names of all jobs, which the session keeps: as they are now; where it has `known` ones, as they were when last a
// name was given to a job, or taken from it.
const std::vector<std::string>& names_of(HostSession& session, bool known) {
  HostSession::JobListing fresh;
  session.enter([&](lua_State* L) {
    session.push_function(L, "names");
    lua_pushnumber(L, known ? session.jobs.changes : 0);
    lua_call(L, 1, 2);
    if (lua_isnil(L, -2)) return;
    fresh.changes = lua_tonumber(L, -1);
    const int count = static_cast<int>(lua_objlen(L, -2));
    for (int i = 1; i <= count; ++i) {
      lua_rawgeti(L, -2, i);
      fresh.names.push_back(lua_tostring(L, -1));
      lua_pop(L, 1);
    }
  });
  if (fresh.changes > 0) session.jobs = std::move(fresh);
  return session.jobs.names;
}

mf_status* count_of(const mf_job* handle, int32_t* count, std::vector<NamedValue> HostJob::*values) {
  return guarded([&] {
    require_out(count, "count");
    const Checked<HostJob, mf_job> job(handle, "a job");
    *count = static_cast<int32_t>(((*job).*values).size());
  });
}

mf_status* type_at(const mf_job* handle, int32_t index, mf_type* type, std::vector<NamedValue> HostJob::*values,
                   const char* what) {
  return guarded([&] {
    const Checked<HostJob, mf_job> job(handle, "a job");
    const std::vector<NamedValue>& list = (*job).*values;
    if (index < 0 || index >= static_cast<int32_t>(list.size()))
      refuse(MF_OUT_OF_RANGE, job->name, " has ", list.size(), " ", what, "s, there is none at index ", index);
    fill_type(type, list[index]);
  });
}

}  // namespace

extern "C" {

mf_status* mf_job_find(mf_session* handle, const char* name, mf_job** job) {
  return guarded([&] {
    require_out(job, "job");
    *job = nullptr;
    const Entered session(handle);
    if (name == nullptr) refuse(MF_INVALID_ARGUMENT, "name is NULL");
    *job = make_handle<mf_job>(std::make_unique<HostJob>(session->shared_from_this(), name));
  });
}

mf_status* mf_job_count(mf_session* handle, int32_t* count) {
  return guarded([&] {
    require_out(count, "count");
    const Entered session(handle);
    *count = static_cast<int32_t>(names_of(*session, false).size());
  });
}

mf_status* mf_job_name(mf_session* handle, int32_t index, const char** name) {
  return guarded([&] {
    require_out(name, "name");
    *name = nullptr;
    const Entered session(handle);
    const std::vector<std::string>& names = names_of(*session, index != 0);
    if (index < 0 || index >= static_cast<int32_t>(names.size()))
      refuse(MF_OUT_OF_RANGE, "there are ", names.size(), " jobs, none at index ", index);
    *name = names[static_cast<size_t>(index)].c_str();
  });
}

mf_code mf_job_close(mf_job* job) { return close_handle<HostJob>(job) ? MF_OK : MF_INVALID_HANDLE; }

mf_status* mf_job_input_count(mf_job* job, int32_t* count) { return count_of(job, count, &HostJob::inputs); }
mf_status* mf_job_output_count(mf_job* job, int32_t* count) { return count_of(job, count, &HostJob::outputs); }
mf_status* mf_job_input(mf_job* job, int32_t index, mf_type* type) {
  return type_at(job, index, type, &HostJob::inputs, "input");
}
mf_status* mf_job_output(mf_job* job, int32_t index, mf_type* type) {
  return type_at(job, index, type, &HostJob::outputs, "output");
}

mf_status* mf_job_call(mf_job* handle, const mf_array* inputs, int32_t input_count, mf_array* outputs,
                       int32_t output_count) {
  return guarded([&] {
    const EnteredJob job(handle);
    const std::vector<Tensor> feeds = read_inputs(*job, inputs, input_count);
    check_outputs(*job, feeds, outputs, output_count);
    std::vector<Tensor> results;
    job->session->enter([&](lua_State* L) {
      luaL_checkstack(L, input_count + output_count + 2, "too many arrays");
      job->session->push_function(L, "call");
      job->push(L);
      for (const Tensor& feed : feeds) push_tensor(L, feed);
      lua_call(L, input_count + 1, output_count);
      for (int32_t i = 0; i < output_count; ++i) results.push_back(tensor_at(L, i - output_count));
    });
    for (int32_t i = 0; i < output_count; ++i) fill_array(outputs[i], results[i], output_role(*job, i));
  });
}

mf_status* mf_job_call_for(mf_job* handle, const mf_array* inputs, int32_t input_count, mf_array* outputs,
                           int32_t output_count, double max_ms) {
  return guarded([&] {
    const Deadline deadline(max_ms);
    const EnteredJob job(handle);
    if (job->session->delivering())
      refuse(MF_WRONG_STATE, job->name, ": a call with a time delivers, which is not possible inside a callback");
    const std::vector<Tensor> feeds = read_inputs(*job, inputs, input_count);
    check_outputs(*job, feeds, outputs, output_count);
    Outcome outcome{*job, outputs};
    if (!outcome.come_by(feeds, deadline)) refuse(MF_TIMED_OUT, job->name, ": is not done after ", max_ms, " ms");
  });
}

mf_status* mf_job_launch(mf_job* handle, const mf_array* inputs, int32_t input_count, mf_result_function result,
                         void* user, mf_run* run) {
  return guarded([&] {
    require_out(run, "run");
    *run = 0;
    const EnteredJob job(handle);
    if (result == nullptr) refuse(MF_INVALID_ARGUMENT, job->name, ": the result function is NULL");
    *run = launch(*job, read_inputs(*job, inputs, input_count), HostRun(result, user, job->outputs.size()));
    if (*run == 0) refuse(MF_BUSY, job->name, ": too many runs are in flight; poll, and try again");
  });
}

mf_status* mf_job_call_async(mf_job* handle, const mf_array* inputs, int32_t input_count, mf_result_function result,
                             void* user) {
  mf_run run = 0;
  return mf_job_launch(handle, inputs, input_count, result, user, &run);
}

}  // extern "C"
