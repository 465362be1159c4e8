/* A host that forgets to close, with runs in flight and a prepared call. It must end, and with its own code.
 * usage: exit_host jobs.lua [exit] */
#include <string.h>

#include "check.h"
#include "moonflow.h"

static void ignore(void* user, const mf_status* error, const mf_array* outputs, int32_t count) {
  (void)user, (void)error, (void)outputs, (void)count;
}

int main(int argc, char** argv) {
  CHECK(argc >= 2);
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
