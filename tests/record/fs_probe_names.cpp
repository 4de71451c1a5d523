// SPDX-License-Identifier: MIT
// Names, folders, attributes and files that are none.
#include "tests/record/fs_probe.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace probe {

void names() {
  put("a", "one");
  put("b", "two");
  say("rename", ::rename("a", "c"));
  say("rename over", ::rename("c", "b"));
  show("content", content("b"));
  put("n", "new");
  say("noreplace", ::syscall(SYS_renameat2, AT_FDCWD, "n", AT_FDCWD, "b", RENAME_NOREPLACE));
  say("exchange", ::syscall(SYS_renameat2, AT_FDCWD, "n", AT_FDCWD, "b", RENAME_EXCHANGE));
  show("n", content("n"));
  show("b", content("b"));
  say("link", ::link("b", "hard"));
  struct stat one {
  }, two{};
  ::stat("b", &one);
  ::stat("hard", &two);
  std::printf("hard link: same inode %d nlink %lu\n", one.st_ino == two.st_ino, two.st_nlink);
  say("link over", ::link("b", "hard"));
  say("unlink", ::unlink("b"));
  show("hard", content("hard"));
  say("unlink missing", ::unlink("b"));
  say("rmdir file", ::rmdir("hard"));
  say("mkdir", ::mkdir("dir", 0750));
  say("mkdir again", ::mkdir("dir", 0750));
  put("dir/in", "x");
  say("rmdir full", ::rmdir("dir"));
  say("rename folder", ::rename("dir", "moved"));
  show("inside", content("moved/in"));
  say("old name", ::access("dir/in", F_OK));
  say("rename into itself", ::rename("moved", "moved/sub"));
  say("symlink", ::symlink("moved", "l1"));
  say("symlink", ::symlink("l1", "l2"));
  show("through links", content("l2/in"));
  say("loop", ::symlink("loop", "loop"));
  say("open loop", ::open("loop", O_RDONLY));
  say("nofollow", ::open("l1", O_RDONLY | O_NOFOLLOW));
  say("dangling", ::symlink("/nowhere/at/all", "dang"));
  say("open dangling", ::open("dang", O_RDONLY));
  say("long name", ::open(std::string(300, 'x').c_str(), O_RDONLY));
  say("file as folder", ::open("hard/x", O_RDONLY));
  say("trailing slash", ::open("hard/", O_RDONLY));
  say("excl", ::open("hard", O_WRONLY | O_CREAT | O_EXCL, 0600));
  say("write a folder", ::open("moved", O_WRONLY));
  const std::string odd = "sp ace\ttab\nnl\\bs\xff\xfe";
  put(odd.c_str(), "odd");
  show("odd", content(odd.c_str()));
}

void attributes() {
  put("at", "x");
  char value[64] = {};
  say("setxattr", ::setxattr("at", "user.test", "value", 5, 0));
  say("size", ::getxattr("at", "user.test", nullptr, 0));
  say("getxattr", ::getxattr("at", "user.test", value, sizeof(value)));
  show("xattr", value);
  say("small", ::getxattr("at", "user.test", value, 2));
  say("create again", ::setxattr("at", "user.test", "v", 1, XATTR_CREATE));
  say("listxattr", ::listxattr("at", value, sizeof(value)));
  say("removexattr", ::removexattr("at", "user.test"));
  say("missing", ::getxattr("at", "user.test", value, sizeof(value)));
  say("chmod", ::chmod("at", 04711));
  const timespec times[2] = {{1000000001, 123456789}, {1000000002, 987654321}};
  say("utimensat", ::utimensat(AT_FDCWD, "at", times, 0));
  struct stat st {};
  ::stat("at", &st);
  std::printf("times %ld.%09ld %ld.%09ld\n", st.st_atim.tv_sec, st.st_atim.tv_nsec,
              st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
  show_stat("at", st);
  say("chown", ::chown("at", ::geteuid(), ::getegid()));
  ::stat("at", &st);
  show_stat("chowned", st);
  ::symlink("at", "link_at");
  say("lchown", ::lchown("link_at", ::geteuid(), ::getegid()));
  say("utimens link", ::utimensat(AT_FDCWD, "link_at", times, AT_SYMLINK_NOFOLLOW));
  ::lstat("link_at", &st);
  std::printf("link mtime %ld size %ld\n", st.st_mtim.tv_sec, st.st_size);
  ::umask(027);
  put("masked", "");
  ::mkdir("masked_dir", 0777);
  ::stat("masked", &st);
  std::printf("umask %o\n", st.st_mode);
  ::stat("masked_dir", &st);
  std::printf("umask %o\n", st.st_mode);
  ::umask(022);
  struct statx stx {};
  say("statx", ::statx(AT_FDCWD, "at", 0, STATX_BTIME, &stx));
  std::printf("born %d\n", stx.stx_btime.tv_sec > 1600000000);
  struct statvfs fs {};
  say("statvfs", ::statvfs(".", &fs));
  std::printf("namemax %lu\n", fs.f_namemax);
  say("access", ::access("at", R_OK | W_OK | X_OK));
  say("access x", ::access("masked", X_OK) == 0 || errno == EACCES);
  const int fd = ::open("at", O_RDONLY);
  int flags = 0;
  say("getflags", ::ioctl(fd, FS_IOC_GETFLAGS, &flags));
  say("isatty", ::isatty(fd) == 0 && errno == ENOTTY);
  ::close(fd);
}

void special() {
  say("mkfifo", ::mkfifo("fifo", 0600));
  if (::fork() == 0) {
    const int fd = ::open("fifo", O_WRONLY);
    ::_exit(::write(fd, "through", 7) == 7 ? 0 : 1);
  }
  show("fifo", content("fifo"));
  ::wait(nullptr);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, "sock");
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  say("bind", ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)));
  say("listen", ::listen(listener, 1));
  const int client = ::socket(AF_UNIX, SOCK_STREAM, 0);
  say("connect", ::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)));
  struct stat st {};
  ::stat("sock", &st);
  show_stat("sock", st);
  ::close(client);
  ::close(listener);
  say("connect closed", ::connect(::socket(AF_UNIX, SOCK_STREAM, 0),
                                  reinterpret_cast<sockaddr*>(&address), sizeof(address)));
  const int rc = ::mknod("node", S_IFCHR | 0600, makedev(1, 3));
  say("mknod", rc);
  if (rc == 0) {
    const int fd = ::open("node", O_RDWR);
    say("device write", ::write(fd, "x", 1));
    say("device read", ::read(fd, &st, 1));
    ::stat("node", &st);
    std::printf("rdev %lx\n", st.st_rdev);
    ::close(fd);
  }
}

void folders() {
  ::mkdir("many", 0755);
  const int count = 3000;
  for (int i = 0; i < count; ++i)
    ::close(::open(("many/a name of some length " + std::to_string(i)).c_str(), O_CREAT | O_WRONLY,
                   0644));
  DIR* dir = ::opendir("many");
  int seen = 0, bad = 0;
  long middle = 0;
  std::string at_middle;
  while (const dirent* entry = ::readdir(dir)) {
    ++seen;
    if (seen == 1500) middle = ::telldir(dir);
    if (seen == 1501) at_middle = entry->d_name;
    struct stat st {};
    if (entry->d_name[0] != '.' && ::fstatat(::dirfd(dir), entry->d_name, &st, 0) == 0)
      bad += st.st_ino != entry->d_ino || entry->d_type != DT_REG;
  }
  std::printf("entries %d, bad %d\n", seen, bad);
  ::seekdir(dir, middle);
  const dirent* again = ::readdir(dir);
  std::printf("seekdir %d\n", again && at_middle == again->d_name);
  ::closedir(dir);
  // Deeper than PATH_MAX, as gnulib's configure test does.
  const std::string part(200, 'd');
  const int home = ::open(".", O_RDONLY | O_DIRECTORY);
  int depth = 0;
  for (; depth < 30; ++depth)
    if (::mkdir(part.c_str(), 0755) != 0 || ::chdir(part.c_str()) != 0) break;
  std::printf("depth %d\n", depth);
  put("deep", "deep down");
  show("deep", content("deep"));
  struct stat st {};
  say("stat deep", ::stat("deep", &st));
  say("rename deep", ::rename("deep", "deeper"));
  say("unlink deep", ::unlink("deeper"));
  for (; depth > 0; --depth)
    if (::chdir("..") != 0 || ::rmdir(part.c_str()) != 0) break;
  std::printf("back at %d\n", depth);
  say("fchdir", ::fchdir(home));
}

}  // namespace probe
