// SPDX-License-Identifier: MIT
#include <linux/limits.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include "record/loopback/loopback.hpp"

namespace heddle::loopback {
namespace {

int errno_if(bool failed) { return failed ? errno : 0; }

/// The path or /proc name that the xattr calls take: they know no folder descriptors.
class XattrPath {
 public:
  explicit XattrPath(const Target& target) : name_(target.name()), follow_(target.fd() >= 0) {
    if (target.dir() == AT_FDCWD) return;
    fd_.reset(::openat(target.dir(), target.name(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    name_ = fmt::format("/proc/self/fd/{}", fd_.get());
    follow_ = true;
  }
  const char* name() const { return name_.c_str(); }
  bool follow() const { return follow_; }
  /// nullopt: the file has no such attribute.
  std::optional<std::string> value(const std::string& attribute) const {
    std::string out(XATTR_SIZE_MAX, '\0');
    const ssize_t n = follow_ ? ::getxattr(name(), attribute.c_str(), out.data(), out.size())
                              : ::lgetxattr(name(), attribute.c_str(), out.data(), out.size());
    if (n < 0) return std::nullopt;
    out.resize(static_cast<std::size_t>(n));
    return out;
  }

 private:
  std::string name_;
  bool follow_;
  Fd fd_;
};

StatxTime time_of(const statx_timestamp& t) { return {t.tv_sec, t.tv_nsec, 0}; }

}  // namespace

void Loopback::getattr(Request& request) {
  const auto in = request.body<fuse_getattr_in>();
  const bool by_handle = (in.getattr_flags & FUSE_GETATTR_FH) != 0;
  struct statx st {};
  const int rc = by_handle ? stat_at(Handle::of(in.fh).fd, "", AT_EMPTY_PATH, st)
                           : stat_node(request.node(), st);
  // With a handle it is the kernel that asks, about the end of a file it reads, which then fails if
  // we do; stat(2) and fstat(2) come without one.
  if (by_handle && rc != 0) log(request, Op::stat, rc, Handle::of(in.fh).path());
  if (!by_handle) log(request, Op::stat, rc, nodes_.path(request.node()).value_or(""));
  if (rc != 0) return request.reply_error(rc);
  fuse_attr_out out{};
  fill_attr(st, out.attr);
  request.reply(out);
}

void Loopback::statx(Request& request) {
  const auto in = request.body<StatxIn>();
  struct statx st {};
  const int rc = stat_node(request.node(), st);
  log(request, Op::stat, rc, nodes_.path(request.node()).value_or(""));
  if (rc != 0) return request.reply_error(rc);
  StatxOut out{};
  out.mask = st.stx_mask & (in.sx_mask | STATX_BASIC_STATS | STATX_BTIME);
  out.blksize = st.stx_blksize;
  out.attributes = st.stx_attributes;
  out.attributes_mask = st.stx_attributes_mask;
  out.nlink = st.stx_nlink;
  out.uid = st.stx_uid;
  out.gid = st.stx_gid;
  out.mode = st.stx_mode;
  out.ino = numbers_.of(file_key(st).device, st.stx_ino);
  out.size = st.stx_size;
  out.blocks = st.stx_blocks;
  out.atime = time_of(st.stx_atime);
  out.btime = time_of(st.stx_btime);
  out.ctime = time_of(st.stx_ctime);
  out.mtime = time_of(st.stx_mtime);
  out.rdev_major = st.stx_rdev_major;
  out.rdev_minor = st.stx_rdev_minor;
  request.reply(out);
}

int Loopback::apply(const fuse_setattr_in& in, const Target& target, const FileKey& key) {
  const int handle_fd = (in.valid & FATTR_FH) != 0 ? Handle::of(in.fh).fd : -1;
  if ((in.valid & FATTR_MODE) != 0) {
    if (S_ISLNK(key.type)) return EOPNOTSUPP;  // and following it would change another file
    if (::fchmodat(target.dir(), target.name(), in.mode & 07777, 0) != 0) return errno;
  }
  if ((in.valid & (FATTR_UID | FATTR_GID)) != 0) {
    const uid_t uid = (in.valid & FATTR_UID) != 0 ? in.uid : static_cast<uid_t>(-1);
    const gid_t gid = (in.valid & FATTR_GID) != 0 ? in.gid : static_cast<gid_t>(-1);
    if (::fchownat(target.dir(), target.name(), uid, gid, target.nofollow()) != 0) return errno;
  }
  if ((in.valid & FATTR_SIZE) != 0) {
    const auto size = static_cast<off_t>(in.size);
    if (handle_fd >= 0) {
      if (::ftruncate(handle_fd, size) != 0) return errno;
    } else {
      const XattrPath path(target);  // truncate(2) knows no folder descriptors either
      if (!S_ISREG(key.type)) return EINVAL;
      if (::truncate(path.name(), size) != 0) return errno;
    }
  }
  if ((in.valid & (FATTR_ATIME | FATTR_MTIME)) != 0) {
    timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
    if ((in.valid & FATTR_ATIME) != 0)
      times[0] = {static_cast<time_t>(in.atime), static_cast<long>(in.atimensec)};
    if ((in.valid & FATTR_MTIME) != 0)
      times[1] = {static_cast<time_t>(in.mtime), static_cast<long>(in.mtimensec)};
    if ((in.valid & FATTR_ATIME_NOW) != 0) times[0].tv_nsec = UTIME_NOW;
    if ((in.valid & FATTR_MTIME_NOW) != 0) times[1].tv_nsec = UTIME_NOW;
    if (::utimensat(target.dir(), target.name(), times, target.nofollow()) != 0) return errno;
  }
  return 0;
}

void Loopback::setattr(Request& request) {
  const auto in = request.body<fuse_setattr_in>();
  std::optional<Target> target;
  int rc = reach(request.node(), target);
  if (rc == 0) rc = apply(in, *target, nodes_.key(request.node()));
  struct statx st {};
  if (rc == 0)
    rc = (in.valid & FATTR_FH) != 0 ? stat_at(Handle::of(in.fh).fd, "", AT_EMPTY_PATH, st)
                                    : stat_node(request.node(), st);
  const auto path = nodes_.path(request.node()).value_or("");
  if ((in.valid & FATTR_SIZE) != 0) log(request, Op::truncate, rc, path);
  if ((in.valid & FATTR_MODE) != 0) log(request, Op::chmod, rc, path);
  if ((in.valid & (FATTR_UID | FATTR_GID)) != 0) log(request, Op::chown, rc, path);
  if ((in.valid & (FATTR_ATIME | FATTR_MTIME)) != 0 && (in.valid & FATTR_SIZE) == 0)
    log(request, Op::utimens, rc, path);
  if (rc != 0) return request.reply_error(rc);
  fuse_attr_out out{};
  fill_attr(st, out.attr);
  request.reply(out);
}

void Loopback::access(Request& request) {
  const auto in = request.body<fuse_access_in>();
  std::optional<Target> target;
  int rc = reach(request.node(), target);
  // The kernel has made the real user the file-system user for access(2); ours is set alike, so
  // it is the effective one that counts here.
  if (rc == 0)
    rc = errno_if(::faccessat(target->dir(), target->name(), static_cast<int>(in.mask),
                              AT_EACCESS | target->nofollow()) != 0);
  log(request, Op::access, rc, nodes_.path(request.node()).value_or(""));
  request.reply_error(rc);
}

void Loopback::getxattr(Request& request, ReplyBuffer& buffer) {
  const auto in = request.body<fuse_getxattr_in>();
  const std::string name(request.name(sizeof(in)));
  std::optional<Target> target;
  if (const int rc = reach(request.node(), target); rc != 0) return request.reply_error(rc);
  const XattrPath path(*target);
  const std::size_t size = std::min<std::size_t>(in.size, kMaxData);
  const ssize_t n = path.follow() ? ::getxattr(path.name(), name.c_str(), buffer.out(), size)
                                  : ::lgetxattr(path.name(), name.c_str(), buffer.out(), size);
  if (n < 0) return request.reply_error(errno);
  if (size > 0) return request.reply_bytes(buffer.out(), static_cast<std::size_t>(n));
  fuse_getxattr_out out{};
  out.size = static_cast<std::uint32_t>(n);
  request.reply(out);
}

void Loopback::listxattr(Request& request, ReplyBuffer& buffer) {
  const auto in = request.body<fuse_getxattr_in>();
  std::optional<Target> target;
  if (const int rc = reach(request.node(), target); rc != 0) return request.reply_error(rc);
  const XattrPath path(*target);
  const std::size_t size = std::min<std::size_t>(in.size, kMaxData);
  const ssize_t n = path.follow() ? ::listxattr(path.name(), buffer.out(), size)
                                  : ::llistxattr(path.name(), buffer.out(), size);
  if (n < 0) return request.reply_error(errno);
  if (size > 0) return request.reply_bytes(buffer.out(), static_cast<std::size_t>(n));
  fuse_getxattr_out out{};
  out.size = static_cast<std::uint32_t>(n);
  request.reply(out);
}

void Loopback::setxattr(Request& request) {
  // Without FUSE_SETXATTR_EXT the body is the first two words.
  fuse_setxattr_in in{};
  std::memcpy(&in, request.rest(0).data(), FUSE_COMPAT_SETXATTR_IN_SIZE);
  const std::string name(request.name(FUSE_COMPAT_SETXATTR_IN_SIZE));
  const auto value =
      request.rest(FUSE_COMPAT_SETXATTR_IN_SIZE + name.size() + 1).substr(0, in.size);
  std::optional<Target> target;
  int rc = reach(request.node(), target);
  if (rc == 0) {
    const XattrPath path(*target);
    const int flags = static_cast<int>(in.flags);
    const auto set = [&] {
      return errno_if(
          (path.follow()
               ? ::setxattr(path.name(), name.c_str(), value.data(), value.size(), flags)
               : ::lsetxattr(path.name(), name.c_str(), value.data(), value.size(), flags)) != 0);
    };
    rc = carry_out(request, set, [&] { return path.value(name) == value; });
  }
  log(request, Op::setxattr, rc, nodes_.path(request.node()).value_or(""));
  request.reply_error(rc);
}

void Loopback::removexattr(Request& request) {
  const std::string name(request.name());
  std::optional<Target> target;
  int rc = reach(request.node(), target);
  if (rc == 0) {
    const XattrPath path(*target);
    const auto remove = [&] {
      return errno_if((path.follow() ? ::removexattr(path.name(), name.c_str())
                                     : ::lremovexattr(path.name(), name.c_str())) != 0);
    };
    rc = carry_out(request, remove, [&] { return !path.value(name); });
  }
  log(request, Op::setxattr, rc, nodes_.path(request.node()).value_or(""));
  request.reply_error(rc);
}

}  // namespace heddle::loopback
