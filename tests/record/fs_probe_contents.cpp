// SPDX-License-Identifier: MIT
// Contents, sizes, mappings and locks.
#include "tests/record/fs_probe.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace probe {

void open_files() {
  int fd = ::open("u", O_RDWR | O_CREAT, 0600);
  say("write", ::write(fd, "hello", 5));
  say("unlink open", ::unlink("u"));
  struct stat st {};
  say("fstat", ::fstat(fd, &st));
  std::printf("nlink %lu size %ld\n", st.st_nlink, st.st_size);
  say("write on", ::write(fd, " more", 5));
  char text[32] = {};
  say("pread", ::pread(fd, text, sizeof(text), 0));
  show("unlinked", text);
  say("fchmod", ::fchmod(fd, 0640));
  say("ftruncate", ::ftruncate(fd, 3));
  say("fstat", ::fstat(fd, &st));
  std::printf("mode %o size %ld\n", st.st_mode, st.st_size);
  timespec times[2] = {{1, 2}, {3, 4}};
  say("futimens", ::futimens(fd, times));
  say("fchown", ::fchown(fd, ::geteuid(), ::getegid()));
  ::close(fd);

  put("r1", "first");
  put("r2", "second");
  fd = ::open("r1", O_RDONLY);
  say("rename over open", ::rename("r2", "r1"));
  ::memset(text, 0, sizeof(text));
  say("read old", ::read(fd, text, sizeof(text)));
  show("old", text);
  say("fstat old", ::fstat(fd, &st));
  std::printf("nlink %lu\n", st.st_nlink);
  ::close(fd);
  show("new", content("r1"));

  fd = ::open("r1", O_PATH);
  say("unlink", ::unlink("r1"));
  say("fstat O_PATH", ::fstat(fd, &st));
  std::printf("nlink %lu size %ld\n", st.st_nlink, st.st_size);
  ::close(fd);
  ::mkdir("gone", 0755);
  fd = ::open("gone", O_RDONLY | O_DIRECTORY);
  say("rmdir open", ::rmdir("gone"));
  say("fstat folder", ::fstat(fd, &st));
  say("openat gone", ::openat(fd, "x", O_RDONLY));
  say("create in gone", ::openat(fd, "x", O_WRONLY | O_CREAT, 0600));
  ::close(fd);
}

void appending() {
  ::unlink("app");
  for (int i = 0; i < 4; ++i)
    if (::fork() == 0) {
      const int fd = ::open("app", O_WRONLY | O_CREAT | O_APPEND, 0644);
      for (int k = 0; k < 100; ++k)
        if (::write(fd, "0123456789abcdef", 16) != 16) ::_exit(1);
      ::_exit(0);
    }
  int status = 0;
  while (::wait(&status) > 0) std::printf("appender %d\n", status);
  std::printf("appended %zu\n", content("app").size());
  const int fd = ::open("app", O_RDWR);
  say("setfl", ::fcntl(fd, F_SETFL, O_APPEND));
  say("write", ::write(fd, "tail", 4));
  show("end", content("app").substr(1600 - 4));
  say("unset", ::fcntl(fd, F_SETFL, 0));
  say("pwrite", ::pwrite(fd, "HEAD", 4, 0));
  show("head", content("app").substr(0, 8));
  ::close(fd);
}

void nameless() {
  const int fd = ::open(".", O_TMPFILE | O_RDWR, 0600);
  say("tmpfile", fd < 0 ? -1 : 0);
  if (fd < 0) return;
  say("write", ::write(fd, "nameless", 8));
  struct stat st {};
  ::fstat(fd, &st);
  show_stat("tmpfile", st);
  const std::string name = "/proc/self/fd/" + std::to_string(fd);
  say("linkat", ::linkat(AT_FDCWD, name.c_str(), AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
  show("named", content("named"));
  ::fstat(fd, &st);
  std::printf("nlink %lu\n", st.st_nlink);
  ::close(fd);
}

void sizes() {
  int fd = ::open("big", O_RDWR | O_CREAT, 0644);
  const off_t far = (5LL << 30) + 7;
  say("pwrite far", ::pwrite(fd, "end", 3, far));
  say("hole", ::lseek(fd, 0, SEEK_HOLE));
  say("data", ::lseek(fd, 0, SEEK_DATA) > (4LL << 30));
  say("past", ::lseek(fd, far + 100, SEEK_DATA));
  struct stat st {};
  ::fstat(fd, &st);
  std::printf("size %ld sparse %d\n", st.st_size, st.st_blocks < 1000);
  char text[4] = {};
  say("pread far", ::pread(fd, text, 3, far));
  show("far", text);
  say("fallocate", ::fallocate(fd, 0, 0, 1 << 20));
  say("punch", ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 19));
  say("truncate", ::truncate("big", 10));
  ::fstat(fd, &st);
  std::printf("size %ld\n", st.st_size);
  say("fsync", ::fsync(fd));
  say("fdatasync", ::fdatasync(fd));
  const int to = ::open("copy", O_RDWR | O_CREAT, 0644);
  put("src", "copy this text");
  const int from = ::open("src", O_RDONLY);
  say("copy_file_range", ::copy_file_range(from, nullptr, to, nullptr, 100, 0));
  show("copied", content("copy"));
  void* memory = nullptr;
  if (::posix_memalign(&memory, 4096, 8192) == 0) {
    const int direct = ::open("direct", O_RDWR | O_CREAT | O_DIRECT, 0644);
    std::memset(memory, 'd', 8192);
    say("direct write", ::pwrite(direct, memory, 8192, 0));
    std::memset(memory, 0, 8192);
    say("direct read", ::pread(direct, memory, 4096, 4096));
    std::printf("direct %c\n", *static_cast<char*>(memory));
    ::close(direct);
    std::free(memory);
  }
  say("readonly write", ::write(from, "x", 1));
  ::close(fd);
  ::close(to);
  ::close(from);
  std::string large(3 << 20, 'q');
  fd = ::open("large", O_RDWR | O_CREAT, 0644);
  say("write 3 MiB", ::write(fd, large.data(), large.size()));
  ::close(fd);
  std::printf("same %d\n", content("large") == large);
  say("O_TRUNC", ::close(::open("large", O_WRONLY | O_TRUNC)));
  std::printf("size %zu\n", content("large").size());
}

void mapping() {
  const int fd = ::open("map", O_RDWR | O_CREAT, 0644);
  say("ftruncate", ::ftruncate(fd, 8192));
  auto* shared =
      static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  auto* priv =
      static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
  if (shared == MAP_FAILED || priv == MAP_FAILED) return say("mmap", -1);
  if (::fork() == 0) {
    std::memcpy(shared + 4000, "from the child", 15);
    ::_exit(0);
  }
  ::wait(nullptr);
  show("shared", shared + 4000);
  std::memcpy(shared, "mapped", 7);
  std::memcpy(priv + 100, "private", 8);
  char text[16] = {};
  say("pread", ::pread(fd, text, 7, 0));
  show("read", text);
  say("pwrite", ::pwrite(fd, "WRITTEN", 8, 200));
  show("seen", shared + 200);
  say("msync", ::msync(shared, 8192, MS_SYNC));
  ::munmap(shared, 8192);
  ::munmap(priv, 8192);
  ::close(fd);
  show("file", content("map").substr(0, 6));
  std::printf("private kept out %d\n", content("map")[100] == 0);
}

void locking() {
  const int fd = ::open("lock", O_RDWR | O_CREAT, 0644);
  say("flock", ::flock(fd, LOCK_EX));
  std::fflush(stdout);
  if (::fork() == 0) {
    const int other = ::open("lock", O_RDWR);
    say("flock taken", ::flock(other, LOCK_EX | LOCK_NB));
    std::fflush(stdout);
    ::_exit(0);
  }
  ::wait(nullptr);
  say("unlock", ::flock(fd, LOCK_UN));
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_start = 10;
  range.l_len = 10;
  say("fcntl lock", ::fcntl(fd, F_SETLK, &range));
  std::fflush(stdout);
  if (::fork() == 0) {
    struct flock mine = range;
    say("fcntl taken", ::fcntl(fd, F_SETLK, &mine));
    mine.l_start = 20;
    say("beside", ::fcntl(fd, F_SETLK, &mine));
    mine.l_start = 15;
    mine.l_type = F_WRLCK;
    say("getlk", ::fcntl(fd, F_GETLK, &mine));
    std::printf("held by the parent %d\n", mine.l_pid == ::getppid());
    std::fflush(stdout);
    ::_exit(0);
  }
  ::wait(nullptr);
  ::close(fd);
}

}  // namespace probe
