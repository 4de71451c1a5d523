// SPDX-License-Identifier: MIT
// empty_loopback APP...: runs APP on a read-only FUSE passthrough of the file tree that does
// nothing else: one thread, no check of rights, no log. The kernel caches what it caches under
// fs-record (directories for a second), so this is what FUSE alone costs. Root only.

#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

namespace {

struct Node {
  std::string path;  ///< not a descriptor: find(1) sees more directories than a process may open
  std::uint64_t lookups = 0;
};
using Key = std::pair<dev_t, ino_t>;
std::map<Key, Node> g_nodes;  // NOLINT: one program, one file system

using KeyedNode = decltype(g_nodes)::value_type;
KeyedNode& at(fuse_ino_t node) { return *reinterpret_cast<KeyedNode*>(node); }
std::string path_of(fuse_ino_t node) { return node == FUSE_ROOT_ID ? "/" : at(node).second.path; }

void look_up(fuse_req_t request, fuse_ino_t parent, const char* name) {
  fuse_entry_param out{};
  const std::string path = path_of(parent) + "/" + name;
  if (::lstat(path.c_str(), &out.attr) != 0) {
    fuse_reply_err(request, errno);
    return;
  }
  auto& node = *g_nodes.try_emplace({out.attr.st_dev, out.attr.st_ino}).first;
  if (node.second.lookups++ == 0) node.second.path = path;
  out.ino = reinterpret_cast<fuse_ino_t>(&node);
  out.entry_timeout = S_ISDIR(out.attr.st_mode) ? 1 : 0;
  fuse_reply_entry(request, &out);
}

void forget(fuse_req_t request, fuse_ino_t id, std::uint64_t lookups) {
  auto& [key, node] = at(id);
  node.lookups -= lookups;
  if (node.lookups == 0) g_nodes.erase(Key(key));
  fuse_reply_none(request);
}

void get_attributes(fuse_req_t request, fuse_ino_t node, fuse_file_info*) {
  struct stat st {};
  if (::lstat(path_of(node).c_str(), &st) != 0)
    fuse_reply_err(request, errno);
  else
    fuse_reply_attr(request, &st, 0);
}

void read_link(fuse_req_t request, fuse_ino_t node) {
  char target[4096] = {};
  if (::readlink(path_of(node).c_str(), target, sizeof(target) - 1) < 0)
    fuse_reply_err(request, errno);
  else
    fuse_reply_readlink(request, target);
}

void open_node(fuse_req_t request, fuse_ino_t node, fuse_file_info* info) {
  const int fd = ::open(path_of(node).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    fuse_reply_err(request, errno);
    return;
  }
  info->fh = static_cast<std::uint64_t>(fd);
  info->keep_cache = 1;
  fuse_reply_open(request, info);
}

void release(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  ::close(static_cast<int>(info->fh));
  fuse_reply_err(request, 0);
}

void read_file(fuse_req_t request, fuse_ino_t, std::size_t size, off_t offset,
               fuse_file_info* info) {
  static char buffer[1 << 20];
  const ssize_t n =
      ::pread(static_cast<int>(info->fh), buffer, std::min(size, sizeof(buffer)), offset);
  if (n < 0)
    fuse_reply_err(request, errno);
  else
    fuse_reply_buf(request, buffer, static_cast<std::size_t>(n));
}

void read_directory(fuse_req_t request, fuse_ino_t, std::size_t size, off_t offset,
                    fuse_file_info* info) {
  static char in[1 << 16], out[1 << 17];
  const int fd = static_cast<int>(info->fh);
  ::lseek(fd, offset, SEEK_SET);
  // Half, since a fuse_dirent is up to eight bytes longer than a dirent64.
  const ssize_t n = ::getdents64(fd, in, std::min(size / 2, sizeof(in)));
  if (n < 0) {
    fuse_reply_err(request, errno);
    return;
  }
  std::size_t used = 0;
  for (ssize_t next = 0; next < n;) {
    const auto* entry = reinterpret_cast<const dirent64*>(in + next);
    struct stat st {};
    st.st_ino = entry->d_ino;
    st.st_mode = DTTOIF(entry->d_type);
    used += fuse_add_direntry(request, out + used, sizeof(out) - used, entry->d_name, &st,
                              entry->d_off);
    next += entry->d_reclen;
  }
  fuse_reply_buf(request, out, used);
}

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  ::_exit(3);
}

/// Becomes APP in the tree mounted at `root`, with the directories that fs-record keeps native.
[[noreturn]] void run(const std::string& root, char** argv) {
  const std::string cwd = ::getcwd(nullptr, 0);
  for (const char* native : {"/proc", "/sys", "/dev", "/run"})
    if (::mount(native, (root + native).c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0)
      give_up(native);
  if (::chroot(root.c_str()) != 0 || ::chdir(cwd.c_str()) != 0) give_up("chroot");
  ::execvp(argv[0], argv);
  give_up(argv[0]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  fuse_lowlevel_ops operations{};
  operations.lookup = look_up;
  operations.forget = forget;
  operations.getattr = get_attributes;
  operations.readlink = read_link;
  operations.open = operations.opendir = open_node;
  operations.release = operations.releasedir = release;
  operations.read = read_file;
  operations.readdir = read_directory;

  char directory[] = "/dev/shm/empty_loopback.XXXXXX";
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 || !::mkdtemp(directory))
    give_up("cannot make a mount namespace");
  char name[] = "empty_loopback", option[] = "-oallow_other";
  char* words[] = {name, option, nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(2, words);
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof(operations), nullptr);
  if (!session || fuse_session_mount(session, directory) != 0) give_up("mount");
  const pid_t server = ::fork();
  if (server == 0) ::_exit(fuse_session_loop(session) == 0 ? 0 : 3);
  const pid_t app = ::fork();
  if (app == 0) run(directory, argv + 1);
  int status = 0;
  ::waitpid(app, &status, 0);
  ::umount2(directory, MNT_DETACH);
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  ::rmdir(directory);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
