// SPDX-License-Identifier: MIT
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "record/loopback/loopback.hpp"

namespace heddle::loopback {
namespace {

// O_DIRECT is not handed on: our buffers are not the caller's, and their alignment is no matter of
// its. Neither is O_NONBLOCK etc.: only regular files are opened here.
constexpr int kPassedFlags = O_ACCMODE | O_APPEND | O_TRUNC | O_SYNC | O_DSYNC | O_NOATIME;
constexpr std::uint32_t kHiddenFlags = kOpenForExec | O_LARGEFILE | 0100000;
constexpr std::size_t kMuchData = 256 * 1024;

/// What getdents64(2) gives.
struct RawEntry {
  std::uint64_t ino;
  std::int64_t next;  ///< where the reading goes on after it
  std::uint16_t length;
  std::uint8_t type;
  char name[1];
};
constexpr std::size_t kNameOffset = offsetof(RawEntry, name);

Locks::Wanted wanted_lock(const Request& request, const fuse_lk_in& in) {
  const auto& handle = Handle::of(in.fh);
  return {handle.node,
          {in.owner, in.lk.start, in.lk.end, static_cast<short>(in.lk.type),
           static_cast<std::int32_t>(in.lk.pid)},
          handle.access,
          &handle,
          request.header().unique};
}

}  // namespace

void Loopback::log_open(Request& request, trace::Event& event, Handle* opened) {
  event.tid = request.tid();
  if (opened) event.handle = opened->number;
  log_.add(event);
  if (!opened) return;
  opened->exe = event.exe;
  opened->pid = event.pid;
}

Handle& Loopback::add_handle(Request& request, Fd fd, std::uint64_t node, std::uint32_t flags,
                             std::string_view path, fuse_open_out& out) {
  auto handle = std::make_unique<Handle>();
  {
    const OwnRights own(request.rights());
    handle->mode = io_modes_.open(node, fd.get(), static_cast<int>(flags), out);
  }
  handle->fd = std::move(fd);
  handle->node = node;
  handle->number = handles_.next_number();
  handle->access = static_cast<int>(flags) & O_ACCMODE;
  handle->append = (flags & O_APPEND) != 0;
  handle->tid = request.tid();
  handle->path = path;
  nodes_.add_handle(node);
  Handle& added = handles_.add(std::move(handle));
  out.fh = added.fh();
  return added;
}

/// Opens a node's file as the caller. 0 or an errno.
int Loopback::open_file(Request& request, const File& file, std::uint32_t flags, Fd& fd) {
  // The kernel opens other types itself; a FIFO would block this thread.
  if (!S_ISREG(nodes_.key(request.node()).type)) return EINVAL;
  const bool for_exec = (flags & kOpenForExec) != 0;
  if (for_exec) {
    // The kernel asks us whether somebody may execute it, and not whether this one may.
    if (const int rc = may_access(request, file->get(), X_OK); rc != 0) return rc;
    if (has_flag(file->get(), ST_NOEXEC)) return EACCES;
  }
  fd = reopen(file->get(), static_cast<int>(flags) & kPassedFlags);
  const int rc = errno_if(!fd);
  if (rc != EACCES || !for_exec) return rc;
  // The kernel, not the user, reads a program that may be executed only.
  const OwnRights own(request.rights());
  fd = reopen(file->get(), O_RDONLY);
  return errno_if(!fd);
}

void Loopback::open(Request& request) {
  const auto in = request.body<fuse_open_in>();
  File file;
  struct statx st {};
  Fd fd;
  int rc = reach(request, request.node(), file);
  if (rc == 0) rc = open_file(request, file, in.flags, fd);
  if (rc == 0) rc = stat_fd(fd.get(), st);
  if (rc == ESTALE) return request.reply_error(rc);  // the walk begins anew and asks us again
  const auto path = path_of(request.node());
  fuse_open_out out{};
  Handle* opened = nullptr;
  if (rc == 0) {
    opened = &add_handle(request, std::move(fd), request.node(), in.flags, path, out);
    // Cached pages are valid as long as the file has not changed since they were read.
    const bool same = nodes_.same_content(request.node(), content_stamp(st));
    if ((in.flags & O_TRUNC) == 0 && same && opened->mode == IoModes::Mode::kept)
      out.open_flags |= FOPEN_KEEP_CACHE;
  }
  if (log_.on()) {
    trace::Event event{.op = (in.flags & kOpenForExec) != 0 ? Op::exec : Op::open,
                       .error = rc,
                       .path = path,
                       .flags = in.flags & ~kHiddenFlags};
    log_open(request, event, opened);
  }
  if (rc == 0 && (in.flags & kOpenForExec) != 0) request.rights().forget_caller();
  if (rc != 0) return request.reply_error(rc);
  request.reply(out);
}

/// Makes the file, or opens one that a process outside has made since the lookup. 0 or an errno.
int Loopback::create_file(const File& parent, const std::string& name, int flags,
                          const fuse_create_in& in, Fd& fd) {
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    fd.reset(::openat(parent->get(), ".", flags | O_CLOEXEC, in.mode));
    return errno_if(!fd);
  }
  for (int tries = 0; tries < 100; ++tries) {
    // What is there may be a FIFO, or a link to one, and block this thread: O_EXCL opens neither.
    fd = open_at(parent->get(), name.c_str(), flags | O_CREAT | O_EXCL | O_NOFOLLOW, in.mode);
    if (fd || errno != EEXIST || (in.flags & O_EXCL) != 0) return errno_if(!fd);
    struct statx st {};
    const Fd there(::openat(parent->get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!there && errno == ENOENT) continue;
    if (!there || stat_fd(there.get(), st) != 0) return errno;
    if (is_of_proc(there.get())) return EACCES;
    if (!S_ISREG(st.stx_mode)) return ESTALE;  // the kernel walks again, and sees what it is
    fd = reopen(there.get(), flags);
    return errno_if(!fd);
  }
  return ESTALE;
}

void Loopback::create(Request& request) {
  const bool nameless = request.opcode() == kOpTmpfile;
  const auto in = request.body<fuse_create_in>();
  const std::string name(request.name(sizeof(in)));
  File parent;
  Fd fd;
  struct statx st {};
  int rc = reach(request, request.node(), parent);
  request.rights().set_umask(in.umask);
  const int flags = (static_cast<int>(in.flags) & kPassedFlags) | (nameless ? O_TMPFILE : 0);
  if (rc == 0) rc = create_file(parent, name, flags, in, fd);
  Fd node_fd;
  if (rc == 0) {
    node_fd = reopen(fd.get(), O_PATH);
    rc = node_fd ? stat_fd(fd.get(), st) : errno;
  }
  if (rc == ESTALE) return request.reply_error(rc);
  const auto path = (nameless ? nodes_.path(request.node()) : nodes_.path(request.node(), name));
  fuse_entry_out entry{};
  fuse_open_out out{};
  Handle* opened = nullptr;
  if (rc == 0) {
    entry = entry_out(-1, fd.get(), st);
    entry.nodeid = nameless ? nodes_.bind_nameless(file_key(st), std::move(node_fd))
                            : nodes_.bind(request.node(), name, file_key(st), std::move(node_fd));
    opened = &add_handle(request, std::move(fd), entry.nodeid, in.flags, path.value_or(""), out);
  }
  if (log_.on()) {
    trace::Event event{.op = Op::create,
                       .error = rc,
                       .path = path ? *path : std::string_view(),
                       .flags = (in.flags & ~kHiddenFlags) |
                                (nameless ? static_cast<std::uint32_t>(O_TMPFILE) : 0U),
                       .mode = in.mode & 07777 & ~in.umask};
    log_open(request, event, opened);
  }
  if (rc != 0) return request.reply_error(rc);
  request.reply(entry, out);
}

void Loopback::log_io(Request& request, Op op, const Handle& handle, std::int64_t offset,
                      std::int64_t bytes, int error) {
  if (!log_.each_io() || !log_.on()) return;
  trace::Event event{.tid = request.tid(),
                     .op = op,
                     .error = error,
                     .path = handle.path,
                     .handle = handle.number,
                     .count = 1,
                     .bytes = bytes,
                     .offset = offset};
  log_.add(event);
}

void Loopback::read(Request& request) {
  const auto in = request.body<fuse_read_in>();
  auto& handle = Handle::of(in.fh);
  const std::size_t size = std::min<std::size_t>(in.size, kMaxData);
  if (size > kMuchData) request.go_slow();
  std::size_t done = 0;
  int rc = 0;
  // A short answer means end of file to the kernel.
  while (done < size) {
    const ssize_t n = ::pread(handle.fd.get(), request.out() + done, size - done,
                              static_cast<off_t>(in.offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && done == 0) rc = errno;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  ++handle.reads;
  handle.read_bytes += static_cast<std::int64_t>(done);
  log_io(request, Op::read, handle, static_cast<std::int64_t>(in.offset),
         static_cast<std::int64_t>(done), rc);
  if (rc != 0) return request.reply_error(rc);
  request.reply_bytes(request.out(), done);
}

void Loopback::write(Request& request) {
  const auto in = request.body<fuse_write_in>();
  auto& handle = Handle::of(in.fh);
  int fd = handle.fd.get();
  const auto data = request.rest(sizeof(in)).substr(0, in.size);
  if (data.size() > kMuchData) request.go_slow();
  const bool of_pages = (in.write_flags & FUSE_WRITE_CACHE) != 0;
  const bool append = (in.flags & O_APPEND) != 0;
  if (!of_pages && append != handle.append) {  // fcntl(F_SETFL)
    const std::lock_guard lock(handle.mutex);
    const int flags = ::fcntl(fd, F_GETFL);
    ::fcntl(fd, F_SETFL, append ? flags | O_APPEND : flags & ~O_APPEND);
    handle.append = append;
  }
  // Pages of a shared mapping belong at their offset, and O_APPEND would move them to the end.
  Fd not_appending;
  int rc = 0;
  if (of_pages && handle.append) {
    const OwnRights own(request.rights());
    not_appending = reopen(fd, O_WRONLY);
    rc = errno_if(!not_appending);
    fd = not_appending.get();
  }
  std::size_t done = 0;
  while (rc == 0 && done < data.size()) {
    const ssize_t n =
        ::pwrite(fd, data.data() + done, data.size() - done, static_cast<off_t>(in.offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && done == 0) rc = errno;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  ++handle.writes;
  handle.write_bytes += static_cast<std::int64_t>(done);
  log_io(request, Op::write, handle, static_cast<std::int64_t>(in.offset),
         static_cast<std::int64_t>(done), rc);
  if (rc != 0) return request.reply_error(rc);
  fuse_write_out out{};
  out.size = static_cast<std::uint32_t>(done);
  request.reply(out);
}

void Loopback::flush(Request& request) {
  const auto in = request.body<fuse_flush_in>();
  const auto& handle = Handle::of(in.fh);
  locks_.close_owner(handle.node, in.lock_owner);
  if (handle.access == O_RDONLY) return request.reply_error(0);
  // close(2) is where network file systems report a full disk; ours stays open.
  const int copy = ::dup(handle.fd.get());
  request.reply_error(copy >= 0 && ::close(copy) != 0 ? errno : 0);
}

void Loopback::log_closed(Handle& handle) {
  if (handle.number < 0 || !log_.on()) return;
  trace::Event event{.pid = handle.pid,
                     .tid = handle.tid,
                     .path = handle.path,
                     .exe = handle.exe,
                     .handle = handle.number};
  const auto tell = [&](Op op, std::int64_t count, std::int64_t bytes) {
    event.op = op;
    event.count = count;
    event.bytes = bytes;
    log_.add(event);
  };
  if (!log_.each_io() && handle.reads > 0) tell(Op::read, handle.reads, handle.read_bytes);
  if (!log_.each_io() && handle.writes > 0) tell(Op::write, handle.writes, handle.write_bytes);
  tell(Op::close, -1, -1);
}

void Loopback::release(Request& request) {
  const auto in = request.body<fuse_release_in>();
  auto& handle = Handle::of(in.fh);
  log_closed(handle);
  // The open file may live on, as the one that the kernel passes others' reads and writes to.
  if ((in.release_flags & FUSE_RELEASE_FLOCK_UNLOCK) != 0) (void)::flock(handle.fd.get(), LOCK_UN);
  locks_.close_handle(handle.node, &handle);
  io_modes_.close(handle.node, handle.mode);
  nodes_.remove_handle(handle.node);
  handles_.remove(handle);
  request.reply_error(0);
}

void Loopback::getlk(Request& request) {
  const auto in = request.body<fuse_lk_in>();
  const auto& handle = Handle::of(in.fh);
  const auto wanted = wanted_lock(request, in);
  const OwnRights own(request.rights());
  Locks::Range range;
  const int rc = locks_.test(
      wanted, [&](int access) { return reopen(handle.fd.get(), access); }, range);
  if (rc != 0) return request.reply_error(rc);
  fuse_lk_out out{};
  out.lk = {range.start, range.end, static_cast<std::uint32_t>(range.type),
            static_cast<std::uint32_t>(range.pid)};
  request.reply(out);
}

void Loopback::setlk(Request& request) {
  const bool wait = request.opcode() == FUSE_SETLKW;
  const auto in = request.body<fuse_lk_in>();
  const auto& handle = Handle::of(in.fh);
  const auto type = static_cast<short>(in.lk.type);
  const std::function<void()> go_slow = [&] { request.go_slow(); };
  const auto* if_waiting = wait ? &go_slow : nullptr;
  int rc = 0;
  if ((in.lk_flags & FUSE_LK_FLOCK) != 0) {
    const int operation = type == F_UNLCK ? LOCK_UN : type == F_RDLCK ? LOCK_SH : LOCK_EX;
    rc = locks_.flock(handle.fd.get(), operation, request.header().unique, if_waiting);
  } else {
    const auto wanted = wanted_lock(request, in);
    const OwnRights own(request.rights());
    rc = locks_.set(
        wanted, [&](int access) { return reopen(handle.fd.get(), access); }, if_waiting);
  }
  // The lock's holder must see what others wrote before.
  if (rc == 0 && type != F_UNLCK && io_modes_.keeps_pages(handle.node)) {
    request.go_slow();
    request.drop_pages(handle.node);
  }
  request.reply_error(rc);
}

void Loopback::fsync(Request& request) {
  const auto in = request.body<fuse_fsync_in>();
  request.go_slow();
  const int fd = Handle::of(in.fh).fd.get();
  request.reply_error(errno_if(
      ((in.fsync_flags & FUSE_FSYNC_FDATASYNC) != 0 ? ::fdatasync(fd) : ::fsync(fd)) != 0));
}

void Loopback::lseek(Request& request) {
  const auto in = request.body<fuse_lseek_in>();
  const off_t at = ::lseek(Handle::of(in.fh).fd.get(), static_cast<off_t>(in.offset),
                           static_cast<int>(in.whence));
  if (at < 0) return request.reply_error(errno);
  fuse_lseek_out out{};
  out.offset = static_cast<std::uint64_t>(at);
  request.reply(out);
}

void Loopback::fallocate(Request& request) {
  const auto in = request.body<fuse_fallocate_in>();
  request.go_slow();
  request.reply_error(
      errno_if(::fallocate(Handle::of(in.fh).fd.get(), static_cast<int>(in.mode),
                           static_cast<off_t>(in.offset), static_cast<off_t>(in.length)) != 0));
}

void Loopback::copy_file_range(Request& request) {
  const auto in = request.body<fuse_copy_file_range_in>();
  request.go_slow();
  auto& from = Handle::of(in.fh_in);
  auto& to = Handle::of(in.fh_out);
  auto from_offset = static_cast<off_t>(in.off_in);
  auto to_offset = static_cast<off_t>(in.off_out);
  // The answer's size field has 32 bits.
  const ssize_t n =
      ::copy_file_range(from.fd.get(), &from_offset, to.fd.get(), &to_offset,
                        std::min<std::uint64_t>(in.len, 1U << 30), static_cast<unsigned>(in.flags));
  if (n < 0) return request.reply_error(errno);
  ++from.reads;
  from.read_bytes += n;
  ++to.writes;
  to.write_bytes += n;
  fuse_write_out out{};
  out.size = static_cast<std::uint32_t>(n);
  request.reply(out);
}

// What lsattr and chattr need; others carry pointers or are for devices.
void Loopback::ioctl(Request& request) {
  const auto in = request.body<fuse_ioctl_in>();
  const bool known = in.cmd == FS_IOC_GETFLAGS || in.cmd == FS_IOC_SETFLAGS ||
                     in.cmd == FS_IOC_FSGETXATTR || in.cmd == FS_IOC_FSSETXATTR ||
                     in.cmd == FS_IOC_GETVERSION;
  if (!known || in.fh == 0) return request.reply_error(ENOTTY);
  alignas(8) char data[128] = {};
  const auto given = request.rest(sizeof(in)).substr(0, sizeof(data));
  std::memcpy(data, given.data(), given.size());
  const int result = ::ioctl(Handle::of(in.fh).fd.get(), in.cmd, data);
  if (result < 0) return request.reply_error(errno);
  fuse_ioctl_out out{};
  out.result = result;
  const std::size_t size = std::min<std::size_t>(in.out_size, sizeof(data));
  std::memcpy(request.out(), &out, sizeof(out));
  std::memcpy(request.out() + sizeof(out), data, size);
  request.reply_bytes(request.out(), sizeof(out) + size);
}

void Loopback::opendir(Request& request) {
  File file;
  Fd fd;
  int rc = reach(request, request.node(), file);
  if (rc == 0) {
    fd = reopen(file->get(), O_RDONLY | O_DIRECTORY);
    rc = errno_if(!fd);
  }
  log(request, Op::opendir, rc, path_of(request.node()));
  if (rc != 0) return request.reply_error(rc);
  auto handle = std::make_unique<Handle>();
  handle->fd = std::move(fd);
  handle->node = request.node();
  nodes_.add_handle(request.node());
  fuse_open_out out{};
  out.fh = handles_.add(std::move(handle)).fh();
  request.reply(out);
}

void Loopback::readdir(Request& request) {
  const auto in = request.body<fuse_read_in>();
  auto& handle = Handle::of(in.fh);
  const std::lock_guard lock(handle.mutex);
  const auto offset = static_cast<std::int64_t>(in.offset);
  if (offset != handle.dir_offset && ::lseek(handle.fd.get(), offset, SEEK_SET) < 0)
    return request.reply_error(errno);
  handle.dir_offset = offset;
  const auto device = nodes_.key(handle.node).device;
  const std::size_t room = std::min<std::size_t>(in.size, kMaxData);
  std::size_t used = 0;
  alignas(8) char raw[16384];
  // An entry grows by a third at most (24 bytes to 32) in the protocol's form, so all of them fit.
  const long n =
      ::syscall(SYS_getdents64, handle.fd.get(), raw, std::min(sizeof(raw), room / 4 * 3));
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
    char* to = request.out() + used;
    std::memset(to, 0, size);
    std::memcpy(to, &out, FUSE_NAME_OFFSET);
    std::memcpy(to + FUSE_NAME_OFFSET, name, length);
    used += size;
    handle.dir_offset = entry.next;
    at += entry.length;
  }
  request.reply_bytes(request.out(), used);
}

}  // namespace heddle::loopback
