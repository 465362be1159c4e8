// Arrays and jobs of the C ABI.
#pragma once

#include <string>
#include <vector>

#include "bindings/host_session.h"

namespace moonflow::host {

// An input, an output or a variable.
struct NamedValue {
  std::string name;
  TensorType type;
};

class HostJob {
 public:
  static constexpr Kind kKind = Kind::Job;

  // The newest job of that name. Owner thread.
  HostJob(std::shared_ptr<HostSession> session, const char* name);
  ~HostJob() { session->drop_reference(reference); }

  // Pushes the job. Inside `enter`.
  void push(lua_State* L) const { lua_rawgeti(L, LUA_REGISTRYINDEX, reference); }

  const std::shared_ptr<HostSession> session;
  std::string name;
  std::vector<NamedValue> inputs, outputs;
  bool dynamic = false;  // its arrays may have other shapes than the signature's
  int reference = LUA_NOREF;
};

// The job of a handle, for the owner thread of its session.
class EnteredJob {
 public:
  explicit EnteredJob(const mf_job* handle) : pinned_(handle, "a job") { pinned_->session->require_owner(); }
  const HostJob* operator->() const { return &*pinned_; }
  const HostJob& operator*() const { return *pinned_; }

 private:
  Checked<HostJob, mf_job> pinned_;
};

// What an array is to the caller, for messages; put into words only when there is one to write.
struct Role {
  const char* job;  // nullptr: none
  const char* kind;
  const char* name;
  std::string str() const { return job ? text(job, ": ", kind, " '", name, "'") : text(kind, " '", name, "'"); }
};

// An array of the host with every field checked; the shape is `signature`'s where the array has none.
TensorType check_array(const mf_array& array, const TensorType& signature, const Role& role);
// The same for one that is to be filled, whose shape is known: one of another would be read wrongly afterwards.
void check_destination(const mf_array& array, const TensorType& type, const Role& role);
// The array's elements in a tensor of the library.
Tensor tensor_of(const mf_array& array, const TensorType& signature, const Role& role,
                 const std::shared_ptr<HostMemory>& memory);
// The other way: dtype, count and shape must fit.
void fill_array(const mf_array& array, const Tensor& value, const Role& role);
mf_array view_of(const Tensor& value);
void fill_type(mf_type* type, const NamedValue& value);

// Pushes an ndarray that holds `value`. Inside `enter`.
void push_tensor(lua_State* L, const Tensor& value);
Tensor& tensor_at(lua_State* L, int index);

}  // namespace moonflow::host
