// SPDX-License-Identifier: MIT
#include <sys/syscall.h>

#include <climits>

#include "record/loopback/loopback.hpp"

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

namespace heddle::loopback {
namespace {

int errno_if(bool failed) { return failed ? errno : 0; }

bool is_there(const Place& place) {
  struct statx st {};
  return stat_at(place.dir(), place.name(), AT_SYMLINK_NOFOLLOW, st) != ENOENT;
}

bool is_of_type(const Place& place, mode_t type) {
  struct statx st {};
  return stat_at(place.dir(), place.name(), AT_SYMLINK_NOFOLLOW, st) == 0 &&
         (st.stx_mode & static_cast<unsigned>(S_IFMT)) == type;
}

bool is_file(const Place& place, const FileKey& key) {
  struct statx st {};
  return stat_at(place.dir(), place.name(), AT_SYMLINK_NOFOLLOW, st) == 0 && file_key(st) == key;
}

}  // namespace

void Loopback::lookup(Request& request) {
  const auto name = request.name();
  if (request.node() == FUSE_ROOT_ID && name == kStartName) {
    log_.start();
    return request.reply_error(ENOENT);
  }
  auto path = nodes_.path(request.node(), name);
  // A folder that is gone but still somebody's cwd: nothing is in it.
  if (!path) return request.reply_error(ENOENT);
  const auto known = nodes_.child(request.node(), name);
  Entry entry;
  const int rc = make_entry(request, name, *path, entry);
  // When the kernel asks again for a folder it knows is a matter of time: it would be noise.
  const bool again = rc == 0 && S_ISDIR(entry.st.stx_mode) && known == entry.out.nodeid;
  if (!again) log(request, Op::lookup, rc, *path);
  // A miss is never kept by the kernel: that needs node 0 with a timeout, this is an error.
  if (rc != 0) return request.reply_error(rc);
  request.reply(entry.out);
}

void Loopback::forget(Request& request) {
  if (request.progress().forgotten++ == 0)
    nodes_.forget(request.node(), request.body<fuse_forget_in>().nlookup);
}

void Loopback::batch_forget(Request& request) {
  const auto count = request.body<fuse_batch_forget_in>().count;
  auto list = request.rest(sizeof(fuse_batch_forget_in));
  volatile std::uint32_t& forgotten = request.progress().forgotten;
  for (std::uint32_t i = 0; i < count && list.size() >= sizeof(fuse_forget_one); ++i) {
    fuse_forget_one one{};
    std::memcpy(&one, list.data(), sizeof(one));
    list.remove_prefix(sizeof(one));
    if (i < forgotten) continue;  // by a worker that was killed
    forgotten = i + 1;
    nodes_.forget(one.nodeid, one.nlookup);
  }
}

void Loopback::mkdir(Request& request, CallerRights& rights) {
  const auto in = request.body<fuse_mkdir_in>();
  const auto name = request.name(sizeof(in));
  const auto path = nodes_.path(request.node(), name);
  if (!path) return request.reply_error(ENOENT);
  rights.set_umask(in.umask);
  const Place place(*path);
  const int rc = carry_out(
      request, [&] { return errno_if(::mkdirat(place.dir(), place.name(), in.mode) != 0); },
      [&] { return is_of_type(place, S_IFDIR); });
  answer_made(request, Op::mkdir, rc, name, *path, in.mode & 07777);
}

void Loopback::mknod(Request& request, CallerRights& rights) {
  const auto in = request.body<fuse_mknod_in>();
  const auto name = request.name(sizeof(in));
  const auto path = nodes_.path(request.node(), name);
  if (!path) return request.reply_error(ENOENT);
  rights.set_umask(in.umask);
  const Place place(*path);
  const auto make = [&] {
    return errno_if(::mknodat(place.dir(), place.name(), in.mode, decode_device(in.rdev)) != 0);
  };
  const int rc = carry_out(request, make, [&] { return is_of_type(place, in.mode & S_IFMT); });
  answer_made(request, Op::mknod, rc, name, *path, in.mode & 07777);
}

void Loopback::symlink(Request& request) {
  const auto name = request.name();
  const std::string target(request.name(name.size() + 1));
  const auto path = nodes_.path(request.node(), name);
  if (!path) return request.reply_error(ENOENT);
  const Place place(*path);
  const auto make = [&] {
    return errno_if(::symlinkat(target.c_str(), place.dir(), place.name()) != 0);
  };
  const int rc = carry_out(request, make, [&] { return is_of_type(place, S_IFLNK); });
  answer_made(request, Op::symlink, rc, name, *path, -1, target);
}

void Loopback::link(Request& request) {
  const auto in = request.body<fuse_link_in>();
  const auto name = request.name(sizeof(in));
  const auto path = nodes_.path(request.node(), name);
  // A worker that was killed may have noted the new name: the old one is to be told.
  if (request.is_resent()) nodes_.unbind(request.node(), name);
  std::optional<Target> old;
  int rc = path ? reach(in.oldnodeid, old) : ENOENT;
  if (rc != 0) return request.reply_error(rc);
  const Place place(*path);
  // An O_TMPFILE becomes a file by its descriptor's name in /proc (open(2)).
  const int follow = old->fd() >= 0 ? AT_SYMLINK_FOLLOW : 0;
  const auto make = [&] {
    return errno_if(::linkat(old->dir(), old->name(), place.dir(), place.name(), follow) != 0);
  };
  rc = carry_out(request, make, [&] { return is_file(place, nodes_.key(in.oldnodeid)); });
  const auto old_path = nodes_.path(in.oldnodeid).value_or("");
  Entry entry;
  if (rc == 0) rc = make_entry(request, name, *path, entry);
  log(request, Op::link, rc, old_path, *path);
  if (rc != 0) return request.reply_error(rc);
  request.reply(entry.out);
}

void Loopback::hold_before_removal(std::uint64_t parent, std::string_view name,
                                   const std::string& path) {
  if (!nodes_.is_last_name(parent, name)) return;
  const Place place(path);
  Fd fd(::openat(place.dir(), place.name(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  // Without one (no descriptors left) only those suffer who use it by O_PATH or as cwd afterwards.
  if (fd) nodes_.pin(nodes_.child(parent, name), std::move(fd));
}

void Loopback::remove(Request& request, int flags) {
  const auto name = request.name();
  const auto path = nodes_.path(request.node(), name);
  if (!path) return request.reply_error(ENOENT);
  hold_before_removal(request.node(), name, *path);
  const Place place(*path);
  const auto known = nodes_.child(request.node(), name);
  const int rc = carry_out(
      request, [&] { return errno_if(::unlinkat(place.dir(), place.name(), flags) != 0); },
      [&] { return known != 0 ? !is_file(place, nodes_.key(known)) : !is_there(place); });
  if (rc == 0 || rc == ENOENT) nodes_.unbind(request.node(), name);
  log(request, flags == 0 ? Op::unlink : Op::rmdir, rc, *path);
  request.reply_error(rc);
}

void Loopback::rename(Request& request, std::uint64_t to, unsigned flags, std::size_t skip) {
  const auto old_name = request.name(skip);
  const auto new_name = request.name(skip + old_name.size() + 1);
  const auto old_path = nodes_.path(request.node(), old_name);
  const auto new_path = nodes_.path(to, new_name);
  if (!old_path || !new_path) return request.reply_error(ENOENT);
  if (flags == 0) hold_before_removal(to, new_name, *new_path);
  const Place from(*old_path);
  const Place target(*new_path);
  const auto moved = nodes_.child(request.node(), old_name);
  const auto move = [&] {
    return errno_if(
        ::syscall(SYS_renameat2, from.dir(), from.name(), target.dir(), target.name(), flags) != 0);
  };
  const int rc = carry_out(request, move, [&] { return is_file(target, nodes_.key(moved)); });
  // Our table has followed already when a worker died later than that.
  const bool followed =
      request.is_resent() && is_file(target, nodes_.key(nodes_.child(to, new_name)));
  if (rc == 0 && !followed)
    nodes_.rename(request.node(), old_name, to, new_name, (flags & RENAME_EXCHANGE) != 0);
  log(request, Op::rename, rc, *old_path, *new_path);
  request.reply_error(rc);
}

void Loopback::readlink(Request& request) {
  std::optional<Target> target;
  int rc = reach(request.node(), target);
  char text[PATH_MAX];
  ssize_t n = -1;
  if (rc == 0 && target->fd() >= 0) {
    n = ::readlinkat(target->fd(), "", text, sizeof(text));  // an O_PATH descriptor of the link
    rc = errno_if(n < 0);
  } else if (rc == 0) {
    n = ::readlinkat(target->dir(), target->name(), text, sizeof(text));
    rc = errno_if(n < 0);
  }
  const std::string_view shown(text, n > 0 ? static_cast<std::size_t>(n) : 0);
  log(request, Op::readlink, rc, nodes_.path(request.node()).value_or(""), shown);
  if (rc != 0) return request.reply_error(rc);
  request.reply_bytes(text, shown.size());
}

}  // namespace heddle::loopback
