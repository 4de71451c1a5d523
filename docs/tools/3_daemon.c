// SPDX-License-Identifier: MIT
/* 3_daemon STEP: one program as tool and as daemon. The daemon on each node of the running step
 * prints what it knows of its ranks. */
#include <heddle_launch.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(void) {
  fprintf(stderr, "3_daemon: %s\n", heddle_error());
  return 1;
}

static int run_daemon(void) {
  struct heddle_rank* ranks;
  size_t count, i;
  if (heddle_daemon_ranks(&ranks, &count)) return failed();
  printf("%s: %zu ranks:", heddle_daemon_node(), count);
  for (i = 0; i < count; ++i) printf(" %ld", ranks[i].rank);
  printf("\n");
  heddle_ranks_free(ranks);
  return 0;
}

int main(int argc, char** argv) {
  heddle_session* session;
  const char* daemon[] = {"3_daemon", NULL};
  char* output;
  int status;
  if (heddle_daemon_session()) return run_daemon();
  if (argc != 2) return 2;
  if (heddle_session_attach(argv[1], NULL, &session)) return failed();
  if (heddle_session_add_binary(session, argv[0]) || heddle_session_ship(session, NULL) ||
      heddle_session_run(session, daemon, NULL, &output, &status)) {
    failed();
    heddle_session_destroy(session);
    return 1;
  }
  printf("%s", output);
  free(output);
  return heddle_session_destroy(session) ? failed() : status;
}
