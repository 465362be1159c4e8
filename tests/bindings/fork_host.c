/* A host that forks, as servers do that have one process per client. A child has the memory of its parent and none of
 * its threads: the parent's session is refused there and harms nobody, and one of its own works.
 * usage: fork_host jobs.lua */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "moonflow.h"

enum { kPatienceSeconds = 120 }; /* a child that hangs is ended by its alarm */

static const char kWide[] =
    "local flow = require 'moonflow'\n"
    "flow.global_function { name = 'wide', inputs = { x = flow.typing.Numpy.Placeholder({ 256, 256 }) },\n"
    "                       returns = flow.typing.Numpy } (function(x) return flow.matmul(x, x) end)\n";
static float wide[256 * 256], squared[256 * 256];

static mf_session* session;
static mf_job *learn, *predict;
static mf_prepared* prepared;

static void ignore(void* user, const mf_status* error, const mf_array* outputs, int32_t count) {
  (void)user, (void)error, (void)outputs, (void)count;
}

static void launch(void) {
  static const float x[32], wanted[8];
  const mf_array in[2] = {mf_floats(x, 32), mf_floats(wanted, 8)};
  mf_status_free(mf_job_call_async(learn, in, 2, ignore, NULL)); /* or there are enough in flight */
}

/* More than one thread's work, so that the threads of a kernel are waited for. */
static void call_wide(mf_session* of) {
  mf_job* job = NULL;
  MUST(mf_session_load_text(of, kWide, strlen(kWide), "wide.lua"));
  MUST(mf_job_find(of, "wide", &job));
  const mf_array in = mf_floats(wide, 256 * 256);
  mf_array out = mf_floats(squared, 256 * 256);
  MUST(mf_job_call(job, &in, 1, &out, 1));
  CHECK(squared[0] == 256);
  MUST(mf_job_call_async(job, &in, 1, ignore, NULL));
  MUST(mf_session_sync(of));
}

static void refused(mf_status* status) {
  CHECK(mf_status_code(status) == MF_WRONG_THREAD);
  CHECK(strstr(mf_status_message(status), "fork") != NULL);
  mf_status_free(status);
}

static void the_session_is_refused(void) {
  static const float x[32], wanted[8];
  const mf_array in[2] = {mf_floats(x, 32), mf_floats(wanted, 8)};
  float loss;
  mf_array out = mf_floats(&loss, 1);
  mf_job* found = NULL;
  refused(mf_job_find(session, "learn", &found));
  refused(mf_job_call(learn, in, 2, &out, 1));
  refused(mf_job_call_async(learn, in, 2, ignore, NULL));
  refused(mf_session_poll(session, -1, NULL));
  refused(mf_session_sync(session));
  refused(mf_session_hand_over(session));
  refused(mf_session_take_over(session));
  refused(mf_prepared_publish(prepared));
  CHECK(mf_session_close(session) == MF_WRONG_THREAD);
}

static void a_prepared_call_goes_on(void) { CHECK(mf_prepared_run(prepared) == MF_OK); }

static void handles_are_closed(void) {
  CHECK(mf_job_close(learn) == MF_OK);
  CHECK(mf_prepared_close(prepared) == MF_OK);
}

static void a_session_of_its_own_works(void) {
  mf_session* own = NULL;
  MUST(mf_session_open(NULL, &own));
  call_wide(own);
  CHECK(mf_session_close(own) == MF_OK);
}

static void in_a_child(void (*work)(void)) {
#ifdef __SANITIZE_ADDRESS__
  usleep(300 * 1000); /* its allocator's locks, which our threads may hold, go to a child and are never opened there */
#endif
  fflush(NULL);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(kPatienceSeconds);
    work();
    exit(0); /* with all that is to happen then */
  }
  int how = 0;
  CHECK(waitpid(child, &how, 0) == child);
  CHECK(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  for (int i = 0; i < 256 * 256; ++i) wide[i] = 1;
  mf_session_options options = {0};
  options.struct_size = sizeof options;
  options.threads = 2;
  MUST(mf_session_open(&options, &session));
  MUST(mf_session_load_file(session, argv[1]));
  MUST(mf_job_find(session, "learn", &learn));
  MUST(mf_job_find(session, "predict", &predict));
  MUST(mf_job_prepare(predict, &prepared));
  call_wide(session); /* from here on there are threads to be missed */
  for (int busy = 0; busy < 2; ++busy) {
    void (*const all[])(void) = {the_session_is_refused, a_prepared_call_goes_on, handles_are_closed,
                                 a_session_of_its_own_works};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
      for (int run = 0; busy && run < 3; ++run) launch();
      in_a_child(all[i]);
    }
  }
  MUST(mf_session_sync(session));
  call_wide(session);
  CHECK(mf_session_close(session) == MF_OK);
  return 0;
}
