// SPDX-License-Identifier: MIT
// Does in a directory what applications do to files, and prints each result. The output on the
// loopback must equal the native one byte for byte.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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

namespace {

void say(const char* what, long result) {
  std::printf("%s: %ld %s\n", what, result, result < 0 ? ::strerrorname_np(errno) : "");
}

std::string content(const char* path) {
  const int fd = ::open(path, O_RDONLY);
  if (fd < 0) return std::string("!") + ::strerrorname_np(errno);
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = ::read(fd, buffer, sizeof(buffer))) > 0;)
    out.append(buffer, static_cast<std::size_t>(n));
  ::close(fd);
  return out;
}

void put(const char* path, const char* text) {
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0 || ::write(fd, text, std::strlen(text)) < 0) say("put", -1);
  ::close(fd);
}

void show(const char* what, const std::string& text) {
  std::printf("%s: [%s]\n", what, text.c_str());
}

void show_stat(const char* what, int fd, const char* path = "") {
  struct stat st {};
  say(what, ::fstatat(fd, path, &st, AT_EMPTY_PATH));
  std::printf("mode %o nlink %lu size %ld uid %u gid %u rdev %lx\n", st.st_mode, st.st_nlink,
              st.st_size, st.st_uid, st.st_gid, st.st_rdev);
}

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
  say("rename directory", ::rename("dir", "moved"));
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
  say("file as directory", ::open("hard/x", O_RDONLY));
  say("trailing slash", ::open("hard/", O_RDONLY));
  say("excl", ::open("hard", O_WRONLY | O_CREAT | O_EXCL, 0600));
  say("write a directory", ::open("moved", O_WRONLY));
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
  show_stat("at", AT_FDCWD, "at");
  say("chown", ::chown("at", ::geteuid(), ::getegid()));
  show_stat("chowned", AT_FDCWD, "at");
  ::symlink("at", "link_at");
  say("lchown", ::lchown("link_at", ::geteuid(), ::getegid()));
  say("utimens link", ::utimensat(AT_FDCWD, "link_at", times, AT_SYMLINK_NOFOLLOW));
  ::lstat("link_at", &st);
  std::printf("link mtime %ld size %ld\n", st.st_mtim.tv_sec, st.st_size);
  ::umask(027);
  put("masked", "");
  ::mkdir("masked_dir", 0777);
  show_stat("umask", AT_FDCWD, "masked");
  show_stat("umask", AT_FDCWD, "masked_dir");
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
  show_stat("sock", AT_FDCWD, "sock");
  ::close(client);
  ::close(listener);
  say("connect closed", ::connect(::socket(AF_UNIX, SOCK_STREAM, 0),
                                  reinterpret_cast<sockaddr*>(&address), sizeof(address)));
  const int rc = ::mknod("node", S_IFCHR | 0600, makedev(1, 3));
  say("mknod", rc);
  if (rc == 0) {
    const int fd = ::open("node", O_RDWR);
    say("device write", ::write(fd, "x", 1));
    char byte;
    say("device read", ::read(fd, &byte, 1));
    show_stat("node", AT_FDCWD, "node");
    ::close(fd);
  }
}

void directories() {
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
  show_stat("stat deep", AT_FDCWD, "deep");
  say("rename deep", ::rename("deep", "deeper"));
  say("unlink deep", ::unlink("deeper"));
  for (; depth > 0; --depth)
    if (::chdir("..") != 0 || ::rmdir(part.c_str()) != 0) break;
  std::printf("back at %d\n", depth);
  say("fchdir", ::fchdir(home));
}

// Contents, sizes and mappings.

void open_files() {
  int fd = ::open("u", O_RDWR | O_CREAT, 0600);
  say("write", ::write(fd, "hello", 5));
  say("unlink open", ::unlink("u"));
  show_stat("fstat", fd);
  say("write on", ::write(fd, " more", 5));
  char text[32] = {};
  say("pread", ::pread(fd, text, sizeof(text), 0));
  show("unlinked", text);
  say("fchmod", ::fchmod(fd, 0640));
  say("ftruncate", ::ftruncate(fd, 3));
  show_stat("fstat", fd);
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
  show_stat("fstat old", fd);
  ::close(fd);
  show("new", content("r1"));

  fd = ::open("r1", O_PATH);
  say("unlink", ::unlink("r1"));
  show_stat("fstat O_PATH", fd);
  ::close(fd);
  ::mkdir("gone", 0755);
  fd = ::open("gone", O_RDONLY | O_DIRECTORY);
  say("rmdir open", ::rmdir("gone"));
  struct stat st {};
  say("fstat directory", ::fstat(fd, &st));
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
  show_stat("tmpfile", fd);
  const std::string name = "/proc/self/fd/" + std::to_string(fd);
  say("linkat", ::linkat(AT_FDCWD, name.c_str(), AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
  show("named", content("named"));
  show_stat("linked", fd);
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

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || ::chdir(argv[1]) != 0) return 2;
  ::umask(022);
  names();
  open_files();
  appending();
  nameless();
  sizes();
  mapping();
  attributes();
  special();
  directories();
  return 0;
}
