/* A host that is linked with nothing: it opens LuaJIT and the library at run time and asks for the table of functions.
 * usage: dlopen_host libluajit libmoonflow jobs.lua */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "moonflow.h"

int main(int argc, char** argv) {
  CHECK(argc == 4);
  /* A VM that was opened for its opener alone is invisible to the library, which then cannot be opened: an error. */
  void* vm = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  CHECK(vm);
  CHECK(!dlopen(argv[2], RTLD_NOW | RTLD_LOCAL));
  CHECK(strstr(dlerror(), "lua"));
  /* The same VM for all: what docs/embedding.md advises. */
  CHECK(dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) == vm);
  /* By a path that begins where the process is, which then goes elsewhere, as a game does that starts in its folder. */
  char* const name = strrchr(argv[2], '/');
  CHECK(name);
  *name = 0;
  CHECK(chdir(argv[2]) == 0);
  char path[256] = "./";
  strncat(path, name + 1, sizeof path - 3);
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(chdir("/") == 0);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  CHECK(library);

  const mf_api* (*get_api)(uint32_t) = NULL;
  *(void**)&get_api = dlsym(library, "mf_get_api");
  CHECK(get_api);
  CHECK(!get_api(MF_API_VERSION + 1000));
  const mf_api* api = get_api(MF_API_VERSION);
  CHECK(api && api->struct_size >= sizeof *api && api->version == MF_API_VERSION);

  mf_session* session = NULL;
  mf_status* status = api->session_open(NULL, &session);
  if (!status) status = api->session_load_file(session, argv[3]);
  mf_job* job = NULL;
  if (!status) status = api->job_find(session, "scale", &job);
  const float x[3] = {1, 2, 3};
  float y[3] = {0};
  const mf_array in = mf_floats(x, 3);
  mf_array out = mf_floats(y, 3);
  if (!status) status = api->job_call(job, &in, 1, &out, 1);
  if (status) fprintf(stderr, "%s\n", api->status_message(status));
  CHECK(!status);
  CHECK(y[0] == 2 && y[1] == 4 && y[2] == 6);
  CHECK(api->session_close(session) == MF_OK);
  CHECK(dlclose(library) == 0); /* the library stays mapped: a thread of it might still be on its way out */
  return 0;
}
