// SPDX-License-Identifier: MIT
//
// The program that recorder_fault_test.cpp records. Prints the result of each step as
// `app: STEP ERRNO PATH`. Exits with 7 if all steps succeeded, else with 8. Usage: app DIRECTORY
// MARK
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int odd;

// `error` 0: success; -1: wrong bytes.
static void tell(const char* step, int error, const char* path) {
  char line[4400];
  const int size = snprintf(line, sizeof(line), "app: %s %d %s\n", step, error, path);
  if (write(1, line, size) != size) _exit(9);
  odd |= error != 0;
}
static int check(const char* step, int failed, const char* path) {
  if (failed) tell(step, errno, path);
  return failed;
}

static int read_back(const char* step, const char* path, const char* content) {
  char text[64] = "";
  const int fd = open(path, O_RDONLY);
  if (check(step, fd < 0, path)) return -1;
  const ssize_t n = read(fd, text, sizeof(text) - 1);
  const int failed = check(step, n < 0, path);
  close(fd);
  if (failed) return -1;
  if (strcmp(text, content) != 0) return tell(step, -1, path), -1;
  return 0;
}

static void read_a_file(void) {
  if (read_back("read", "in", "what stands in it") == 0) tell("read", 0, "in");
}

static void miss_a_file(void) {
  struct stat st;
  const int rc = stat("missing", &st);
  tell("miss", rc == 0 ? -1 : errno == ENOENT ? 0 : errno, "missing");
}

static void make_and_move(void) {
  const int fd = open("new", O_CREAT | O_EXCL | O_WRONLY, 0640);
  if (check("create", fd < 0, "new")) return;
  const int failed = check("write", write(fd, "fresh", 5) != 5, "new");
  close(fd);
  if (failed) return;
  if (check("mkdir", mkdir("sub", 0700) != 0, "sub")) return;
  if (check("rename", rename("new", "sub/moved") != 0, "new")) return;
  if (read_back("move", "sub/moved", "fresh") != 0) return;
  DIR* dir = opendir("sub");
  if (check("opendir", !dir, "sub")) return;
  int entries = 0;
  errno = 0;
  while (readdir(dir)) ++entries;
  const int error = errno;
  closedir(dir);
  if (error != 0) return tell("readdir", error, "sub");
  if (entries != 3) return tell("readdir", -1, "sub");
  if (check("chmod", chmod("sub/moved", 0600) != 0, "sub/moved")) return;
  if (check("truncate", truncate("sub/moved", 2) != 0, "sub/moved")) return;
  if (check("link", link("sub/moved", "sub/linked") != 0, "sub/moved")) return;
  if (check("unlink", unlink("sub/moved") != 0, "sub/moved")) return;
  if (check("unlink", unlink("sub/linked") != 0, "sub/linked")) return;
  if (check("rmdir", rmdir("sub") != 0, "sub")) return;
  tell("make", 0, "sub");
}

static void append(void) {
  const int fd = open("log", O_CREAT | O_WRONLY | O_APPEND, 0600);
  if (check("append", fd < 0, "log")) return;
  int failed = check("append", write(fd, "one ", 4) != 4, "log");
  failed = failed || check("append", write(fd, "two", 3) != 3, "log");
  close(fd);
  if (!failed && read_back("append", "log", "one two") == 0) tell("append", 0, "log");
}

static void use_a_link(void) {
  char text[64] = "";
  if (check("symlink", symlink("in", "link") != 0, "link")) return;
  if (check("readlink", readlink("link", text, sizeof(text) - 1) < 0, "link")) return;
  if (strcmp(text, "in") != 0) return tell("readlink", -1, "link");
  if (read_back("follow", "link", "what stands in it") == 0) tell("follow", 0, "link");
}

static void use_a_nameless_file(void) {
  char text[8] = "";
  const int fd = open(".", O_TMPFILE | O_RDWR, 0600);
  if (check("tmpfile", fd < 0, ".")) return;
  if (!check("tmpfile", write(fd, "tmp", 3) != 3 || pread(fd, text, 7, 0) < 0, "."))
    tell("tmpfile", strcmp(text, "tmp") == 0 ? 0 : -1, ".");
  close(fd);
}

// Another user may read the file through a supplementary group.
static void be_another(void) {
  const gid_t groups[] = {12345, 12346};
  const pid_t pid = fork();
  if (pid == 0) {
    if (setgroups(2, groups) != 0 || setgid(65534) != 0 || setuid(65534) != 0) _exit(250);
    const int fd = open("shared", O_RDONLY);
    _exit(fd < 0 ? errno : 0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  tell("another", WIFEXITED(status) ? WEXITSTATUS(status) : -1, "shared");
}

int main(int argc, char** argv) {
  if (argc != 3 || check("enter", chdir(argv[1]) != 0, argv[1])) return 9;
  read_a_file();
  miss_a_file();
  make_and_move();
  append();
  use_a_link();
  use_a_nameless_file();
  if (geteuid() == 0) be_another();
  return odd ? 8 : 7;
}
