// SPDX-License-Identifier: MIT
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include "record/loopback/loopback.hpp"

namespace heddle::loopback {

int may_access(Request& request, int fd, int mask) {
  if (::syscall(SYS_faccessat2, fd, "", mask, AT_EACCESS | AT_EMPTY_PATH) == 0) return 0;
  if (errno != ENOSYS && errno != EPERM) return errno;
  // ENOSYS: before Linux 5.8. EPERM: a seccomp filter that does not know the call.
  struct statx st {};
  if (const int rc = stat_fd(fd, st); rc != 0) return rc;
  char acl[4096];
  const ssize_t n = ::getxattr(OwnPath(fd).text, "system.posix_acl_access", acl, sizeof(acl));
  if (n < 0 && errno != ENODATA && errno != EOPNOTSUPP) return errno;
  const std::string_view entries(acl, n > 0 ? static_cast<std::size_t>(n) : 0);
  return request.rights().may_by_mode(st, entries, mask) ? 0 : EACCES;
}

namespace {

void log_stat(Loopback& tree, Request& request, int rc) {
  const bool is_logged =
      tree.stat_calls.has_logged(request.rights(), request.tid(), request.node());
  if (!is_logged || rc != 0) tree.log(request, Op::stat, rc);
}

int getattr(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_getattr_in>();
  const bool by_handle = (in.getattr_flags & FUSE_GETATTR_FH) != 0;
  File file;
  struct statx st {};
  int rc = by_handle ? 0 : tree.reach(request, file);
  const int fd = by_handle ? Handle::of(in.fh).fd.get() : file ? file->get() : -1;
  if (rc == 0) rc = stat_fd(fd, st);
  // With a handle the kernel itself asks, for the end of a file it reads; only a failure of that
  // reaches the program. stat(2) and fstat(2) come without one.
  if (by_handle && rc != 0) tree.log(request, Op::stat, rc, Handle::of(in.fh).path);
  if (!by_handle) log_stat(tree, request, rc);
  if (rc != 0) return rc;
  fuse_attr_out out{};
  tree.fill_attr(fd, st, out.attr);
  return request.reply(out);
}

int statx(Loopback& tree, Request& request) {
  const auto in = request.body<StatxIn>();
  File file;
  struct statx st {};
  int rc = tree.reach(request, file);
  if (rc == 0) rc = stat_fd(file->get(), st);
  log_stat(tree, request, rc);
  if (rc != 0) return rc;
  fuse_attr attr{};
  tree.fill_attr(file->get(), st, attr);
  StatxOut out{};
  out.stat = st;
  out.stat.stx_mask &= in.sx_mask | STATX_BASIC_STATS | STATX_BTIME;
  out.stat.stx_mode = static_cast<std::uint16_t>(attr.mode);
  out.stat.stx_ino = attr.ino;
  if (attr.rdev == 0) out.stat.stx_rdev_major = out.stat.stx_rdev_minor = 0;
  return request.reply(out);
}

constexpr std::uint32_t kFields =
    FATTR_MODE | FATTR_UID | FATTR_GID | FATTR_SIZE | FATTR_ATIME | FATTR_MTIME;

int apply(const fuse_setattr_in& in, int fd, const FileKey& key) {
  const OwnPath path(fd);
  if ((in.valid & FATTR_MODE) != 0) {
    if (S_ISLNK(key.type)) return EOPNOTSUPP;
    if (::chmod(path.text, in.mode & 07777) != 0) return errno;
  }
  // Without any field it is chown(2) with -1, -1, which changes ctime.
  if ((in.valid & (FATTR_UID | FATTR_GID)) != 0 || (in.valid & kFields) == 0) {
    const uid_t uid = (in.valid & FATTR_UID) != 0 ? in.uid : static_cast<uid_t>(-1);
    const gid_t gid = (in.valid & FATTR_GID) != 0 ? in.gid : static_cast<gid_t>(-1);
    if (::fchownat(fd, "", uid, gid, AT_EMPTY_PATH) != 0) return errno;
  }
  if ((in.valid & FATTR_SIZE) != 0) {
    const auto size = static_cast<off_t>(in.size);
    if (!S_ISREG(key.type)) return EINVAL;
    const bool by_handle = (in.valid & FATTR_FH) != 0;
    if ((by_handle ? ::ftruncate(Handle::of(in.fh).fd.get(), size) : ::truncate(path.text, size)) !=
        0)
      return errno;
  }
  if ((in.valid & (FATTR_ATIME | FATTR_MTIME)) != 0) {
    timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
    if ((in.valid & FATTR_ATIME) != 0)
      times[0] = {static_cast<time_t>(in.atime), static_cast<long>(in.atimensec)};
    if ((in.valid & FATTR_MTIME) != 0)
      times[1] = {static_cast<time_t>(in.mtime), static_cast<long>(in.mtimensec)};
    if ((in.valid & FATTR_ATIME_NOW) != 0) times[0].tv_nsec = UTIME_NOW;
    if ((in.valid & FATTR_MTIME_NOW) != 0) times[1].tv_nsec = UTIME_NOW;
    if (::utimensat(AT_FDCWD, path.text, times, 0) != 0) return errno;
  }
  return 0;
}

int statfs(Loopback& tree, Request& request) {
  File file;
  struct statvfs st {};
  int rc = tree.reach(request, file);
  if (rc == 0) rc = errno_if(::fstatvfs(file->get(), &st) != 0);
  if (rc != 0) return rc;
  fuse_statfs_out out{};
  out.st.blocks = st.f_blocks;
  out.st.bfree = st.f_bfree;
  out.st.bavail = st.f_bavail;
  out.st.files = st.f_files;
  out.st.ffree = st.f_ffree;
  out.st.bsize = static_cast<std::uint32_t>(st.f_bsize);
  out.st.frsize = static_cast<std::uint32_t>(st.f_frsize);
  out.st.namelen = static_cast<std::uint32_t>(st.f_namemax);
  return request.reply(out);
}

int setattr(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_setattr_in>();
  File file;
  struct statx st {};
  int rc = tree.reach(request, file);
  if (rc == 0) {
    const IoModes::Change change(tree.io_modes, request.node(), file->get());
    rc = apply(in, file->get(), tree.nodes.key(request.node()));
  }
  if (rc == 0) rc = stat_fd(file->get(), st);
  const auto path = tree.nodes.path(request.node());
  if ((in.valid & FATTR_SIZE) != 0) tree.log(request, Op::truncate, rc, path);
  if ((in.valid & FATTR_MODE) != 0) tree.log(request, Op::chmod, rc, path);
  if ((in.valid & (FATTR_UID | FATTR_GID)) != 0 || (in.valid & kFields) == 0)
    tree.log(request, Op::chown, rc, path);
  if ((in.valid & (FATTR_ATIME | FATTR_MTIME)) != 0 && (in.valid & FATTR_SIZE) == 0)
    tree.log(request, Op::utimens, rc, path);
  if (rc != 0) return rc;
  fuse_attr_out out{};
  tree.fill_attr(file->get(), st, out.attr);
  return request.reply(out);
}

int access(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_access_in>();
  File file;
  int rc = tree.reach(request, file);
  // For access(2) the kernel makes the real user the file-system user, so the request's is the one
  // to check.
  if (rc == 0) rc = may_access(request, file->get(), static_cast<int>(in.mask));
  tree.log(request, Op::access, rc);
  return rc;
}

/// Answers with a list or value that `get` writes into a buffer, or with its length.
template <class Get>
int reply_sized(Loopback& tree, Request& request, Get get) {
  const auto in = request.body<fuse_getxattr_in>();
  File file;
  if (const int rc = tree.reach(request, file); rc != 0) return rc;
  const ssize_t n = get(file->get(), request.out(), std::min<std::size_t>(in.size, kMaxData));
  if (n < 0) return errno;
  if (in.size > 0) return request.reply_bytes(request.out(), static_cast<std::size_t>(n));
  fuse_getxattr_out out{};
  out.size = static_cast<std::uint32_t>(n);
  return request.reply(out);
}

int getxattr(Loopback& tree, Request& request) {
  const auto name = request.name(sizeof(fuse_getxattr_in));
  return reply_sized(tree, request, [&](int fd, char* out, std::size_t size) {
    // Hidden from execve(2), as set-id bits are in fill_attr().
    if (name == "security.capability" && has_flag(fd, ST_NOSUID))
      return errno = ENODATA, ssize_t{-1};
    return ::getxattr(OwnPath(fd).text, name.data(), out, size);
  });
}

int listxattr(Loopback& tree, Request& request) {
  return reply_sized(tree, request, [](int fd, char* out, std::size_t size) {
    return ::listxattr(OwnPath(fd).text, out, size);
  });
}

int setxattr(Loopback& tree, Request& request) {
  // Without FUSE_SETXATTR_EXT the body is the first two words.
  fuse_setxattr_in in{};
  std::memcpy(&in, request.rest(0).data(), FUSE_COMPAT_SETXATTR_IN_SIZE);
  const auto name = request.name(FUSE_COMPAT_SETXATTR_IN_SIZE);
  const auto value =
      request.rest(FUSE_COMPAT_SETXATTR_IN_SIZE + name.size() + 1).substr(0, in.size);
  File file;
  int rc = tree.reach(request, file);
  if (rc == 0)
    rc = errno_if(::setxattr(OwnPath(file->get()).text, name.data(), value.data(), value.size(),
                             static_cast<int>(in.flags)) != 0);
  tree.log(request, Op::setxattr, rc);
  return rc;
}

int removexattr(Loopback& tree, Request& request) {
  const auto name = request.name();
  File file;
  int rc = tree.reach(request, file);
  if (rc == 0) rc = errno_if(::removexattr(OwnPath(file->get()).text, name.data()) != 0);
  tree.log(request, Op::setxattr, rc);
  return rc;
}

}  // namespace

std::span<const Operation> attribute_operations() {
  static constexpr Operation kAll[] = {{FUSE_GETATTR, getattr, Rights::user},
                                       {kOpStatx, statx, Rights::user},
                                       {FUSE_SETATTR, setattr},
                                       {FUSE_STATFS, statfs},
                                       {FUSE_ACCESS, access},
                                       {FUSE_GETXATTR, getxattr},
                                       {FUSE_LISTXATTR, listxattr},
                                       {FUSE_SETXATTR, setxattr},
                                       {FUSE_REMOVEXATTR, removexattr}};
  return kAll;
}

}  // namespace heddle::loopback
