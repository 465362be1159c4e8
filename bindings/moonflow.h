/* Moonflow for hosts: the C interface. A host opens a session, loads a Lua file that defines job functions, and calls
 * them with arrays: at once, asynchronously, or by a prepared call that a real-time thread can make.
 *
 * Rules that hold for all of it:
 *  - A handle is an opaque value, not an address. NULL, a closed handle and a handle of another kind are errors, never
 *    undefined behaviour. Handles may be closed in any order; what they depended on being closed is an error too.
 *  - A function that can fail gives a status: NULL when all is well, else an object that the caller frees with
 *    mf_status_free. Functions that a real-time thread or a signal handler may call, and those that close, give a code.
 *  - A struct that a host fills begins with struct_size = sizeof it. Zero means "the default" in every other field.
 *  - Nothing here prints, exits, aborts, throws, installs a signal handler, or reads an environment variable
 *    without the prefix MOONFLOW_.
 *  - Once the process exits, what would run, load a job or open a session gives MF_INTERRUPTED, and so do runs that
 *    have not begun, to whoever waits for them. What atexit calls may still deliver, read, save and close.
 *  - A thread that is cancelled (pthread_cancel) in a call ends when that is over.
 *  - Each function is marked with the thread that may call it:
 *      MF_ANY_THREAD    any thread, at any time
 *      MF_OWNER_THREAD  the thread that the session belongs to: the one that opened it, or the last that has taken it
 *                       over; another, or a fork, gets MF_WRONG_THREAD
 *      MF_ONE_THREAD    any thread, but one at a time for one handle
 *      MF_REAL_TIME     as MF_ONE_THREAD, and after mf_prepared_warm_up on that thread: no allocation,
 *                       no lock, no system call, no Lua
 *      MF_SIGNAL_SAFE   as MF_ANY_THREAD, and inside a signal handler
 *
 * Link with -lmoonflow -lluajit-5.1: the process brings the Lua virtual machine, so that a game's own and Moonflow's
 * are one. docs/embedding.md is the guide. */
#ifndef MOONFLOW_H
#define MOONFLOW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MF_API_VERSION 1u

#if defined(__GNUC__)
#define MF_EXPORT __attribute__((visibility("default")))
#else
#define MF_EXPORT
#endif
#if defined(__GNUC__)
#define MF_INLINE static __inline__ /* for C89 too */
#else
#define MF_INLINE static inline
#endif
#define MF_ANY_THREAD
#define MF_OWNER_THREAD
#define MF_ONE_THREAD
#define MF_REAL_TIME
#define MF_SIGNAL_SAFE

typedef struct mf_session mf_session;   /* an engine with its Lua state; belongs to one thread at a time */
typedef struct mf_job mf_job;           /* a job function, as it was defined when it was looked up */
typedef uint64_t mf_run;                /* a run that was launched, by its number in its session; 0: none */
typedef struct mf_prepared mf_prepared; /* a job with fixed buffers and weights of its own */
typedef struct mf_bytes mf_bytes;       /* memory that the library hands out */
typedef struct mf_status mf_status;     /* what went wrong */

/* ---- statuses ---------------------------------------------------------------------------------------------------- */

typedef int32_t mf_code;
enum {
  MF_OK = 0,
  MF_INVALID_ARGUMENT = 1, /* a value outside what the call accepts */
  MF_SHAPE_MISMATCH = 2,   /* an array of the wrong shape or size */
  MF_DTYPE_MISMATCH = 3,
  MF_OUT_OF_RANGE = 4, /* an index, a label or a size outside its bounds */
  MF_NOT_FOUND = 5,    /* no job, variable or file of that name */
  MF_UNSUPPORTED = 6,  /* no kernel for this device or dtype, or none fit for real time */
  MF_BUSY = 7,         /* too many runs in flight; poll, and try again */
  MF_INTERRUPTED = 8,
  MF_OUT_OF_MEMORY = 9,
  MF_IO = 10,
  MF_WRONG_STATE = 11,    /* the call is right, the moment is not */
  MF_INTERNAL = 12,       /* a fault of a library below this one */
  MF_SCRIPT_ERROR = 13,   /* the script raised it, or it does not compile */
  MF_INVALID_HANDLE = 14, /* NULL, of another kind, or closed */
  MF_WRONG_THREAD = 15,   /* the session belongs to another thread, or to none */
  MF_TIMED_OUT = 16       /* the time that a call was given is over */
};

/* The code of a status: MF_OK for NULL, MF_INVALID_HANDLE for what is no status. */
MF_EXPORT MF_ANY_THREAD mf_code mf_status_code(const mf_status* status);
/* The whole story: "file:line: job: op: message", and for an error of a callback a second line that says which. Never
 * NULL; lives as long as the status. */
MF_EXPORT MF_ANY_THREAD const char* mf_status_message(const mf_status* status);
/* The script's line, "file:line", or "". */
MF_EXPORT MF_ANY_THREAD const char* mf_status_where(const mf_status* status);
/* The job to blame, or whose definition has failed, or "". */
MF_EXPORT MF_ANY_THREAD const char* mf_status_job(const mf_status* status);
/* The op to blame with its name, or "". */
MF_EXPORT MF_ANY_THREAD const char* mf_status_op(const mf_status* status);
/* The Lua frames of an error that a script raised, without those of the library, or "". */
MF_EXPORT MF_ANY_THREAD const char* mf_status_traceback(const mf_status* status);
/* What else went wrong before: several callbacks may fail in one poll. NULL at the end; freed with the first. */
MF_EXPORT MF_ANY_THREAD const mf_status* mf_status_cause(const mf_status* status);
/* MF_OK, also for NULL; MF_INVALID_HANDLE for what is no status any more. */
MF_EXPORT MF_ANY_THREAD mf_code mf_status_free(mf_status* status);
/* "shape_mismatch" and the like; "unknown" for a number that is no code. */
MF_EXPORT MF_ANY_THREAD const char* mf_code_name(mf_code code);

/* "0.1.0". */
MF_EXPORT MF_ANY_THREAD const char* mf_version(void);

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

/* Where the session gets the memory of arrays, variables, plans and of its own Lua state. Called from any thread of the
 * engine. Small bookkeeping of C++ goes through operator new, which a host may replace. */
typedef struct mf_allocator {
  /* At least `bytes` bytes at a multiple of `alignment` (a power of two), or NULL when there is no memory. */
  void* (*allocate)(void* user, size_t bytes, size_t alignment);
  void (*release)(void* user, void* memory);
  void* user;
} mf_allocator;

/* Takes one line of the log, without its end. Called on the owner thread. */
typedef void (*mf_log_function)(void* user, const char* line);

typedef struct mf_session_options {
  uint32_t struct_size;
  int32_t threads;          /* of the CPU kernels; 0: one per core */
  void* lua_state;          /* a lua_State* of the host (LuaJIT 2.1) to live in; NULL: the session makes its own */
  const char* library_path; /* the folder that holds moonflow/init.lua; NULL: found from where the library lies */
  mf_allocator allocator;   /* allocate == NULL: malloc, of which up to 65 MiB are kept spare, and LuaJIT's own */
  mf_log_function log;      /* NULL: warnings are dropped */
  void* log_user;
} mf_session_options;

/* Opens a session that belongs to the calling thread. In a lua_State of the host, `require "moonflow"` gives the
 * library of this session, and there can be one session per state; the state must stay open until the session is
 * closed. Asynchronous calls never wait ("host mode"): when too much is in flight they say MF_BUSY. `options` may be
 * NULL. */
MF_EXPORT MF_ANY_THREAD mf_status* mf_session_open(const mf_session_options* options, mf_session** session);
/* Refuses new runs, cancels queued ones, waits for the running one, discards what was not delivered, closes its own Lua
 * state. Jobs and prepared calls of it stay valid handles; prepared calls can even be run on. A session that has been
 * handed over may be closed by any thread. MF_WRONG_STATE, and it stays open, inside a callback or another of its
 * calls, and below a function in its own lua_State. */
MF_EXPORT MF_OWNER_THREAD mf_code mf_session_close(mf_session* session);
/* Gives the session up, with its jobs, its lua_State and what is in flight, for another thread to take over; until one
 * has, its functions for the owner give MF_WRONG_THREAD. Runs go on meanwhile, and the next owner's polls deliver them.
 * MF_WRONG_STATE while a call of the session is under way on this thread, in a callback for instance, or a function in
 * its lua_State. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_hand_over(mf_session* session);
/* Makes the calling thread the owner of a session that has been handed over, and lets it see all that the one before
 * has done. Does not wait: MF_WRONG_THREAD while the session belongs to another thread, MF_WRONG_STATE when it belongs
 * to this one. Of several threads that try, one succeeds. */
MF_EXPORT MF_ANY_THREAD mf_status* mf_session_take_over(mf_session* session);
/* The lua_State* that was given, or the session's own: for a host that wants to add functions of its own. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_lua_state(mf_session* session, void** lua_state);

/* Runs a Lua file. The jobs it defines are kept for mf_job_find until the file is loaded again, or another one gives
 * their names to jobs of its own; variables are kept by name, so weights live on. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_load_file(mf_session* session, const char* path);
/* The same for text in memory; `name` stands for the file in messages. Bytecode is refused. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_load_text(mf_session* session, const char* text, size_t size,
                                                          const char* name);

/* Delivers what is ready, without waiting: at least one delivery, then until the budget is over. A budget below 0 takes
 * all that is ready. An empty poll costs a few nanoseconds. `delivered` may be NULL. The status is the first error that
 * a callback, a watch or an unattended run has left. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_poll(mf_session* session, double budget_ms, int32_t* delivered);
/* Waits until nothing is in flight, everything is delivered, and published weights have reached their prepared calls. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_sync(mf_session* session);
/* The same for as long as there is time: what is not done after `max_ms` goes on, and waits for the next poll or sync.
 * Like a poll it delivers something, if that is ready, in no time too. A time below 0 has no end, in
 * mf_session_sync_for as in a budget of mf_session_poll; in Lua, flow.sync(-1) and flow.poll(-1) have no time instead,
 * and it is leaving the number out that has no end. *done is 1 when all is done, else 0; with a status it is 0, and the
 * next call tells. `done` may be NULL. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_sync_for(mf_session* session, double max_ms, int32_t* done);
/* Runs whose end has not been delivered. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_in_flight(mf_session* session, int32_t* count);
/* A descriptor that is readable while there is something to deliver, for poll(2) and event loops. Not to be closed. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_descriptor(mf_session* session, int32_t* descriptor);
/* Stops what the session is doing: the run under way ends before its first write or after its last, and the call that
 * waits for it fails with MF_INTERRUPTED. With nothing under way the next run does. The session stays usable. */
MF_EXPORT MF_SIGNAL_SAFE mf_code mf_session_interrupt(mf_session* session);

/* What a session holds, in bytes. The caller sets struct_size. */
typedef struct mf_memory {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t live;      /* arrays, plans and prepared calls, with those that wait for Lua's garbage collector */
  uint64_t spare;     /* kept for the next arrays; with an allocator of the host there are none */
  uint64_t variables; /* with what optimizers remember, the layouts jobs read them in, and the copies on GPUs */
  uint64_t lua;       /* the heap of its lua_State, with what is the host's there */
} mf_memory;

/* flow.memory() in Lua, which tells of each job too. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_memory(mf_session* session, mf_memory* memory);

/* ---- arrays and jobs --------------------------------------------------------------------------------------------- */

typedef int32_t mf_dtype;
enum { MF_FLOAT32 = 0, MF_FLOAT64 = 1, MF_INT8 = 2, MF_UINT8 = 3, MF_INT32 = 4, MF_INT64 = 5, MF_BFLOAT16 = 6,
       MF_FLOAT16 = 7 };
enum { MF_MAX_RANK = 8 };

/* Memory of the host, dense and row-major. */
typedef struct mf_array {
  uint32_t struct_size;
  mf_dtype dtype;
  void* data;          /* never written when the array is an input */
  uint64_t count;      /* elements at `data` */
  const int64_t* dims; /* NULL: the shape that the signature says; else an output's must be that one */
  int32_t rank;        /* of dims */
  int32_t reserved;
} mf_array;

MF_INLINE mf_array mf_array_of(mf_dtype dtype, const void* data, uint64_t count) {
  mf_array array;
  array.struct_size = (uint32_t)sizeof array;
  array.dtype = dtype;
  array.data = (void*)(uintptr_t)data;
  array.count = count;
  array.dims = NULL;
  array.rank = 0;
  array.reserved = 0;
  return array;
}
MF_INLINE mf_array mf_floats(const float* data, uint64_t count) { return mf_array_of(MF_FLOAT32, data, count); }
MF_INLINE mf_array mf_int32s(const int32_t* data, uint64_t count) { return mf_array_of(MF_INT32, data, count); }

/* What a job takes or gives at one place, or what a variable is. The caller sets struct_size. */
typedef struct mf_type {
  uint32_t struct_size;
  mf_dtype dtype;
  int32_t rank;
  int32_t reserved;
  int64_t dims[MF_MAX_RANK];
  uint64_t count;   /* elements */
  const char* name; /* of an input: the parameter; of an output: its key in a Dict, else its blob; lives as long as the
                       handle asked */
} mf_type;

/* The newest job of that name. MF_NOT_FOUND suggests the nearest. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_job_find(mf_session* session, const char* name, mf_job** job);
/* The jobs that mf_job_find can give now, by rising name. The name lives until the next call of either. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_job_count(mf_session* session, int32_t* count);
MF_EXPORT MF_OWNER_THREAD mf_status* mf_job_name(mf_session* session, int32_t index, const char** name);
MF_EXPORT MF_ANY_THREAD mf_code mf_job_close(mf_job* job);
MF_EXPORT MF_ANY_THREAD mf_status* mf_job_input_count(mf_job* job, int32_t* count);
MF_EXPORT MF_ANY_THREAD mf_status* mf_job_output_count(mf_job* job, int32_t* count);
MF_EXPORT MF_ANY_THREAD mf_status* mf_job_input(mf_job* job, int32_t index, mf_type* type);
/* Outputs in the order of the return type; those of a Dict in the alphabetical order of its keys. */
MF_EXPORT MF_ANY_THREAD mf_status* mf_job_output(mf_job* job, int32_t index, mf_type* type);

/* Runs the job and fills the arrays of `outputs`, which must have the counts and dtypes of the signature. Watches and
 * whatever else becomes ready is delivered before it returns. Inside a callback it waits for its own run only. A job
 * whose input is a list (flow.typing.ListNumpy) takes an array of any shape with as many axes as the signature and at
 * most as many elements, and gives what it makes of that: arrays of another count are refused before the run. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_job_call(mf_job* job, const mf_array* inputs, int32_t input_count,
                                                 mf_array* outputs, int32_t output_count);
/* The same for as long as there is time: it returns when `max_ms` are over, or some microseconds later, whatever the
 * run does meanwhile, and below 0 there is no end. MF_TIMED_OUT then: the run is cancelled as by mf_run_cancel,
 * `outputs` are as they were, and a step of training may still have happened, whole. The run takes place on a thread of
 * the library, which costs some tens of microseconds that mf_job_call does not. MF_WRONG_STATE inside a callback. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_job_call_for(mf_job* job, const mf_array* inputs, int32_t input_count,
                                                     mf_array* outputs, int32_t output_count, double max_ms);
/* Receives the results of an asynchronous call, or what it failed with. Called on the owner thread inside
 * mf_session_poll or another call that delivers. All arguments are the library's and end with the call. It may launch
 * and read; it may not wait: mf_session_poll and mf_session_sync give MF_WRONG_STATE there. It returns, and leaves
 * neither by an exception nor by an error of Lua. */
typedef void (*mf_result_function)(void* user, const mf_status* error, const mf_array* outputs, int32_t output_count);
/* Copies the inputs, starts a run and returns. Exactly one call of `result` follows, unless this gives a status, or the
 * session is closed first. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_job_call_async(mf_job* job, const mf_array* inputs, int32_t input_count,
                                                       mf_result_function result, void* user);
/* The same, and *run is the number of the run, for the two functions below; 0 with a status. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_job_launch(mf_job* job, const mf_array* inputs, int32_t input_count,
                                                   mf_result_function result, void* user, mf_run* run);
/* Waits until the result function of the run has been called, delivering what becomes ready meanwhile, as long as there
 * is time; a `max_ms` below 0 has no end. What is not done goes on. *done is 1 when it has been called, also before
 * this; with a status, which is what another function or run has left, it is 0. `done` may be NULL. MF_WRONG_STATE
 * inside a callback. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_run_wait(mf_session* session, mf_run run, double max_ms, int32_t* done);
/* Asks one run to stop: before it begins, or between two of its steps as long as it has changed no variable. Its result
 * function is called all the same, in its turn among the runs, with MF_INTERRUPTED, or with the results when it was too
 * late. A run that has been started on a GPU goes on to its end. Does not wait. For a run that has ended nothing
 * happens; a number that no run has had is MF_NOT_FOUND. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_run_cancel(mf_session* session, mf_run run);

/* ---- variables and checkpoints ----------------------------------------------------------------------------------- */

MF_EXPORT MF_OWNER_THREAD mf_status* mf_variable_count(mf_session* session, int32_t* count);
/* Variables by rising name; those of optimizers are among them. The name lives until the next call of this function. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_variable_type(mf_session* session, int32_t index, mf_type* type);
/* The type of one of them; its name is the one given. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_variable_find(mf_session* session, const char* name, mf_type* type);
/* The value after all runs submitted so far. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_variable_read(mf_session* session, const char* name, mf_array* value);
MF_EXPORT MF_OWNER_THREAD mf_status* mf_variable_write(mf_session* session, const char* name, const mf_array* value);

/* All variables as a checkpoint folder (see docs/embedding.md); `overwrite` != 0 replaces one that is there. Whatever
 * goes wrong, a checkpoint that was there stays whole. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_save(mf_session* session, const char* path, int32_t overwrite);
/* Checks everything, then sets the variables of the jobs defined so far. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_load(mf_session* session, const char* path);
/* The same to memory and back, in the safetensors format. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_save_memory(mf_session* session, mf_bytes** bytes);
MF_EXPORT MF_OWNER_THREAD mf_status* mf_session_load_memory(mf_session* session, const void* data, size_t size);
MF_EXPORT MF_ANY_THREAD const void* mf_bytes_data(const mf_bytes* bytes); /* NULL for what is no mf_bytes */
MF_EXPORT MF_ANY_THREAD size_t mf_bytes_size(const mf_bytes* bytes);
MF_EXPORT MF_ANY_THREAD mf_code mf_bytes_free(mf_bytes* bytes);

/* ---- prepared calls ---------------------------------------------------------------------------------------------- */

/* Makes a form of a predict job for a control loop: buffers, weights and plan of its own, one thread, kernels that
 * neither allocate nor lock. A job that trains or needs a kernel that is not fit for real time is refused, with the
 * op's line. Variables that the job assigns are the call's own: they begin with the session's values, and keep what a
 * run leaves there. Where a job draws random numbers, each run draws others, which depend on the seed in use now and
 * on which of the job's prepared calls this is. Watches are not called. Costs a compilation, after the runs under way;
 * the session goes on as before. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_job_prepare(mf_job* job, mf_prepared** prepared);
/* The call's own buffer of an input or output: its memory, dtype and count. Constant from here to the end of the
 * handle.
 */
MF_EXPORT MF_ANY_THREAD mf_status* mf_prepared_input(mf_prepared* prepared, int32_t index, mf_array* buffer);
MF_EXPORT MF_ANY_THREAD mf_status* mf_prepared_output(mf_prepared* prepared, int32_t index, mf_array* buffer);
/* Lets runs read an input, or write an output, in memory of the host, in the place of the own buffer, until it is bound
 * again; NULL binds the own one. So a run writes into a ring or into shared memory, where each tick may bind the next
 * place, or reads what another prepared call has written. Dtype and count must be those of the buffer, dims those or
 * NULL. The memory is aligned for the dtype, does not overlap what the call reads or writes otherwise, though two
 * inputs may lie in one place, and is there as long as it is bound. Else mf_prepared_failure says what was wrong, and
 * the binding is as before. */
MF_EXPORT MF_REAL_TIME mf_code mf_prepared_bind_input(mf_prepared* prepared, int32_t index, const mf_array* memory);
MF_EXPORT MF_REAL_TIME mf_code mf_prepared_bind_output(mf_prepared* prepared, int32_t index, const mf_array* memory);
/* Runs it a few times on the calling thread, so that caches, stack and thread-local state are there. Once per thread.
 */
MF_EXPORT MF_ONE_THREAD mf_code mf_prepared_warm_up(mf_prepared* prepared);
/* From the input buffers to the output buffers, with the newest weights published. A run that fails, at an index
 * outside of what it picks from for instance, puts its error into words, and so allocates; its outputs are not to be
 * used. */
MF_EXPORT MF_REAL_TIME mf_code mf_prepared_run(mf_prepared* prepared);
/* Stops the run under way: it ends before its next step with MF_INTERRUPTED, as long as it has not begun to change the
 * variables that the job assigns, which then are as before it. A step is not cut short. Without a run under way nothing
 * happens. For a thread that watches over a control loop. */
MF_EXPORT MF_SIGNAL_SAFE mf_code mf_prepared_interrupt(mf_prepared* prepared);
/* What the last run, reset or binding that failed has failed with, whatever came after it; NULL when none has. May be
 * asked beside the thread that runs, which does not notice. */
MF_EXPORT MF_ANY_THREAD mf_status* mf_prepared_failure(mf_prepared* prepared);
/* Gives the variables that the job assigns the values that they had when the call was prepared: for a new episode, and
 * after a warm-up, whose runs are runs. */
MF_EXPORT MF_REAL_TIME mf_code mf_prepared_reset(mf_prepared* prepared);
/* How many times new weights have been taken by a run. */
MF_EXPORT MF_REAL_TIME uint64_t mf_prepared_generation(mf_prepared* prepared);
/* Copies the session's weights, as they are after the runs submitted so far, to where the next mf_prepared_run takes
 * them. Neither waits: where runs are under way, this returns and the copy follows them. In Lua: flow.publish(), for
 * all prepared calls of the session. */
MF_EXPORT MF_OWNER_THREAD mf_status* mf_prepared_publish(mf_prepared* prepared);
/* Waits for a run under way on another thread. */
MF_EXPORT MF_ANY_THREAD mf_code mf_prepared_close(mf_prepared* prepared);

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

/* A GPU that a script can place ops on: that at index i is flow.scope.placement("gpu", "0:i", ...). The caller sets
 * struct_size. */
typedef struct mf_gpu {
  uint32_t struct_size;
  int32_t capability; /* 90 for compute capability 9.0 */
  uint64_t memory_bytes;
  char name[256];
} mf_gpu;

/* How many GPUs there are. With none, *count is 0 and the status is MF_UNSUPPORTED and says why and what to do. Whoever
 * asks first, here or in a script, starts NVIDIA's driver, which takes a moment. It and the libraries around it read
 * environment variables of their own, such as CUDA_VISIBLE_DEVICES. */
MF_EXPORT MF_ANY_THREAD mf_status* mf_gpu_count(int32_t* count);
MF_EXPORT MF_ANY_THREAD mf_status* mf_gpu_info(int32_t index, mf_gpu* gpu);

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Every function above, for hosts that open the library at run time. Grows at its end only. */
typedef struct mf_api {
  uint32_t struct_size;
  uint32_t version;
  mf_code (*status_code)(const mf_status*);
  const char* (*status_message)(const mf_status*);
  const char* (*status_where)(const mf_status*);
  const char* (*status_job)(const mf_status*);
  const char* (*status_op)(const mf_status*);
  const char* (*status_traceback)(const mf_status*);
  const mf_status* (*status_cause)(const mf_status*);
  mf_code (*status_free)(mf_status*);
  const char* (*code_name)(mf_code);
  const char* (*library_version)(void);
  mf_status* (*session_open)(const mf_session_options*, mf_session**);
  mf_code (*session_close)(mf_session*);
  mf_status* (*session_lua_state)(mf_session*, void**);
  mf_status* (*session_load_file)(mf_session*, const char*);
  mf_status* (*session_load_text)(mf_session*, const char*, size_t, const char*);
  mf_status* (*session_poll)(mf_session*, double, int32_t*);
  mf_status* (*session_sync)(mf_session*);
  mf_status* (*session_in_flight)(mf_session*, int32_t*);
  mf_status* (*session_descriptor)(mf_session*, int32_t*);
  mf_code (*session_interrupt)(mf_session*);
  mf_status* (*job_find)(mf_session*, const char*, mf_job**);
  mf_code (*job_close)(mf_job*);
  mf_status* (*job_input_count)(mf_job*, int32_t*);
  mf_status* (*job_output_count)(mf_job*, int32_t*);
  mf_status* (*job_input)(mf_job*, int32_t, mf_type*);
  mf_status* (*job_output)(mf_job*, int32_t, mf_type*);
  mf_status* (*job_call)(mf_job*, const mf_array*, int32_t, mf_array*, int32_t);
  mf_status* (*job_call_async)(mf_job*, const mf_array*, int32_t, mf_result_function, void*);
  mf_status* (*variable_count)(mf_session*, int32_t*);
  mf_status* (*variable_type)(mf_session*, int32_t, mf_type*);
  mf_status* (*variable_read)(mf_session*, const char*, mf_array*);
  mf_status* (*variable_write)(mf_session*, const char*, const mf_array*);
  mf_status* (*session_save)(mf_session*, const char*, int32_t);
  mf_status* (*session_load)(mf_session*, const char*);
  mf_status* (*session_save_memory)(mf_session*, mf_bytes**);
  mf_status* (*session_load_memory)(mf_session*, const void*, size_t);
  const void* (*bytes_data)(const mf_bytes*);
  size_t (*bytes_size)(const mf_bytes*);
  mf_code (*bytes_free)(mf_bytes*);
  mf_status* (*job_prepare)(mf_job*, mf_prepared**);
  mf_status* (*prepared_input)(mf_prepared*, int32_t, mf_array*);
  mf_status* (*prepared_output)(mf_prepared*, int32_t, mf_array*);
  mf_code (*prepared_warm_up)(mf_prepared*);
  mf_code (*prepared_run)(mf_prepared*);
  uint64_t (*prepared_generation)(mf_prepared*);
  mf_status* (*prepared_publish)(mf_prepared*);
  mf_code (*prepared_close)(mf_prepared*);
  mf_status* (*gpu_count)(int32_t*);
  mf_status* (*gpu_info)(int32_t, mf_gpu*);
  mf_status* (*session_hand_over)(mf_session*);
  mf_status* (*session_take_over)(mf_session*);
  mf_status* (*prepared_failure)(mf_prepared*);
  mf_status* (*session_sync_for)(mf_session*, double, int32_t*);
  mf_status* (*variable_find)(mf_session*, const char*, mf_type*);
  mf_status* (*job_count)(mf_session*, int32_t*);
  mf_status* (*job_name)(mf_session*, int32_t, const char**);
  mf_status* (*session_memory)(mf_session*, mf_memory*);
  mf_code (*prepared_reset)(mf_prepared*);
  mf_status* (*job_call_for)(mf_job*, const mf_array*, int32_t, mf_array*, int32_t, double);
  mf_status* (*job_launch)(mf_job*, const mf_array*, int32_t, mf_result_function, void*, mf_run*);
  mf_status* (*run_wait)(mf_session*, mf_run, double, int32_t*);
  mf_status* (*run_cancel)(mf_session*, mf_run);
  mf_code (*prepared_bind_input)(mf_prepared*, int32_t, const mf_array*);
  mf_code (*prepared_bind_output)(mf_prepared*, int32_t, const mf_array*);
  mf_code (*prepared_interrupt)(mf_prepared*);
} mf_api;

/* The table of that version, or NULL when this library has none. It lives as long as the process. */
MF_EXPORT MF_ANY_THREAD const mf_api* mf_get_api(uint32_t version);

#ifdef __cplusplus
}
#endif
#endif
