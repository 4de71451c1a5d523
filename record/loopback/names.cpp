// SPDX-License-Identifier: MIT
#include <sys/syscall.h>

#include <climits>
#include <cstdio>
#include <cstdlib>

#include "record/loopback/loopback.hpp"

namespace heddle::loopback {
namespace {

bool is_special(unsigned mode) {
  return S_ISFIFO(mode) || S_ISSOCK(mode) || S_ISCHR(mode) || S_ISBLK(mode);
}

int access_of(unsigned long flags) {
  if ((flags & O_PATH) != 0) return R_OK | W_OK;  // it can be opened again
  const auto mode = flags & O_ACCMODE;
  return mode == O_RDONLY ? R_OK : mode == O_WRONLY ? W_OK : R_OK | W_OK;
}

constexpr long kFchmodat2 = 452;

/// The calls that neither open the file they name nor connect to it.
constexpr long kOpenNothing[] = {
#ifdef SYS_open
    SYS_stat,       SYS_lstat,       SYS_access,       SYS_rename,    SYS_link,      SYS_unlink,
    SYS_chmod,      SYS_chown,       SYS_lchown,       SYS_utime,     SYS_utimes,    SYS_mknod,
    SYS_mkdir,      SYS_rmdir,       SYS_symlink,      SYS_readlink,  SYS_futimesat, SYS_newfstatat,
    SYS_renameat,
#endif
    SYS_bind,       SYS_chdir,       SYS_execve,       SYS_execveat,  SYS_faccessat, SYS_faccessat2,
    SYS_fchmodat,   kFchmodat2,      SYS_fchownat,     SYS_getxattr,  SYS_lgetxattr, SYS_linkat,
    SYS_listxattr,  SYS_llistxattr,  SYS_lremovexattr, SYS_lsetxattr, SYS_mkdirat,   SYS_mknodat,
    SYS_readlinkat, SYS_removexattr, SYS_renameat2,    SYS_setxattr,  SYS_statx,     SYS_symlinkat,
    SYS_truncate,   SYS_unlinkat,    SYS_utimensat};

/// The access that a call needs to the special file it names; all access when its flags are out of
/// sight. No 32-bit call that opens or connects has one of the numbers in kOpenNothing.
int needed_by(const Call& call) {
  switch (call.number) {
#ifdef SYS_open
    case SYS_open:
      return access_of(call.arguments[1]);
    case SYS_creat:
#endif
    case SYS_connect:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_sendmmsg:
      return W_OK;
    case SYS_openat:
      return access_of(call.arguments[2]);
    default:
      return std::find(std::begin(kOpenNothing), std::end(kOpenNothing), call.number) !=
                     std::end(kOpenNothing)
                 ? 0
                 : R_OK | W_OK;
  }
}

/// Checks the caller's access to a special file at its lookup, because the kernel opens FIFOs,
/// devices and sockets without a request. (With default_permissions the kernel would check, but
/// request the attributes of every directory on each walk, and hide access(2).)
int check_special(const Loopback& tree, Request& request, int fd, const struct statx& st,
                  const std::string& path) {
  if (!is_special(st.stx_mode) || may_access(request, fd, R_OK | W_OK) == 0) return 0;
  // The real file is mounted over it and decides. An error here would detach that mount.
  if (tree.native_files.contains(path)) return 0;
  const auto call = [&] {
    const OwnRights own(request.rights());  // root owns the /proc files of undumpable processes
    return call_of(request.tid());
  }();
  const int needed = needed_by(call);
  return needed == 0 ? 0 : may_access(request, fd, needed);
}

int lookup(Loopback& tree, Request& request) {
  const auto name = request.name();
  if (request.node() == FUSE_ROOT_ID && name == kStartName) {
    tree.access_log.start();
    return ENOENT;
  }
  File parent;
  if (const int rc = tree.reach(request, parent); rc != 0) return rc;
  const auto known = tree.nodes.child(request.node(), name);
  const bool for_stat = tree.stat_calls.is_stat(request.rights(), request.tid());
  Loopback::Entry entry;
  int rc = tree.make_entry(request, parent, name, entry, for_stat);
  const auto path = tree.nodes.path(request.node(), name);
  // Repeated lookups of a directory depend on the timeout of its entry alone.
  const bool again = rc == 0 && S_ISDIR(entry.st.stx_mode) && known.id == entry.out.nodeid;
  if (!again) tree.log(request, Op::lookup, rc, path);
  if (rc == 0 && S_ISREG(entry.st.stx_mode)) {
    const auto node = entry.out.nodeid;
    const auto found = tree.stat_calls.found(request.tid(), node, for_stat);
    if (found.forget) request.forget_attributes(node);
    if (found.may_give && !tree.nodes.has_handles(node))
      entry.out.attr_valid_nsec = 1;  // the kernel counts in ticks
    if (for_stat) tree.log(request, Op::stat, 0, path);
  }
  if (rc == 0 && is_special(entry.st.stx_mode)) {
    const auto file = tree.nodes.file(entry.out.nodeid);
    rc = file ? check_special(tree, request, file->get(), entry.st, path) : ESTALE;
    if (rc != 0) {
      tree.nodes.forget(entry.out.nodeid, 1);
      tree.log(request, Op::open, rc, path);
    }
  }
  return rc != 0 ? rc : request.reply(entry.out);
}

int forget(Loopback& tree, Request& request) {
  tree.nodes.forget(request.node(), request.body<fuse_forget_in>().nlookup);
  return kAnswered;
}

int batch_forget(Loopback& tree, Request& request) {
  const auto count = request.body<fuse_batch_forget_in>().count;
  auto list = request.rest(sizeof(fuse_batch_forget_in));
  for (std::uint32_t i = 0; i < count && list.size() >= sizeof(fuse_forget_one); ++i) {
    fuse_forget_one one{};
    std::memcpy(&one, list.data(), sizeof(one));
    list.remove_prefix(sizeof(one));
    tree.nodes.forget(one.nodeid, one.nlookup);
  }
  return kAnswered;
}

/// Makes `name` in the request's directory by make_it(directory) and answers with the entry.
template <class Make>
int make(Loopback& tree, Request& request, Op op, std::string_view name, std::int64_t mode,
         std::string_view target, Make make_it) {
  File parent;
  Loopback::Entry entry;
  int rc = tree.reach(request, parent);
  if (rc == 0) rc = errno_if(make_it(parent->get()) != 0);
  if (rc == 0) rc = tree.make_entry(request, parent, name, entry);
  tree.log(request, op, rc, tree.nodes.path(request.node(), name), target, mode);
  return rc != 0 ? rc : request.reply(entry.out);
}

int mkdir(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_mkdir_in>();
  const auto name = request.name(sizeof(in));
  request.rights().set_umask(in.umask);
  return make(tree, request, Op::mkdir, name, in.mode & 07777, {},
              [&](int parent) { return ::mkdirat(parent, name.data(), in.mode); });
}

int mknod(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_mknod_in>();
  const auto name = request.name(sizeof(in));
  request.rights().set_umask(in.umask);
  return make(tree, request, Op::mknod, name, in.mode & 07777, {}, [&](int parent) {
    return ::mknodat(parent, name.data(), in.mode, decode_device(in.rdev));
  });
}

int symlink(Loopback& tree, Request& request) {
  const auto name = request.name();
  const auto target = request.name(name.size() + 1);
  return make(tree, request, Op::symlink, name, -1, target,
              [&](int parent) { return ::symlinkat(target.data(), parent, name.data()); });
}

int link(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_link_in>();
  const auto name = request.name(sizeof(in));
  const auto path = tree.nodes.path(request.node(), name);
  const auto old_path = tree.nodes.path(in.oldnodeid);
  File parent, old;
  int rc = tree.reach(request, parent);
  if (rc == 0) rc = tree.reach(request, old, in.oldnodeid);
  // Unlike AT_EMPTY_PATH, the name in /proc needs no capability (open(2), O_TMPFILE).
  if (rc == 0)
    rc = errno_if(::linkat(AT_FDCWD, OwnPath(old->get()).text, parent->get(), name.data(),
                           AT_SYMLINK_FOLLOW) != 0);
  Loopback::Entry entry;
  if (rc == 0) rc = tree.make_entry(request, parent, name, entry);
  tree.log(request, Op::link, rc, old_path, path);
  return rc != 0 ? rc : request.reply(entry.out);
}

/// Gives the node of a name that is about to go a descriptor: without a name it is found by no
/// other means.
void keep_reachable(Loopback& tree, Request& request, std::uint64_t parent, std::string_view name) {
  const auto known = tree.nodes.child(parent, name);
  File kept;
  if (known.id != 0 && !known.is_open) (void)tree.reach(request, kept, known.id);
}

int remove(Loopback& tree, Request& request) {
  const int flags = request.opcode() == FUSE_RMDIR ? AT_REMOVEDIR : 0;
  const auto name = request.name();
  const auto path = tree.nodes.path(request.node(), name);
  File parent;
  int rc = tree.reach(request, parent);
  keep_reachable(tree, request, request.node(), name);
  if (rc == 0) rc = errno_if(::unlinkat(parent->get(), name.data(), flags) != 0);
  if (rc == 0 || rc == ENOENT) tree.nodes.unbind(request.node(), name);
  tree.log(request, flags == 0 ? Op::unlink : Op::rmdir, rc, path);
  return rc;
}

int rename(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_rename2_in>();  // FUSE_RENAME's body is its start
  const bool has_flags = request.opcode() == FUSE_RENAME2;
  const std::size_t skip = has_flags ? sizeof(in) : sizeof(fuse_rename_in);
  const unsigned flags = has_flags ? in.flags : 0;
  const std::uint64_t to = in.newdir;
  const auto old_name = request.name(skip);
  const auto new_name = request.name(skip + old_name.size() + 1);
  const auto old_path = tree.nodes.path(request.node(), old_name);
  const auto new_path = tree.nodes.path(to, new_name);
  File from, target;
  int rc = tree.reach(request, from);
  if (rc == 0) rc = tree.reach(request, target, to);
  keep_reachable(tree, request, to, new_name);
  if (rc == 0)
    rc = errno_if(::syscall(SYS_renameat2, from->get(), old_name.data(), target->get(),
                            new_name.data(), flags) != 0);
  if (rc == 0)
    tree.nodes.rename(request.node(), old_name, to, new_name, (flags & RENAME_EXCHANGE) != 0);
  tree.log(request, Op::rename, rc, old_path, new_path);
  return rc;
}

int readlink(Loopback& tree, Request& request) {
  File file;
  int rc = tree.reach(request, file);
  char text[PATH_MAX];
  ssize_t n = -1;
  if (rc == 0) {
    n = ::readlinkat(file->get(), "", text, sizeof(text));
    rc = errno_if(n < 0);
  }
  const std::string_view shown(text, n > 0 ? static_cast<std::size_t>(n) : 0);
  tree.log(request, Op::readlink, rc, tree.nodes.path(request.node()), shown);
  return rc != 0 ? rc : request.reply_bytes(text, shown.size());
}

}  // namespace

std::span<const Operation> name_operations() {
  static constexpr Operation kAll[] = {{FUSE_FORGET, forget, Rights::any},
                                       {FUSE_BATCH_FORGET, batch_forget, Rights::any},
                                       {FUSE_LOOKUP, lookup},
                                       {FUSE_READLINK, readlink},
                                       {FUSE_SYMLINK, symlink},
                                       {FUSE_MKNOD, mknod},
                                       {FUSE_MKDIR, mkdir},
                                       {FUSE_UNLINK, remove},
                                       {FUSE_RMDIR, remove},
                                       {FUSE_RENAME, rename},
                                       {FUSE_RENAME2, rename},
                                       {FUSE_LINK, link}};
  return kAll;
}

}  // namespace heddle::loopback
