// SPDX-License-Identifier: MIT
/* 2_stage PROGRAM ARGS...: copies a program and its libraries to each node of this job, and runs it
 * there from the node's own disk. */
#include <heddle_launch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(void) {
  fprintf(stderr, "2_stage: %s\n", heddle_error());
  return 1;
}

int main(int argc, char** argv) {
  heddle_session* session;
  unsigned long long bytes;
  const char* slash;
  char* output;
  int status;
  if (argc < 2) return 2;
  if (heddle_session_create(NULL, NULL, &session)) return failed();
  if (heddle_session_add_binary(session, argv[1]) || heddle_session_ship(session, &bytes)) {
    failed();
    heddle_session_destroy(session);
    return 1;
  }
  printf("%s bytes sent\n", bytes > 0 ? "some" : "no");
  slash = strrchr(argv[1], '/'); /* by its name alone it is the staged one */
  if (slash) argv[1] = (char*)slash + 1;
  if (heddle_session_run(session, (const char* const*)argv + 1, NULL, &output, &status))
    return failed();
  printf("%s", output);
  free(output);
  return heddle_session_destroy(session) ? failed() : status;
}
