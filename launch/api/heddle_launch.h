// SPDX-License-Identifier: MIT
#pragma once

/* libheddle-launch: tools on the nodes of an MPI job. `pkg-config heddle-launch`; docs/tools.md.
 *
 * Every function that returns int returns 0, or 1 on failure; then heddle_error() says why, for the
 * calling thread. Strings are bytes that end with NUL; lists of strings end with NULL. What a
 * function gives the caller is freed as its comment says. Functions may be called from any thread,
 * but not two at once with one handle. All of them block: those of a session for as long as the
 * slowest node takes, at most as many seconds as stated. They run the program fs-launch: that of
 * this library's installation, or $HEDDLE_FS_LAUNCH.
 */

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library: "0.1.0". Static. */
const char* heddle_version(void);
/* Why this thread's last failed call failed, on one line; "" if none has. Valid until its next. */
const char* heddle_error(void);

/* ---- Launching: a job under its own launcher, with the ranks held if asked for ---- */

typedef struct heddle_job heddle_job;

/* Starts `argv`, a launcher's command line ("srun", "-n", "8", "./app"), which is not changed.
 * `hold`: NULL; "agent": each rank waits before its program; "exec": each rank is stopped after the
 * exec of its program, with only that and ld.so mapped and no tracer. Held ranks go on when this
 * process ends. `fds`: standard input, output and error of the launcher, or NULL: this process's.
 * The handle: heddle_job_free(). Errors: fs-launch cannot be started. */
int heddle_job_launch(const char* const* argv, const char* hold, const int* fds, heddle_job** job);
/* The same in the working directory `directory` (NULL: this process's), with the NAME=VALUE strings
 * of `environment` (NULL: none) added to this process's variables. */
int heddle_job_launch_in(const char* directory, const char* const* environment,
                         const char* const* argv, const char* hold, const int* fds,
                         heddle_job** job);
/* Waits until all ranks are held, at most `seconds`. Error: not all are, or the launcher ended. */
int heddle_job_wait_held(heddle_job* job, unsigned seconds);
/* The Slurm step "JOB.STEP" of held ranks, for heddle_session_attach(). free() it. Error: Slurm has
 * not started them, or none is held. */
int heddle_job_step(heddle_job* job, char** step);
/* Lets the held ranks go on. Error: they were released already, or nothing is held. */
int heddle_job_release(heddle_job* job);
/* Sends a signal to the launcher, which forwards it to its ranks as it always does. Of a job with
 * `hold` SIGKILL ends fs-launch alone, before the launcher: then the ranks go on. */
int heddle_job_signal(heddle_job* job, int signal);
/* Waits for the launcher's end, without a limit. `status`: its exit status, 128+n for signal n. */
int heddle_job_wait(heddle_job* job, int* status);
/* Forgets the job, which runs on. NULL is allowed. */
void heddle_job_free(heddle_job* job);

/* ---- Sessions: files, daemons and signals on the nodes ---- */

typedef struct heddle_session heddle_session;

/* Starts an agent on each node of the Slurm job `job`; NULL: of $SLURM_JOB_ID. `options`: NULL, or
 * options of `fs-launch session create`, such as {"--rsh", "ssh", "--nodes", "n1,n2", NULL}. The
 * session ends with this process. Within 30 s. The handle: heddle_session_destroy(). Error: names
 * the nodes that do not answer. */
int heddle_session_create(const char* job, const char* const* options, heddle_session** session);
/* The same on the nodes of the running step "JOB.STEP", for its ranks alone. */
int heddle_session_attach(const char* step, const char* const* options, heddle_session** session);
/* The same for the held ranks of `job`, whichever launcher started them; without Slurm `options`
 * says how their nodes are reached, as for heddle_session_create(). Error: no rank is held. */
int heddle_job_session(heddle_job* job, const char* const* options, heddle_session** session);
/* One more handle of a session of this user, made on this node. Within 20 s. Error: there is none
 * with this ID, or a node does not answer. */
int heddle_session_open(const char* id, heddle_session** session);
/* Frees the handle alone; the session goes on until the process that made it ends. NULL is allowed.
 */
void heddle_session_close(heddle_session* session);
/* Its ID, for `fs-launch session`. Valid as long as the handle. */
const char* heddle_session_id(const heddle_session* session);

/* Name what is to be staged; nothing is sent yet. A program comes with the libraries that it needs,
 * but glibc's. Errors: a needed library is missing; a name is taken by other content. Then nothing
 * of this call is added. */
int heddle_session_add_binary(heddle_session* session, const char* path);
int heddle_session_add_library(heddle_session* session, const char* path);
int heddle_session_add_directory(heddle_session* session, const char* path);
int heddle_session_add_file(heddle_session* session, const char* path);
/* Sends what the nodes do not have, within 12 minutes and a second for each 10 MB. `bytes` (may be
 * NULL): sent to each node. Error: names node and file; no node keeps any of it. */
int heddle_session_ship(heddle_session* session, unsigned long long* bytes);

/* The working directory on the nodes of what is started from now on by this handle. NULL, and the
 * default: this process's. */
int heddle_session_set_directory(heddle_session* session, const char* directory);
/* Starts `argv` once on each node: argv[0] is a staged program's name, a path, or found in PATH.
 * `environment`: NAME=VALUE strings to add, or NULL. `log`: its output is appended to LOG.NODE on
 * each node, or NULL. Error: a node where it cannot be started. */
int heddle_session_daemon(heddle_session* session, const char* const* argv,
                          const char* const* environment, const char* log);
/* The same, and waits for their end without a limit. `output`: what they wrote, node by node;
 * free() it. `status`: the largest exit status. */
int heddle_session_run(heddle_session* session, const char* const* argv,
                       const char* const* environment, char** output, int* status);

struct heddle_rank {
  long rank;
  long pid; /* on its node */
  const char* node;
  const char* job; /* "JOB.STEP", or the launcher's own name, or "-" */
  const char* program;
};
/* The ranks, by job and rank. heddle_ranks_free() them. */
int heddle_session_ranks(heddle_session* session, struct heddle_rank** ranks, size_t* count);
void heddle_ranks_free(struct heddle_rank* ranks);
/* Sends a signal to each rank once; 0 only asks. `count` (may be NULL): ranks that were alive. */
int heddle_session_signal(heddle_session* session, int signal, size_t* count);
/* Ends the daemons (SIGTERM, after ten seconds SIGKILL, their children too), removes all that was
 * staged, and frees the handle, whether it fails or not. NULL is allowed. */
int heddle_session_destroy(heddle_session* session);

/* ---- In a daemon ---- */

/* The session's ID, its directory on this node (bin, lib, libs, files, tmp), the job or step
 * whose ranks are its, as heddle_session_ranks() names it ("": of any), and this node's name; NULL
 * outside of a daemon. Static. */
const char* heddle_daemon_session(void);
const char* heddle_daemon_directory(void);
const char* heddle_daemon_step(void);
const char* heddle_daemon_node(void);
/* The ranks of the session's step or job on this node. heddle_ranks_free() them. */
int heddle_daemon_ranks(struct heddle_rank** ranks, size_t* count);

#ifdef __cplusplus
}
#endif
