// Moonflow for C++17 hosts: the C interface of moonflow.h with owners, exceptions and vectors. Header only: nothing of
// C++ crosses the library's border, so host and library may come from different compilers.
//
//   moonflow::Session session;
//   session.load_file("policy.lua");
//   std::vector<float> force = session.job("policy")({state})[0];
//
// Every class owns one handle and is moved, never copied; they may end in any order. What fails throws moonflow::Error;
// what is noexcept gives a code. Whatever delivers results may also throw what a handler threw. Which thread may call
// what is said in moonflow.h: a Session, its Jobs and all that they launch belong to the thread that made the Session,
// until another one takes them over; a Prepared goes to the thread that runs it.
#ifndef MOONFLOW_HPP
#define MOONFLOW_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "moonflow.h"

namespace moonflow {
// The library has classes of its own by some of these names, and C++ tells what is thrown by its name.
inline namespace api {

// ---- what the C interface asks for ---------------------------------------------------------------------------------

template <typename Handle, mf_code (*close)(Handle*)>
struct Close {
  void operator()(Handle* handle) const noexcept { close(handle); }
};
template <typename Handle, mf_code (*close)(Handle*)>
using Owner = std::unique_ptr<Handle, Close<Handle, close>>;

// A struct of the C interface that says its size and nothing else yet.
template <typename Struct>
Struct sized() noexcept {
  Struct made{};
  made.struct_size = sizeof made;
  return made;
}

// ---- errors --------------------------------------------------------------------------------------------------------

// What a status said. what() is the whole story in one line: "file:line: job: op: message".
class Error : public std::runtime_error {
 public:
  explicit Error(const mf_status* status)
      : std::runtime_error(mf_status_message(status)),
        code_(mf_status_code(status)),
        where_(mf_status_where(status)),
        job_(mf_status_job(status)),
        op_(mf_status_op(status)),
        traceback_(mf_status_traceback(status)) {
    for (const mf_status* cause = mf_status_cause(status); cause; cause = mf_status_cause(cause))
      causes_.emplace_back(mf_status_message(cause));
  }

  mf_code code() const noexcept { return code_; }
  const std::string& where() const noexcept { return where_; }                 // "file:line" of the script, or empty
  const std::string& job() const noexcept { return job_; }                     // the job to blame, or empty
  const std::string& op() const noexcept { return op_; }                       // the op to blame, or empty
  const std::string& traceback() const noexcept { return traceback_; }         // the Lua frames, or empty
  const std::vector<std::string>& causes() const noexcept { return causes_; }  // what else had gone wrong

 private:
  mf_code code_;
  std::string where_, job_, op_, traceback_;
  std::vector<std::string> causes_;
};

// Takes a status of the C interface: throws what it says, and does nothing for NULL.
inline void check(mf_status* status) {
  if (!status) return;
  const Owner<mf_status, mf_status_free> owner(status);
  throw Error(status);
}

// ---- GPUs ----------------------------------------------------------------------------------------------------------

struct Gpu {
  std::string name;
  uint64_t memory_bytes;
  int capability;  // 90 for 9.0
};

// Those that scripts can place ops on. There being none is no error; `reason` is then told why.
inline std::vector<Gpu> gpus(std::string* reason = nullptr) {
  std::vector<Gpu> all;
  int32_t count = 0;
  mf_status* const status = mf_gpu_count(&count);
  if (mf_status_code(status) == MF_UNSUPPORTED) {
    const Owner<mf_status, mf_status_free> owner(status);
    if (reason) *reason = mf_status_message(status);
    return all;
  }
  check(status);
  for (int32_t i = 0; i < count; ++i) {
    auto gpu = sized<mf_gpu>();
    check(mf_gpu_info(i, &gpu));
    all.push_back({gpu.name, gpu.memory_bytes, gpu.capability});
  }
  return all;
}

// ---- memory --------------------------------------------------------------------------------------------------------

// The dtype of a type of C++. The language has none for bfloat16 and float16; a host that has one of two bytes, out of
// a library or its own, tells it here:
//   template <>
//   struct moonflow::DtypeOf<Eigen::bfloat16> {
//     static constexpr mf_dtype value = MF_BFLOAT16;
//   };
template <typename T>
struct DtypeOf;
template <>
struct DtypeOf<float> {
  static constexpr mf_dtype value = MF_FLOAT32;
};
template <>
struct DtypeOf<double> {
  static constexpr mf_dtype value = MF_FLOAT64;
};
template <>
struct DtypeOf<int8_t> {
  static constexpr mf_dtype value = MF_INT8;
};
template <>
struct DtypeOf<uint8_t> {
  static constexpr mf_dtype value = MF_UINT8;
};
template <>
struct DtypeOf<int32_t> {
  static constexpr mf_dtype value = MF_INT32;
};
template <>
struct DtypeOf<int64_t> {
  static constexpr mf_dtype value = MF_INT64;
};

// What is thrown where memory is asked for as another dtype than it has.
inline std::invalid_argument another_dtype(const std::string& what, int32_t index, mf_dtype is, mf_dtype asked) {
  static const char* const names[] = {"float32", "float64", "int8",     "uint8",
                                      "int32",   "int64",   "bfloat16", "float16"};  // as mf_dtype counts them
  const auto name = [](mf_dtype dtype) { return dtype >= 0 && dtype <= MF_FLOAT16 ? names[dtype] : "unknown"; };
  return std::invalid_argument("moonflow: " + what + " " + std::to_string(index) + " is " + name(is) +
                               ", asked for as " + name(asked));
}

// Elements of somebody else, side by side.
template <typename T>
class Span {
 public:
  Span(T* data, size_t size) noexcept : data_(data), size_(size) {}
  T* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  T* begin() const noexcept { return data_; }
  T* end() const noexcept { return data_ + size_; }
  T& operator[](size_t i) const noexcept { return data_[i]; }

 private:
  T* data_;
  size_t size_;
};

// An input of a call: a vector, an array or a span of the host, which must live until the call returns. Its shape is
// the one that the job's signature says.
class Input {
 public:
  template <typename T>
  Input(const T* data, size_t count) noexcept : array_(mf_array_of(DtypeOf<T>::value, data, count)) {}
  template <typename Container, typename = decltype(std::declval<const Container&>().data())>
  Input(const Container& elements) noexcept : Input(elements.data(), elements.size()) {}
  operator const mf_array&() const noexcept { return array_; }

 private:
  mf_array array_;
};

// Where a call puts an output; of the signature's dtype and count.
class Output {
 public:
  template <typename T>
  Output(T* data, size_t count) noexcept : array_(mf_array_of(DtypeOf<T>::value, data, count)) {}
  template <typename Container, typename = decltype(std::declval<Container&>().data())>
  Output(Container& elements) noexcept : Output(elements.data(), elements.size()) {}
  operator const mf_array&() const noexcept { return array_; }

 private:
  mf_array array_;
};

// What a job takes or gives at one place, or what a variable is.
struct Type {
  std::string name;
  mf_dtype dtype = MF_FLOAT32;
  std::vector<int64_t> dims;
  size_t count = 0;

  explicit Type(const mf_type& type)
      : name(type.name ? type.name : ""),
        dtype(type.dtype),
        dims(type.dims, type.dims + type.rank),
        count(type.count) {}
};

// Memory that the library has handed out.
class Bytes {
 public:
  explicit Bytes(mf_bytes* bytes) noexcept : handle_(bytes) {}
  const void* data() const noexcept { return mf_bytes_data(handle_.get()); }
  size_t size() const noexcept { return mf_bytes_size(handle_.get()); }

 private:
  Owner<mf_bytes, mf_bytes_free> handle_;
};

// ---- prepared calls ------------------------------------------------------------------------------------------------

// A job for a control loop: fill the inputs, run, read the outputs. After warm_up() on the thread that runs it, run()
// neither allocates nor locks.
class Prepared {
 public:
  explicit Prepared(mf_prepared* prepared) noexcept : handle_(prepared) {}

  // The fixed buffers. They stay where they are while this object lives; ask once, before the loop.
  template <typename T>
  Span<T> input(int32_t index) const {
    return buffer<T>("prepared input", mf_prepared_input, index);
  }
  template <typename T>
  Span<const T> output(int32_t index) const {
    const Span<T> all = buffer<T>("prepared output", mf_prepared_output, index);
    return {all.data(), all.size()};
  }

  // Lets runs read or write memory of the host in the place of such a buffer; see mf_prepared_bind_input. Fit for the
  // thread that runs as long as the memory is; throws where it is not.
  void bind_input(int32_t index, const Input& memory) {
    bound(mf_prepared_bind_input(handle_.get(), index, &static_cast<const mf_array&>(memory)));
  }
  void bind_output(int32_t index, const Output& memory) {
    bound(mf_prepared_bind_output(handle_.get(), index, &static_cast<const mf_array&>(memory)));
  }
  void bind_own_input(int32_t index) { bound(mf_prepared_bind_input(handle_.get(), index, nullptr)); }
  void bind_own_output(int32_t index) { bound(mf_prepared_bind_output(handle_.get(), index, nullptr)); }

  mf_code warm_up() noexcept { return mf_prepared_warm_up(handle_.get()); }
  mf_code run() noexcept { return mf_prepared_run(handle_.get()); }
  // Stops the run under way before its next step; without one nothing happens. From any thread, or a signal handler.
  mf_code interrupt() noexcept { return mf_prepared_interrupt(handle_.get()); }
  // What the last run, reset or binding that failed has failed with, if any has. From any thread, beside the one that
  // runs.
  std::optional<Error> failure() const {
    const Owner<mf_status, mf_status_free> status(mf_prepared_failure(handle_.get()));
    return status ? std::optional<Error>(status.get()) : std::nullopt;
  }
  mf_code reset() noexcept { return mf_prepared_reset(handle_.get()); }
  uint64_t generation() noexcept { return mf_prepared_generation(handle_.get()); }
  void publish() { check(mf_prepared_publish(handle_.get())); }  // on the session's thread

  mf_prepared* handle() const noexcept { return handle_.get(); }  // for the C interface; stays this object's

 private:
  void bound(mf_code code) const {
    if (code == MF_INVALID_HANDLE) throw std::invalid_argument("moonflow: this is no open prepared call");
    if (code != MF_OK) throw *failure();
  }

  template <typename T>
  Span<T> buffer(const char* what, mf_status* (*ask)(mf_prepared*, int32_t, mf_array*), int32_t index) const {
    mf_array array = mf_array_of(DtypeOf<T>::value, nullptr, 0);
    check(ask(handle_.get(), index, &array));
    if (array.dtype != DtypeOf<T>::value) throw another_dtype(what, index, array.dtype, DtypeOf<T>::value);
    return {static_cast<T*>(array.data), static_cast<size_t>(array.count)};
  }

  Owner<mf_prepared, mf_prepared_close> handle_;
};

// ---- jobs ----------------------------------------------------------------------------------------------------------

// What an asynchronous call came to. Lives as long as the handler's call.
class Result {
 public:
  Result(const mf_status* error, const mf_array* outputs, int32_t count) noexcept
      : error_(error), outputs_(outputs), count_(count) {}

  bool failed() const noexcept { return error_ != nullptr; }
  int32_t size() const noexcept { return count_; }
  // The elements of an output. Throws what the run failed with; a handler that lets it pass sees it thrown by poll().
  template <typename T = float>
  Span<const T> output(int32_t index) const {
    if (error_) throw Error(error_);
    if (index < 0 || index >= count_) throw std::out_of_range("moonflow: the job has no such output");
    const mf_array& array = outputs_[index];
    if (array.dtype != DtypeOf<T>::value) throw another_dtype("output", index, array.dtype, DtypeOf<T>::value);
    return {static_cast<const T*>(array.data), static_cast<size_t>(array.count)};
  }

 private:
  const mf_status* error_;
  const mf_array* outputs_;
  int32_t count_;
};

using Handler = std::function<void(const Result&)>;

// The handlers that wait for their results, and the exceptions that handlers have thrown. A handler moves from one list
// to the other as it stands, so that an exception is kept even when there is no memory. The session clears them when it
// has closed, so a result that never comes takes its handler with it, though a job may still hold this.
class Deliveries {
 public:
  struct Waiting {
    Handler handler;
    Deliveries* all;
    std::list<Waiting>::iterator self;
    std::exception_ptr thrown;
  };

  Waiting* expect(Handler handler) {
    waiting_.push_front({std::move(handler), this, {}, {}});
    waiting_.front().self = waiting_.begin();
    return &waiting_.front();
  }
  void forget(Waiting* entry) { waiting_.erase(entry->self); }
  // No result comes any more. What handlers own may come back here as it ends.
  void clear() noexcept {
    std::list<Waiting> waiting, failed;
    waiting.swap(waiting_);
    failed.swap(failed_);
  }

  // The mf_result_function of every launch. Exceptions stop here.
  static void deliver(void* user, const mf_status* error, const mf_array* outputs, int32_t count) noexcept {
    Waiting& entry = *static_cast<Waiting*>(user);
    std::list<Waiting> own;  // out of reach of what the handler does
    own.splice(own.begin(), entry.all->waiting_, entry.self);
    try {
      entry.handler(Result(error, outputs, count));
    } catch (...) {
      entry.thrown = std::current_exception();
      entry.all->failed_.splice(entry.all->failed_.end(), own);
    }
  }

  // Throws the status, else the oldest exception of a handler. Others wait for the next call.
  void check(mf_status* status) {
    moonflow::check(status);
    if (failed_.empty()) return;
    const std::exception_ptr thrown = failed_.front().thrown;
    failed_.pop_front();
    std::rethrow_exception(thrown);
  }

 private:
  std::list<Waiting> waiting_, failed_;
};

class Job {
 public:
  Job(mf_job* job, std::shared_ptr<Deliveries> deliveries) noexcept
      : deliveries_(std::move(deliveries)), handle_(job) {}
  // Not the default: what is moved from keeps the deliveries, and so can say that it has no handle.
  Job(Job&& other) noexcept : deliveries_(other.deliveries_), handle_(std::move(other.handle_)) {}
  Job& operator=(Job&& other) noexcept {
    handle_ = std::move(other.handle_);
    deliveries_ = other.deliveries_;
    return *this;
  }

  // Runs the job and gives its outputs, all of which must be float32. These all take a list or a vector of inputs.
  std::vector<std::vector<float>> operator()(const std::vector<Input>& inputs) {
    const std::vector<Type> types = outputs();
    std::vector<std::vector<float>> values;
    std::vector<mf_array> into;
    for (const Type& type : types) {
      values.emplace_back(type.count);
      into.push_back(mf_floats(values.back().data(), type.count));
    }
    run({inputs.begin(), inputs.end()}, std::move(into));
    return values;
  }
  std::vector<std::vector<float>> operator()(std::initializer_list<Input> inputs) {
    return (*this)(std::vector<Input>(inputs));
  }
  // Runs the job and fills memory of the host, whatever the dtypes.
  void call(const std::vector<Input>& inputs, const std::vector<Output>& outputs) {
    run({inputs.begin(), inputs.end()}, {outputs.begin(), outputs.end()});
  }
  void call(std::initializer_list<Input> inputs, std::initializer_list<Output> outputs) {
    run({inputs.begin(), inputs.end()}, {outputs.begin(), outputs.end()});
  }
  // The same for as long as there is time: false when it is over, and then the run is cancelled and `outputs` are as
  // they were. Not in a handler.
  bool call_for(double max_ms, const std::vector<Input>& inputs, const std::vector<Output>& outputs) {
    return run({inputs.begin(), inputs.end()}, {outputs.begin(), outputs.end()}, max_ms);
  }
  bool call_for(double max_ms, std::initializer_list<Input> inputs, std::initializer_list<Output> outputs) {
    return run({inputs.begin(), inputs.end()}, {outputs.begin(), outputs.end()}, max_ms);
  }
  // Copies the inputs, starts the run and returns its number, for Session::wait and Session::cancel. `handler` is
  // called once, inside a later poll(), sync() or call; not at all if the session ends first. Throws MF_BUSY when too
  // much is in flight: poll, and try again.
  mf_run launch(const std::vector<Input>& inputs, Handler handler) {
    mf_run run = 0;
    check(start(inputs, std::move(handler), run));
    return run;
  }
  mf_run launch(std::initializer_list<Input> inputs, Handler handler) {
    return launch(std::vector<Input>(inputs), std::move(handler));
  }
  // The same for a loop that launches what there is room for: false instead of MF_BUSY.
  bool try_launch(std::initializer_list<Input> inputs, Handler handler) {
    return try_launch(std::vector<Input>(inputs), std::move(handler));
  }
  bool try_launch(const std::vector<Input>& inputs, Handler handler) {
    mf_run run = 0;
    mf_status* status = start(inputs, std::move(handler), run);
    if (mf_status_code(status) == MF_BUSY) return mf_status_free(status), false;
    check(status);
    return true;
  }

  Prepared prepare() {
    mf_prepared* prepared = nullptr;
    check(mf_job_prepare(handle_.get(), &prepared));
    return Prepared(prepared);
  }

  std::vector<Type> inputs() const { return types(mf_job_input_count, mf_job_input); }
  std::vector<Type> outputs() const { return types(mf_job_output_count, mf_job_output); }

  mf_job* handle() const noexcept { return handle_.get(); }  // for the C interface; stays this object's

 private:
  void run(const std::vector<mf_array>& inputs, std::vector<mf_array> outputs) {
    deliveries_->check(mf_job_call(handle_.get(), inputs.data(), static_cast<int32_t>(inputs.size()), outputs.data(),
                                   static_cast<int32_t>(outputs.size())));
  }
  bool run(const std::vector<mf_array>& inputs, std::vector<mf_array> outputs, double max_ms) {
    mf_status* status = mf_job_call_for(handle_.get(), inputs.data(), static_cast<int32_t>(inputs.size()),
                                        outputs.data(), static_cast<int32_t>(outputs.size()), max_ms);
    const bool in_time = mf_status_code(status) != MF_TIMED_OUT;
    if (!in_time) mf_status_free(std::exchange(status, nullptr));
    deliveries_->check(status);
    return in_time;
  }

  mf_status* start(const std::vector<Input>& inputs, Handler handler, mf_run& run) {
    const std::vector<mf_array> arrays(inputs.begin(), inputs.end());
    Deliveries::Waiting* entry = deliveries_->expect(std::move(handler));
    mf_status* status = mf_job_launch(handle_.get(), arrays.data(), static_cast<int32_t>(arrays.size()),
                                      Deliveries::deliver, entry, &run);
    if (status) deliveries_->forget(entry);
    return status;
  }

  std::vector<Type> types(mf_status* (*count_of)(mf_job*, int32_t*),
                          mf_status* (*ask)(mf_job*, int32_t, mf_type*)) const {
    int32_t count = 0;
    check(count_of(handle_.get(), &count));
    std::vector<Type> all;
    for (int32_t i = 0; i < count; ++i) {
      auto type = sized<mf_type>();
      check(ask(handle_.get(), i, &type));
      all.emplace_back(type);
    }
    return all;
  }

  std::shared_ptr<Deliveries> deliveries_;  // shared: a job may outlive its session
  Owner<mf_job, mf_job_close> handle_;
};

// ---- sessions ------------------------------------------------------------------------------------------------------

struct Options {
  int32_t threads = 0;                   // of the CPU kernels; 0: one per core
  void* lua_state = nullptr;             // a lua_State* of the host; null: the session makes its own
  std::string library_path;              // the folder that holds moonflow/init.lua; empty: found
  mf_allocator allocator{};              // allocate == nullptr: the default one
  std::function<void(const char*)> log;  // takes warnings, line by line; what it throws is dropped
};

// An engine with its Lua state. Belongs to the thread that made it, or that has taken it over last, which is also the
// one to destroy it; handed over, any thread is.
class Session {
 public:
  explicit Session(Options options = {})
      : deliveries_(std::make_shared<Deliveries>()),
        log_(std::make_unique<std::function<void(const char*)>>(std::move(options.log))) {
    auto plain = sized<mf_session_options>();
    plain.threads = options.threads;
    plain.lua_state = options.lua_state;
    plain.library_path = options.library_path.empty() ? nullptr : options.library_path.c_str();
    plain.allocator = options.allocator;
    plain.log = *log_ ? write_log : nullptr;
    plain.log_user = log_.get();
    mf_session* session = nullptr;
    check(mf_session_open(&plain, &session));
    handle_.reset(session);
  }
  Session(Session&& other) noexcept  // as of a Job
      : deliveries_(other.deliveries_), log_(std::move(other.log_)), handle_(std::move(other.handle_)) {}
  ~Session() { close(); }
  Session& operator=(Session&& other) noexcept {  // the old handle goes before what its callbacks use
    if (this != &other) close();
    handle_ = std::move(other.handle_);
    log_ = std::move(other.log_);
    deliveries_ = other.deliveries_;
    return *this;
  }

  mf_session* handle() const noexcept { return handle_.get(); }  // for the C interface

  // From thread to thread, with jobs, launched runs and their handlers: the owner gives it up, another takes it over.
  // Neither waits; to take over what has not been given up throws MF_WRONG_THREAD.
  void hand_over() { check(mf_session_hand_over(handle())); }
  void take_over() { check(mf_session_take_over(handle())); }

  void load_file(const std::string& path) { deliver(mf_session_load_file(handle(), path.c_str())); }
  void load_text(const std::string& text, const std::string& name) {
    deliver(mf_session_load_text(handle(), text.data(), text.size(), name.c_str()));
  }
  // The newest job of that name.
  Job job(const std::string& name) {
    mf_job* job = nullptr;
    check(mf_job_find(handle(), name.c_str(), &job));
    return Job(job, deliveries_);
  }
  // The names that job() takes, in alphabetical order.
  std::vector<std::string> job_names() {
    int32_t count = 0;
    check(mf_job_count(handle(), &count));
    std::vector<std::string> names;
    for (int32_t i = 0; i < count; ++i) {
      const char* name = nullptr;
      check(mf_job_name(handle(), i, &name));
      names.push_back(name);
    }
    return names;
  }
  void* lua_state() {
    void* state = nullptr;
    check(mf_session_lua_state(handle(), &state));
    return state;
  }

  // Delivers what is ready within the budget, below 0: all of it. Gives how many handlers were called; throws what one
  // of them has thrown, once the queue is in order again.
  int32_t poll(double budget_ms = -1) {
    int32_t delivered = 0;
    deliver(mf_session_poll(handle(), budget_ms, &delivered));
    return delivered;
  }
  // Waits until all is done, or the time is over, below 0: until all is done. Gives whether it is.
  bool sync(double max_ms = -1) {
    int32_t done = 0;
    deliver(mf_session_sync_for(handle(), max_ms, &done));
    return done != 0;
  }
  // Waits until the handler of a run that was launched has been called, or the time is over, below 0: until it has
  // been. Gives whether it has. A run that is not done goes on.
  bool wait(mf_run run, double max_ms = -1) {
    int32_t done = 0;
    deliver(mf_run_wait(handle(), run, max_ms, &done));
    return done != 0;
  }
  // Asks a run to stop, whose handler then meets MF_INTERRUPTED, unless it is too late.
  void cancel(mf_run run) { check(mf_run_cancel(handle(), run)); }
  int32_t in_flight() {
    int32_t count = 0;
    check(mf_session_in_flight(handle(), &count));
    return count;
  }
  int descriptor() {
    int32_t descriptor = -1;
    check(mf_session_descriptor(handle(), &descriptor));
    return descriptor;
  }
  mf_code interrupt() noexcept { return mf_session_interrupt(handle()); }  // from any thread, or a signal handler
  mf_memory memory() {
    auto memory = sized<mf_memory>();
    check(mf_session_memory(handle(), &memory));
    return memory;
  }

  std::vector<Type> variables() {
    int32_t count = 0;
    check(mf_variable_count(handle(), &count));
    std::vector<Type> all;
    for (int32_t i = 0; i < count; ++i) all.push_back(variable(i));
    return all;
  }
  template <typename T = float>
  std::vector<T> read(const std::string& name) {
    auto type = sized<mf_type>();
    check(mf_variable_find(handle(), name.c_str(), &type));
    std::vector<T> value(static_cast<size_t>(type.count));
    mf_array array = mf_array_of(DtypeOf<T>::value, value.data(), value.size());
    deliver(mf_variable_read(handle(), name.c_str(), &array));
    return value;
  }
  void write(const std::string& name, const Input& value) {
    const mf_array& array = value;
    deliver(mf_variable_write(handle(), name.c_str(), &array));
  }

  void save(const std::string& path, bool overwrite = false) {
    deliver(mf_session_save(handle(), path.c_str(), overwrite));
  }
  void load(const std::string& path) { deliver(mf_session_load(handle(), path.c_str())); }
  Bytes save_memory() {
    mf_bytes* memory = nullptr;
    mf_status* status = mf_session_save_memory(handle(), &memory);
    Bytes bytes(memory);
    deliver(status);
    return bytes;
  }
  void load_memory(const void* data, size_t size) { deliver(mf_session_load_memory(handle(), data, size)); }
  void load_memory(const Bytes& bytes) { load_memory(bytes.data(), bytes.size()); }

 private:
  static void write_log(void* user, const char* line) noexcept {
    try {
      (*static_cast<std::function<void(const char*)>*>(user))(line);
    } catch (...) {
    }
  }

  void deliver(mf_status* status) { deliveries_->check(status); }

  void close() noexcept {
    if (handle_ && mf_session_close(handle_.release()) == MF_OK) deliveries_->clear();
  }

  Type variable(int32_t index) {
    auto type = sized<mf_type>();
    check(mf_variable_type(handle(), index, &type));
    return Type(type);
  }

  // The handle ends first: until then its callbacks use the others.
  std::shared_ptr<Deliveries> deliveries_;
  std::unique_ptr<std::function<void(const char*)>> log_;  // where it stays when the session is moved
  Owner<mf_session, mf_session_close> handle_;
};

}  // namespace api
}  // namespace moonflow

#endif
