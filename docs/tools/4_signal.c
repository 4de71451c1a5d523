// SPDX-License-Identifier: MIT
/* 4_signal STEP NUMBER: sends a signal to each rank of a running step, once. */
#include <heddle_launch.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  heddle_session* session;
  size_t alive, count;
  if (argc != 3) return 2;
  if (heddle_session_attach(argv[1], NULL, &session)) {
    fprintf(stderr, "4_signal: %s\n", heddle_error());
    return 1;
  }
  if (heddle_session_signal(session, 0, &alive) ||
      heddle_session_signal(session, atoi(argv[2]), &count)) {
    fprintf(stderr, "4_signal: %s\n", heddle_error());
    heddle_session_destroy(session);
    return 1;
  }
  printf("%zu ranks were alive, %zu got signal %s\n", alive, count, argv[2]);
  return heddle_session_destroy(session);
}
