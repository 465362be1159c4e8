/* A host that forgets to close, with runs in flight and a prepared call, and with threads that go on to train in
 * sessions of their own, make the process's first product, or open sessions; or with a function for atexit of its own,
 * older than the session, that goes on to wait or to train. It must end, and with its own code.
 * usage: exit_host jobs.lua [exit|threads|first|opens|waits|trains] */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "moonflow.h"

static void ignore(void* user, const mf_status* error, const mf_array* outputs, int32_t count) {
  (void)user, (void)error, (void)outputs, (void)count;
}

static const char kTrain[] =
    "local flow = require 'moonflow'\n"
    "flow.global_function { name = 'train', type = 'train', returns = flow.typing.Numpy,\n"
    "  inputs = { x = flow.typing.Numpy.Placeholder({ 64, 512 }) } } (function(x)\n"
    "  local y = flow.layers.dense(flow.layers.dense(x, 512, { name = 'a' }), 128, { name = 'b' })\n"
    "  local loss = flow.math.reduce_mean(y ^ 2)\n"
    "  flow.optimizer.Adam(0.001):minimize(loss)\n"
    "  return loss\n"
    "end)\n"
    "flow.global_function { name = 'unused', returns = flow.typing.Numpy,\n"
    "  inputs = { x = flow.typing.Numpy.Placeholder({ 1, 4 }) } } (function(x)\n"
    "  return flow.layers.dense(x, 2, { name = 'has_no_value_yet' })\n"
    "end)\n";

static atomic_int calls, steps;

static void open_training(mf_session** session, mf_job** job, float* x) {
  for (int i = 0; i < 64 * 512; ++i) x[i] = 0.1f; /* of zeros another kernel takes care */
  MUST(mf_session_open(NULL, session));
  MUST(mf_session_load_text(*session, kTrain, strlen(kTrain), "train.lua"));
  MUST(mf_job_find(*session, "train", job));
}

static void* train(void* unused) {
  (void)unused;
  float x[64 * 512];
  mf_session* session = NULL;
  mf_job* job = NULL;
  open_training(&session, &job, x);
  const mf_array in = mf_floats(x, 64 * 512);
  float loss;
  mf_array out = mf_floats(&loss, 1);
  for (;;) {
    ++calls;
    mf_status* status = mf_job_call(job, &in, 1, &out, 1);
    if (status) { /* the process ends */
      CHECK(strstr(mf_status_message(status), "interrupted") || strstr(mf_status_message(status), "the process ends"));
      mf_status_free(status);
      pause();
    }
    ++steps;
  }
}

static void* open_sessions(void* unused) {
  (void)unused;
  for (;;) {
    mf_session* session = NULL;
    mf_status_free(mf_session_open(NULL, &session)); /* which it may refuse, as the process ends */
    mf_session_close(session);
    ++calls;
  }
  return NULL;
}

/* ---- what a host does in a function for atexit ---- */

static mf_session* late_session;
static mf_job* late_job;
static float late_x[64 * 512];
static int launched, delivered, given_up;

#define LATE_CHECK(condition)                                                 \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1); /* it exits already */                                        \
    }                                                                         \
  } while (0)

/* Whether a call was refused because the process ends. */
static int is_too_late(mf_status* status) {
  const int is_it = mf_status_code(status) == MF_INTERRUPTED && strstr(mf_status_message(status), "the process ends");
  if (!is_it) fprintf(stderr, "%s\n", mf_status_message(status));
  mf_status_free(status);
  return is_it;
}

static void note(void* user, const mf_status* error, const mf_array* outputs, int32_t count) {
  (void)user, (void)outputs, (void)count;
  ++delivered;
  if (error) LATE_CHECK(mf_status_code(error) == MF_INTERRUPTED);
  if (error && strstr(mf_status_message(error), "the process ends")) ++given_up;
}

static void wait_late(void) {
  alarm(60);
  LATE_CHECK(mf_session_sync(late_session) == NULL);
  LATE_CHECK(delivered == launched && given_up > 0);
  mf_bytes* bytes = NULL;
  LATE_CHECK(mf_session_save_memory(late_session, &bytes) == NULL);
  LATE_CHECK(mf_bytes_size(bytes) > 0 && mf_bytes_free(bytes) == MF_OK);
  LATE_CHECK(mf_session_save(late_session, "exit_host_checkpoint", 1) == NULL);
  LATE_CHECK(mf_session_close(late_session) == MF_OK);
}

static void train_late(void) {
  alarm(60);
  const mf_array in = mf_floats(late_x, 64 * 512);
  float loss;
  mf_array out = mf_floats(&loss, 1);
  mf_run run = 0;
  LATE_CHECK(is_too_late(mf_job_call(late_job, &in, 1, &out, 1)));
  LATE_CHECK(is_too_late(mf_job_call_for(late_job, &in, 1, &out, 1, -1)));
  LATE_CHECK(is_too_late(mf_job_launch(late_job, &in, 1, note, NULL, &run)));
  LATE_CHECK(is_too_late(mf_session_load_text(late_session, kTrain, strlen(kTrain), "train.lua")));
  mf_session* another = NULL;
  LATE_CHECK(is_too_late(mf_session_open(NULL, &another)));
}

static void exit_with_late(void (*late)(void)) {
  CHECK(atexit(late) == 0);
  open_training(&late_session, &late_job, late_x);
  const mf_array in = mf_floats(late_x, 64 * 512);
  float loss;
  mf_array out = mf_floats(&loss, 1);
  MUST(mf_job_call(late_job, &in, 1, &out, 1));
  while (late == wait_late) {
    mf_status* status = mf_job_call_async(late_job, &in, 1, note, NULL);
    if (mf_status_code(status) == MF_BUSY) {
      mf_status_free(status);
      break;
    }
    MUST(status);
    ++launched;
  }
  exit(0);
}

/* Exits so long after threads have begun to call. */
static void exit_beside(void* (*body)(void*), int count, useconds_t delay_us) {
  pthread_t thread;
  for (int i = 0; i < count; ++i) CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
  while (calls == 0) usleep(100);
  usleep(delay_us);
  exit(7);
}

int main(int argc, char** argv) {
  CHECK(argc >= 2);
  const int is_first = argc == 3 && strcmp(argv[2], "first") == 0, opens = argc == 3 && strcmp(argv[2], "opens") == 0;
  if (is_first || opens) {
    for (useconds_t delay_us = 0; delay_us <= 40000; delay_us += 2000) {
      const pid_t child = fork();
      if (child == 0) exit_beside(opens ? open_sessions : train, opens ? 4 : 1, delay_us);
      int status;
      CHECK(child > 0 && waitpid(child, &status, 0) == child);
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    return 0;
  }
  if (argc == 3 && strcmp(argv[2], "threads") == 0) {
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i) CHECK(pthread_create(&threads[i], NULL, train, NULL) == 0);
    while (steps < 200) usleep(1000);
    exit(0);
  }
  if (argc == 3 && strcmp(argv[2], "waits") == 0) exit_with_late(wait_late);
  if (argc == 3 && strcmp(argv[2], "trains") == 0) exit_with_late(train_late);
  mf_session* session = NULL;
  mf_job *job = NULL, *predict = NULL;
  mf_prepared* prepared = NULL;
  MUST(mf_session_open(NULL, &session));
  MUST(mf_session_load_file(session, argv[1]));
  MUST(mf_job_find(session, "learn", &job));
  MUST(mf_job_find(session, "predict", &predict));
  MUST(mf_job_prepare(predict, &prepared));
  const float x[32] = {0}, wanted[8] = {0};
  const mf_array in[2] = {mf_floats(x, 32), mf_floats(wanted, 8)};
  for (int i = 0; i < 3; ++i) mf_status_free(mf_job_call_async(job, in, 2, ignore, NULL));
  if (argc == 3) exit(0); /* from inside a function, as games do */
  return 0;
}
