/* For test hosts in C: a check that says where it failed and ends the program with code 1. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);       \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

/* For a call that gives a status, which must be none. */
#define MUST(call)                                                                                  \
  do {                                                                                              \
    mf_status* must_status = (call);                                                                \
    if (must_status) {                                                                              \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, mf_status_message(must_status)); \
      exit(1);                                                                                      \
    }                                                                                               \
  } while (0)

#endif
