// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <sys/syscall.h>

#include "record/loopback/loopback.hpp"

namespace heddle::loopback {
namespace {

/// What getdents64(2) gives.
struct RawEntry {
  std::uint64_t ino;
  std::int64_t next;  ///< where the reading goes on after it
  std::uint16_t length;
  std::uint8_t type;
  char name[1];
};
constexpr std::size_t kNameOffset = offsetof(RawEntry, name);

}  // namespace

void Loopback::opendir(Request& request) {
  std::optional<Target> target;
  int rc = reach(request.node(), target);
  const auto path = nodes_.path(request.node()).value_or("");
  Fd fd;
  struct statx st {};
  if (rc == 0) {
    fd.reset(::openat(target->dir(), target->name(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    rc = fd ? stat_at(fd.get(), "", AT_EMPTY_PATH, st) : errno;
  }
  log(request, Op::opendir, rc, path);
  if (rc != 0) return request.reply_error(rc);
  Handle& handle = handles_.add(std::move(fd), {request.node(), request.tid(), path, false},
                                request.progress().opened);
  nodes_.add_handle(request.node(), handle.fd);
  fuse_open_out out{};
  out.fh = handle.fh();
  request.reply(out);
}

void Loopback::readdir(Request& request, ReplyBuffer& buffer) {
  const auto in = request.body<fuse_read_in>();
  auto& handle = Handle::of(in.fh);
  const std::lock_guard lock(handle.mutex);
  const auto offset = static_cast<std::int64_t>(in.offset);
  if (offset != handle.dir_offset && ::lseek(handle.fd, offset, SEEK_SET) < 0)
    return request.reply_error(errno);
  handle.dir_offset = offset;
  const auto device = nodes_.key(handle.node).device;
  const std::size_t room = std::min<std::size_t>(in.size, kMaxData);
  std::size_t used = 0;
  alignas(8) char raw[16384];
  // An entry grows by a third at most (24 bytes to 32) in the protocol's form, so all of them fit.
  const long n = ::syscall(SYS_getdents64, handle.fd, raw, std::min(sizeof(raw), room / 4 * 3));
  if (n < 0) return request.reply_error(errno);
  for (long at = 0; at < n;) {
    RawEntry entry;
    std::memcpy(&entry, raw + at, kNameOffset);
    const char* name = raw + at + kNameOffset;
    const std::size_t length = std::strlen(name);
    const std::size_t size = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length);
    fuse_dirent out{};
    out.ino = numbers_.of(device, entry.ino);
    out.off = static_cast<std::uint64_t>(entry.next);
    out.namelen = static_cast<std::uint32_t>(length);
    out.type = entry.type;
    char* to = buffer.out() + used;
    std::memset(to, 0, size);
    std::memcpy(to, &out, FUSE_NAME_OFFSET);
    std::memcpy(to + FUSE_NAME_OFFSET, name, length);
    used += size;
    handle.dir_offset = entry.next;
    at += entry.length;
  }
  request.reply_bytes(buffer.out(), used);
}

void Loopback::releasedir(Request& request) {
  const auto fh = request.body<fuse_release_in>().fh;
  if (!handles_.has(fh)) return request.reply_error(0);  // closed by a worker that was killed
  auto& handle = Handle::of(fh);
  nodes_.remove_handle(handle.node, handle.fd);
  handles_.remove(handle);
  request.reply_error(0);
}

}  // namespace heddle::loopback
