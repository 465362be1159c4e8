/* A host in C11 that links the library and LuaJIT, and does once everything that a host can do.
 * usage: c_host jobs.lua FOLDER, where FOLDER may be written to */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "moonflow.h"

static void load_and_call(mf_session* session) {
  mf_job* job = NULL;
  MUST(mf_job_find(session, "pick", &job));
  int32_t inputs = 0, outputs = 0;
  MUST(mf_job_input_count(job, &inputs));
  MUST(mf_job_output_count(job, &outputs));
  CHECK(inputs == 2 && outputs == 2);
  mf_type type;
  type.struct_size = sizeof type;
  MUST(mf_job_input(job, 1, &type));
  CHECK(strcmp(type.name, "index") == 0 && type.dtype == MF_INT32 && type.rank == 1 && type.dims[0] == 2);
  MUST(mf_job_output(job, 0, &type));
  CHECK(type.dtype == MF_FLOAT32 && type.rank == 2 && type.count == 4);

  const float rows[4] = {1, 2, 3, 4};
  const int32_t index[2] = {1, 0};
  float picked[4] = {0};
  int32_t same[2] = {0};
  const mf_array in[2] = {mf_floats(rows, 4), mf_int32s(index, 2)};
  mf_array out[2] = {mf_floats(picked, 4), mf_int32s(same, 2)};
  MUST(mf_job_call(job, in, 2, out, 2));
  CHECK(picked[0] == 3 && picked[1] == 4 && picked[2] == 1 && picked[3] == 2);
  CHECK(same[0] == 1 && same[1] == 0);
  CHECK(mf_job_close(job) == MF_OK);
  CHECK(mf_job_close(job) == MF_INVALID_HANDLE);
}

static void be_told_what_is_wrong(mf_session* session) {
  mf_job* job = NULL;
  mf_status* status = mf_job_find(session, "scales", &job);
  CHECK(mf_status_code(status) == MF_NOT_FOUND && strstr(mf_status_message(status), "scale"));
  CHECK(mf_status_free(status) == MF_OK);

  MUST(mf_job_find(session, "scale", &job));
  float x[2] = {1, 2}, y[3];
  const mf_array in = mf_floats(x, 2);
  mf_array out = mf_floats(y, 3);
  status = mf_job_call(job, &in, 1, &out, 1);
  CHECK(mf_status_code(status) == MF_SHAPE_MISMATCH && strstr(mf_status_message(status), "x"));
  CHECK(mf_status_free(status) == MF_OK);
  CHECK(mf_job_close(job) == MF_OK);

  const char* text = "local x = 1\nlocal function fall() error('oops') end\nfall()\n";
  status = mf_session_load_text(session, text, strlen(text), "broken.lua");
  CHECK(mf_status_code(status) == MF_SCRIPT_ERROR);
  CHECK(strstr(mf_status_message(status), "oops") && strcmp(mf_status_where(status), "broken.lua:2") == 0);
  CHECK(strstr(mf_status_traceback(status), "broken.lua:3"));
  CHECK(mf_status_free(status) == MF_OK);
}

struct received {
  int calls;
  float y[3];
  mf_code code;
};

static void receive(void* user, const mf_status* error, const mf_array* outputs, int32_t count) {
  struct received* received = user;
  ++received->calls;
  received->code = mf_status_code(error);
  if (!error && count == 1) memcpy(received->y, outputs[0].data, sizeof received->y);
}

static void call_without_waiting(mf_session* session) {
  mf_job* job = NULL;
  MUST(mf_job_find(session, "scale", &job));
  float x[3] = {1, 2, 3};
  const mf_array in = mf_floats(x, 3);
  struct received received = {0};
  MUST(mf_job_call_async(job, &in, 1, receive, &received));
  x[0] = 100; /* the call has its own copy */
  CHECK(received.calls == 0);

  int32_t descriptor = -1, delivered = 0, in_flight = 0;
  MUST(mf_session_in_flight(session, &in_flight));
  CHECK(in_flight == 1);
  MUST(mf_session_descriptor(session, &descriptor));
  struct pollfd wait = {descriptor, POLLIN, 0};
  while (received.calls == 0) {
    CHECK(poll(&wait, 1, 60 * 1000) == 1);
    MUST(mf_session_poll(session, 2.0, &delivered));
  }
  CHECK(received.calls == 1 && received.code == MF_OK);
  CHECK(received.y[0] == 2 && received.y[1] == 4 && received.y[2] == 6);
  MUST(mf_session_in_flight(session, &in_flight));
  CHECK(in_flight == 0);

  MUST(mf_job_call_async(job, &in, 1, receive, &received));
  MUST(mf_session_sync(session));
  CHECK(received.calls == 2 && received.y[0] == 200);
  CHECK(mf_job_close(job) == MF_OK);
}

static float scaled_one(mf_session* session) {
  mf_job* job = NULL;
  MUST(mf_job_find(session, "scale", &job));
  const float x[3] = {1, 1, 1};
  float y[3];
  const mf_array in = mf_floats(x, 3);
  mf_array out = mf_floats(y, 3);
  MUST(mf_job_call(job, &in, 1, &out, 1));
  CHECK(mf_job_close(job) == MF_OK);
  return y[0];
}

static void keep_weights(mf_session* session, const char* folder) {
  float factor[3] = {5, 5, 5}, back[3] = {0};
  mf_array value = mf_floats(factor, 3), read = mf_floats(back, 3);
  MUST(mf_variable_write(session, "factor", &value));
  CHECK(scaled_one(session) == 5);
  MUST(mf_variable_read(session, "factor", &read));
  CHECK(back[2] == 5);

  char path[4096];
  CHECK(snprintf(path, sizeof path, "%s/checkpoint", folder) < (int)sizeof path);
  MUST(mf_session_save(session, path, 1));
  mf_status* status = mf_session_save(session, path, 0); /* it is there */
  CHECK(mf_status_code(status) != MF_OK);
  CHECK(mf_status_free(status) == MF_OK);
  mf_bytes* bytes = NULL;
  MUST(mf_session_save_memory(session, &bytes));

  factor[0] = 7;
  MUST(mf_variable_write(session, "factor", &value));
  CHECK(scaled_one(session) == 7);
  MUST(mf_session_load(session, path));
  CHECK(scaled_one(session) == 5);
  MUST(mf_variable_write(session, "factor", &value));
  MUST(mf_session_load_memory(session, mf_bytes_data(bytes), mf_bytes_size(bytes)));
  CHECK(scaled_one(session) == 5);
  CHECK(mf_bytes_free(bytes) == MF_OK);

  int32_t count = 0, found = 0;
  MUST(mf_variable_count(session, &count));
  for (int32_t i = 0; i < count; ++i) {
    mf_type type;
    type.struct_size = sizeof type;
    MUST(mf_variable_type(session, i, &type));
    if (strcmp(type.name, "factor") == 0) found += type.count == 3;
  }
  CHECK(found == 1);
}

static mf_prepared* run_prepared(mf_session* session) {
  mf_job* job = NULL;
  mf_prepared* prepared = NULL;
  MUST(mf_job_find(session, "scale", &job));
  MUST(mf_job_prepare(job, &prepared));
  CHECK(mf_job_close(job) == MF_OK);
  mf_array x = mf_floats(NULL, 0), y = x;
  MUST(mf_prepared_input(prepared, 0, &x));
  MUST(mf_prepared_output(prepared, 0, &y));
  CHECK(x.count == 3 && x.dtype == MF_FLOAT32 && y.count == 3);
  for (int i = 0; i < 3; ++i) ((float*)x.data)[i] = (float)i;
  CHECK(mf_prepared_warm_up(prepared) == MF_OK);
  CHECK(mf_prepared_run(prepared) == MF_OK);
  CHECK(((const float*)y.data)[2] == 10);

  const float factor[3] = {3, 3, 3};
  const mf_array value = mf_floats(factor, 3);
  MUST(mf_variable_write(session, "factor", &value));
  CHECK(mf_prepared_run(prepared) == MF_OK);
  CHECK(((const float*)y.data)[2] == 10); /* not published yet */
  const uint64_t before = mf_prepared_generation(prepared);
  MUST(mf_prepared_publish(prepared));
  CHECK(mf_prepared_run(prepared) == MF_OK);
  CHECK(((const float*)y.data)[2] == 6);
  CHECK(mf_prepared_generation(prepared) == before + 1);
  return prepared;
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  mf_session_options options = {0};
  options.struct_size = sizeof options;
  options.threads = 1;
  mf_session* session = NULL;
  MUST(mf_session_open(&options, &session));
  MUST(mf_session_load_file(session, argv[1]));
  load_and_call(session);
  be_told_what_is_wrong(session);
  call_without_waiting(session);
  keep_weights(session, argv[2]);
  mf_prepared* prepared = run_prepared(session);
  CHECK(mf_session_close(session) == MF_OK);
  CHECK(mf_session_close(session) == MF_INVALID_HANDLE);
  CHECK(mf_prepared_run(prepared) == MF_OK); /* it has all that it needs */
  CHECK(mf_prepared_close(prepared) == MF_OK);
  return 0;
}
