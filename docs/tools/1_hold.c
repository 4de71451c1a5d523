// SPDX-License-Identifier: MIT
/* 1_hold LAUNCHER ARGS...: starts a job with its ranks held, prints where they are, releases them.
 */
#include <heddle_launch.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(void) {
  fprintf(stderr, "1_hold: %s\n", heddle_error());
  return 1;
}

int main(int argc, char** argv) {
  heddle_job* job;
  heddle_session* session;
  struct heddle_rank* ranks;
  size_t count, i;
  int status;
  if (argc < 2) return 2;
  if (heddle_job_launch((const char* const*)argv + 1, "exec", NULL, &job)) return failed();
  if (heddle_job_wait_held(job, 60)) return failed();
  /* The ranks are stopped: nothing of their programs has run. */
  if (heddle_job_session(job, NULL, &session)) return failed();
  if (heddle_session_ranks(session, &ranks, &count)) return failed();
  for (i = 0; i < count; ++i) printf("rank %ld is on %s\n", ranks[i].rank, ranks[i].node);
  fflush(stdout);
  heddle_ranks_free(ranks);
  if (heddle_session_destroy(session)) return failed();
  if (heddle_job_release(job)) return failed();
  if (heddle_job_wait(job, &status)) return failed();
  heddle_job_free(job);
  return status;
}
