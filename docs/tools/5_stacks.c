// SPDX-License-Identifier: MIT
/* 5_stacks STEP: where do the ranks of a running step wait? In the manner of STAT: a daemon on each
 * node has gdb print the stacks of its ranks, and the tool merges them into one tree:
 *
 *     8 ranks: main
 *       7 ranks: main > wait_for_others   0-2,4-7
 *       1 ranks: main > compute           3
 */
#include <heddle_launch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 65536, LONGEST = 4096 };

static int failed(void) {
  fprintf(stderr, "5_stacks: %s\n", heddle_error());
  return 1;
}

/* Of a line of gdb's backtrace: "#1  0x... in main () at x.c:1", or "#0  main () ...". */
static int function_of(const char* line, char* name) {
  const char* at;
  size_t size;
  if (line[0] != '#') return 0;
  at = strstr(line, " in ");
  at = at ? at + 4 : line + strcspn(line, " ");
  at += strspn(at, " ");
  size = strcspn(at, " (\n");
  if (size == 0 || size >= 256) return 0;
  memcpy(name, at, size);
  name[size] = 0;
  return 1;
}

/* Prints "RANK main > inner > innermost". */
static void print_stack(const struct heddle_rank* rank) {
  char command[128], line[LONGEST], name[256], path[LONGEST] = "", longer[LONGEST + 300];
  FILE* gdb;
  int in_main = 0;
  snprintf(command, sizeof command, "gdb -nx -batch -p %ld -ex bt 2>/dev/null </dev/null",
           rank->pid);
  gdb = popen(command, "r");
  while (gdb && fgets(line, sizeof line, gdb)) {
    if (in_main || !function_of(line, name)) continue;
    snprintf(longer, sizeof longer, "%s%s%s", name, *path ? " > " : "", path);
    snprintf(path, sizeof path, "%.*s", LONGEST - 1, longer);
    in_main = strcmp(name, "main") == 0;
  }
  if (gdb) pclose(gdb);
  printf("%ld %s\n", rank->rank, *path ? path : "?");
}

static int run_daemon(void) {
  struct heddle_rank* ranks;
  size_t count, i;
  if (heddle_daemon_ranks(&ranks, &count)) return failed();
  for (i = 0; i < count; ++i) print_stack(&ranks[i]);
  heddle_ranks_free(ranks);
  return 0;
}

struct stack {
  long rank;
  const char* path;
};

static int by_path(const void* a, const void* b) {
  const struct stack *x = a, *y = b;
  const int order = strcmp(x->path, y->path);
  return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

/* The ranks of [from, to), whose paths all begin with the first `size` bytes of the first one. */
static void print_tree(const struct stack* stacks, size_t from, size_t to, size_t size, int depth) {
  const char* path = stacks[from].path;
  size_t i, end, next;
  printf("%*s%zu ranks: %.*s", 2 * depth, "", to - from, (int)size, path);
  if (strlen(path) == size)
    for (i = from; i < to && strlen(stacks[i].path) == size; ++i)
      printf("%s%ld", i == from ? "  " : ",", stacks[i].rank);
  printf("\n");
  for (i = from; i < to; i = end) {
    const char* rest = stacks[i].path + size;
    const char* more = *rest ? strstr(rest + 1, " > ") : NULL;
    end = i + 1;
    if (!*rest) continue;
    next = more ? (size_t)(more - stacks[i].path) : strlen(stacks[i].path);
    while (end < to && strncmp(stacks[end].path, stacks[i].path, next) == 0 &&
           (stacks[end].path[next] == 0 || stacks[end].path[next] == ' '))
      ++end;
    print_tree(stacks, i, end, next, depth + 1);
  }
}

static void print_merged(char* output) {
  static struct stack stacks[MOST];
  size_t count = 0, i, end;
  char *line, *rest = NULL, *path;
  for (line = strtok_r(output, "\n", &rest); line && count < MOST;
       line = strtok_r(NULL, "\n", &rest)) {
    stacks[count].rank = strtol(line, &path, 10);
    if (*path == ' ') stacks[count++].path = path + 1;
  }
  qsort(stacks, count, sizeof *stacks, by_path);
  for (i = 0; i < count; i = end) {
    const size_t size = strcspn(stacks[i].path, " ");
    for (end = i + 1; end < count && strcspn(stacks[end].path, " ") == size &&
                      strncmp(stacks[end].path, stacks[i].path, size) == 0;)
      ++end;
    print_tree(stacks, i, end, size, 0);
  }
}

int main(int argc, char** argv) {
  heddle_session* session;
  const char* daemon[] = {"5_stacks", NULL};
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
  print_merged(output);
  free(output);
  return heddle_session_destroy(session) ? failed() : status;
}
