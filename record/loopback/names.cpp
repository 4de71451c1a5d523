// SPDX-License-Identifier: MIT
#include <sys/syscall.h>

#include <climits>
#include <cstdio>
#include <cstdlib>

#include "record/loopback/loopback.hpp"

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

namespace heddle::loopback {
namespace {

bool is_special(unsigned mode) {
  return S_ISFIFO(mode) || S_ISSOCK(mode) || S_ISCHR(mode) || S_ISBLK(mode);
}

/// The system call in which a thread waits for us, as /proc/TID/syscall tells.
struct Call {
  long number = -1;  ///< -1: not told
  unsigned long arguments[3] = {};
};

Call call_of(std::int32_t tid) {
  Call out;
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%d/syscall", tid);
  const Fd fd(kernel_tells_calls() ? ::open(path, O_RDONLY | O_CLOEXEC) : -1);
  char text[256];
  const ssize_t n = fd ? ::read(fd.get(), text, sizeof(text) - 1) : -1;
  if (n <= 0) return out;
  text[n] = '\0';
  if (std::sscanf(text, "%ld %lx %lx %lx", &out.number, &out.arguments[0], &out.arguments[1],
                  &out.arguments[2]) != 4)
    out.number = -1;
  return out;
}

int access_of(unsigned long flags) {
  if ((flags & O_PATH) != 0) return R_OK | W_OK;  // it can be opened again by any flags
  switch (flags & O_ACCMODE) {
    case O_RDONLY:
      return R_OK;
    case O_WRONLY:
      return W_OK;
    default:
      return R_OK | W_OK;
  }
}

/// What a call needs of the special file it names: the calls that open none need nothing, those
/// whose flags we do not see everything. A 32-bit program's calls have other numbers: none that
/// opens a file or connects has one of those that need nothing here.
int needed_by(const Call& call) {
  switch (call.number) {
#ifdef SYS_open
    case SYS_open:
      return access_of(call.arguments[1]);
    case SYS_creat:
      return W_OK;
    case SYS_stat:
    case SYS_lstat:
    case SYS_access:
    case SYS_rename:
    case SYS_link:
    case SYS_unlink:
    case SYS_chmod:
    case SYS_chown:
    case SYS_lchown:
    case SYS_utime:
    case SYS_utimes:
    case SYS_mknod:
    case SYS_mkdir:
    case SYS_rmdir:
    case SYS_symlink:
    case SYS_readlink:
    case SYS_futimesat:
      return 0;
#endif
    case SYS_openat:
      return access_of(call.arguments[2]);
    case SYS_connect:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_sendmmsg:
      return W_OK;
    case SYS_bind:
    case SYS_chdir:
    case SYS_execve:
    case SYS_execveat:
    case SYS_faccessat:
    case 439:  // faccessat2
    case SYS_fchmodat:
    case 452:  // fchmodat2
    case SYS_fchownat:
    case SYS_getxattr:
    case SYS_lgetxattr:
    case SYS_linkat:
    case SYS_listxattr:
    case SYS_llistxattr:
    case SYS_lremovexattr:
    case SYS_lsetxattr:
    case SYS_mkdirat:
    case SYS_mknodat:
#ifdef SYS_newfstatat
    case SYS_newfstatat:
#endif
    case SYS_readlinkat:
    case SYS_removexattr:
#ifdef SYS_renameat
    case SYS_renameat:
#endif
    case SYS_renameat2:
    case SYS_setxattr:
    case SYS_statx:
    case SYS_symlinkat:
    case SYS_truncate:
    case SYS_unlinkat:
    case SYS_utimensat:
      return 0;
    default:
      return R_OK | W_OK;
  }
}

}  // namespace

/// The kernel opens FIFOs, devices and sockets by itself, and asks nobody: the look-up before is
/// where those that may not are refused. (default_permissions would have the kernel check, and with
/// it ask for the attributes of every directory on each walk, and never tell of access(2).)
int Loopback::check_special(Request& request, int fd, const struct statx& st,
                            const std::string& path) {
  if (!is_special(st.stx_mode) || may_access(request, fd, R_OK | W_OK) == 0) return 0;
  // The real file is mounted over it: it is asked itself. To refuse here would take that mount off.
  if (native_files_.contains(path)) return 0;
  const auto call = [&] {
    const OwnRights own(request.rights());  // of a process that is not dumpable the file is root's
    return call_of(request.tid());
  }();
  const int needed = needed_by(call);
  return needed == 0 ? 0 : may_access(request, fd, needed);
}

void Loopback::lookup(Request& request) {
  const auto name = request.name();
  if (request.node() == FUSE_ROOT_ID && name == kStartName) {
    log_.start();
    return request.reply_error(ENOENT);
  }
  File parent;
  if (const int rc = reach(request, request.node(), parent); rc != 0)
    return request.reply_error(rc);
  const auto known = nodes_.child(request.node(), name);
  Entry entry;
  int rc = make_entry(request, parent, name, entry);
  const auto path = nodes_.path(request.node(), name).value_or("");
  // When the kernel asks again for a directory it knows is a matter of time: it would be noise.
  const bool again = rc == 0 && S_ISDIR(entry.st.stx_mode) && known.id == entry.out.nodeid;
  if (!again) log(request, Op::lookup, rc, path);
  if (rc == 0 && is_special(entry.st.stx_mode)) {
    const auto file = nodes_.file(entry.out.nodeid);
    rc = file ? check_special(request, file->get(), entry.st, path) : ESTALE;
    if (rc != 0) {
      nodes_.forget(entry.out.nodeid, 1);
      log(request, Op::open, rc, path);
    }
  }
  // A miss is never kept by the kernel: that needs node 0 with a timeout, this is an error.
  if (rc != 0) return request.reply_error(rc);
  request.reply(entry.out);
}

void Loopback::forget(Request& request) {
  nodes_.forget(request.node(), request.body<fuse_forget_in>().nlookup);
}

void Loopback::batch_forget(Request& request) {
  const auto count = request.body<fuse_batch_forget_in>().count;
  auto list = request.rest(sizeof(fuse_batch_forget_in));
  for (std::uint32_t i = 0; i < count && list.size() >= sizeof(fuse_forget_one); ++i) {
    fuse_forget_one one{};
    std::memcpy(&one, list.data(), sizeof(one));
    list.remove_prefix(sizeof(one));
    nodes_.forget(one.nodeid, one.nlookup);
  }
}

void Loopback::mkdir(Request& request) {
  const auto in = request.body<fuse_mkdir_in>();
  const auto name = request.name(sizeof(in));
  File parent;
  int rc = reach(request, request.node(), parent);
  request.rights().set_umask(in.umask);
  if (rc == 0) rc = errno_if(::mkdirat(parent->get(), name.data(), in.mode) != 0);
  answer_made(request, Op::mkdir, rc, parent, name, in.mode & 07777);
}

void Loopback::mknod(Request& request) {
  const auto in = request.body<fuse_mknod_in>();
  const auto name = request.name(sizeof(in));
  File parent;
  int rc = reach(request, request.node(), parent);
  request.rights().set_umask(in.umask);
  if (rc == 0)
    rc = errno_if(::mknodat(parent->get(), name.data(), in.mode, decode_device(in.rdev)) != 0);
  answer_made(request, Op::mknod, rc, parent, name, in.mode & 07777);
}

void Loopback::symlink(Request& request) {
  const auto name = request.name();
  const std::string target(request.name(name.size() + 1));
  File parent;
  int rc = reach(request, request.node(), parent);
  if (rc == 0) rc = errno_if(::symlinkat(target.c_str(), parent->get(), name.data()) != 0);
  answer_made(request, Op::symlink, rc, parent, name, -1, target);
}

void Loopback::link(Request& request) {
  const auto in = request.body<fuse_link_in>();
  const auto name = request.name(sizeof(in));
  const auto path = nodes_.path(request.node(), name).value_or("");
  const auto old_path = path_of(in.oldnodeid);
  File parent, old;
  int rc = reach(request, request.node(), parent);
  if (rc == 0) rc = reach(request, in.oldnodeid, old);
  // By its name in /proc, which leads to the file itself and needs no capability (open(2),
  // O_TMPFILE).
  if (rc == 0)
    rc = errno_if(::linkat(AT_FDCWD, OwnPath(old->get()).text, parent->get(), name.data(),
                           AT_SYMLINK_FOLLOW) != 0);
  Entry entry;
  if (rc == 0) rc = make_entry(request, parent, name, entry);
  log(request, Op::link, rc, old_path, path);
  if (rc != 0) return request.reply_error(rc);
  request.reply(entry.out);
}

void Loopback::remove(Request& request, int flags) {
  const auto name = request.name();
  const auto path = nodes_.path(request.node(), name).value_or("");
  File parent;
  int rc = reach(request, request.node(), parent);
  // What has lost its last name is found by its descriptor only: those that have none get one now.
  if (const auto known = nodes_.child(request.node(), name); known.id != 0 && !known.is_open) {
    File kept;
    (void)reach(request, known.id, kept);
  }
  if (rc == 0) rc = errno_if(::unlinkat(parent->get(), name.data(), flags) != 0);
  if (rc == 0 || rc == ENOENT) nodes_.unbind(request.node(), name);
  log(request, flags == 0 ? Op::unlink : Op::rmdir, rc, path);
  request.reply_error(rc);
}

void Loopback::rename(Request& request, std::uint64_t to, unsigned flags, std::size_t skip) {
  const auto old_name = request.name(skip);
  const auto new_name = request.name(skip + old_name.size() + 1);
  const auto old_path = nodes_.path(request.node(), old_name).value_or("");
  const auto new_path = nodes_.path(to, new_name).value_or("");
  File from, target;
  int rc = reach(request, request.node(), from);
  if (rc == 0) rc = reach(request, to, target);
  if (const auto known = nodes_.child(to, new_name); known.id != 0 && !known.is_open) {
    File kept;
    (void)reach(request, known.id, kept);
  }
  if (rc == 0)
    rc = errno_if(::syscall(SYS_renameat2, from->get(), old_name.data(), target->get(),
                            new_name.data(), flags) != 0);
  if (rc == 0)
    nodes_.rename(request.node(), old_name, to, new_name, (flags & RENAME_EXCHANGE) != 0);
  log(request, Op::rename, rc, old_path, new_path);
  request.reply_error(rc);
}

void Loopback::readlink(Request& request) {
  File file;
  int rc = reach(request, request.node(), file);
  char text[PATH_MAX];
  ssize_t n = -1;
  if (rc == 0) {
    n = ::readlinkat(file->get(), "", text, sizeof(text));
    rc = errno_if(n < 0);
  }
  const std::string_view shown(text, n > 0 ? static_cast<std::size_t>(n) : 0);
  log(request, Op::readlink, rc, path_of(request.node()), shown);
  if (rc != 0) return request.reply_error(rc);
  request.reply_bytes(text, shown.size());
}

}  // namespace heddle::loopback
