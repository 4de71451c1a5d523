// SPDX-License-Identifier: MIT
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include "record/loopback/loopback.hpp"

#ifndef RWF_NOAPPEND
#define RWF_NOAPPEND 0x20  // Linux 6.9
#endif

namespace heddle::loopback {
namespace {

// O_DIRECT is not handed on: our buffers are not the caller's, and their alignment is no matter of
// his. Neither is O_NONBLOCK etc.: only regular files are opened here.
constexpr int kPassedFlags = O_ACCMODE | O_APPEND | O_TRUNC | O_SYNC | O_DSYNC | O_NOATIME;

int errno_if(bool failed) { return failed ? errno : 0; }

/// How much of `data` a killed worker has appended to the file, which had `offset` bytes before.
std::size_t appended_already(int fd, std::uint64_t offset, std::string_view data) {
  struct statx st {};
  if (stat_at(fd, "", AT_EMPTY_PATH, st) != 0 || st.stx_size <= offset) return 0;
  const auto there = std::min<std::size_t>(st.stx_size - offset, data.size());
  const Fd own(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!own) return there;
  std::string text(there, '\0');
  const auto begins_at = [&](std::uint64_t at) {
    const ssize_t n = ::pread(own.get(), text.data(), there, static_cast<off_t>(at));
    return n == static_cast<ssize_t>(there) && data.starts_with(text);
  };
  // The offset is where the kernel takes the end to be: another process may have moved it.
  return begins_at(offset) || begins_at(st.stx_size - there) ? there : 0;
}

/// An execute-only program is read by the kernel, not by its user: exec needs X alone.
int open_as_exec(const Target& target, CallerRights& rights, Request& request) {
  if (::faccessat(target.dir(), target.name(), X_OK, AT_EACCESS) != 0) return -1;
  rights.assume_own();
  const int fd = ::openat(target.dir(), target.name(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  rights.assume(request);
  return fd;
}

}  // namespace

/// Takes off what a killed worker has created and not answered for: O_EXCL would find it there, and
/// its mode may forbid the caller to open it. The kernel knows no such file, or it would not create
/// it; so whatever stands in our table is that worker's.
bool Loopback::remove_half_made(const Request& request, const Place& place) {
  struct statx st {};
  const bool removed = stat_at(place.dir(), place.name(), AT_SYMLINK_NOFOLLOW, st) == 0 &&
                       S_ISREG(st.stx_mode) && st.stx_size == 0 && st.stx_nlink == 1 &&
                       st.stx_uid == request.header().uid &&
                       ::unlinkat(place.dir(), place.name(), 0) == 0;
  if (removed) ++memory_.slots.decided();
  return removed;
}

void Loopback::log_open(Request& request, trace::Event& event, Handle* opened) {
  if (opened) event.handle = opened->number;
  log_event(request, event);
  if (!opened) return;
  opened->exe = event.exe.empty() ? nullptr : event.exe.data();
  opened->pid = event.pid;
}

void Loopback::open(Request& request, CallerRights& rights) {
  const auto in = request.body<fuse_open_in>();
  const bool for_exec = (in.flags & kOpenForExec) != 0;
  std::optional<Target> target;
  struct statx st {};
  Fd fd;
  int rc = reach(request.node(), target);
  const auto path = nodes_.path(request.node());
  if (rc == 0) {
    const int flags = static_cast<int>(in.flags) & kPassedFlags;
    fd.reset(::openat(target->dir(), target->name(),
                      flags | O_CLOEXEC | (target->nofollow() != 0 ? O_NOFOLLOW : 0)));
    rc = errno_if(!fd);
    if (rc == EACCES && for_exec) {
      fd.reset(open_as_exec(*target, rights, request));
      if (fd) rc = 0;
    }
  }
  if (rc == 0) rc = stat_at(fd.get(), "", AT_EMPTY_PATH, st);
  if (rc == 0 && target->fd() < 0 && file_key(st) != nodes_.key(request.node())) rc = ESTALE;
  if (rc == ESTALE) return request.reply_error(rc);  // the walk begins anew and asks us again
  fuse_open_out out{};
  Handle* opened = nullptr;
  if (rc == 0) {
    // Kept pages are right as long as nobody changed the file since they were read.
    // When the open comes again, a dead worker may have noted what the kernel does not have yet.
    const bool same = nodes_.same_content(request.node(), content_stamp(st));
    if ((in.flags & O_TRUNC) == 0 && same && !request.is_resent())
      out.open_flags |= FOPEN_KEEP_CACHE;
    if ((in.flags & O_ACCMODE) == O_RDONLY) out.open_flags |= FOPEN_NOFLUSH;
    opened = &handles_.add(
        std::move(fd),
        {request.node(), request.tid(), path ? std::string_view(*path) : std::string_view(), true,
         (in.flags & O_APPEND) != 0},
        request.progress().opened);
    nodes_.add_handle(request.node(), opened->fd);
    out.fh = opened->fh();
  }
  if (log_.on()) {
    trace::Event event;
    event.op = for_exec ? Op::exec : Op::open;
    event.error = rc;
    event.path = path ? std::string_view(*path) : std::string_view();
    event.flags = in.flags & ~static_cast<std::uint32_t>(kOpenForExec | O_LARGEFILE | 0100000);
    log_open(request, event, opened);
  }
  if (rc != 0) return request.reply_error(rc);
  request.reply(out);
}

void Loopback::create(Request& request, CallerRights& rights, bool nameless) {
  const auto in = request.body<fuse_create_in>();
  const auto name = request.name(sizeof(in));
  const auto path = nameless ? nodes_.path(request.node()) : nodes_.path(request.node(), name);
  if (!path) return request.reply_error(ENOENT);
  rights.set_umask(in.umask);
  const Place place(*path);
  const int flags =
      (static_cast<int>(in.flags) & (kPassedFlags | O_EXCL)) | (nameless ? O_TMPFILE : O_CREAT);
  using Stage = RequestProgress::Stage;
  auto& stage = request.progress().stage;
  const bool again = stage.exchange(Stage::acting) != Stage::taken && !nameless;
  const auto open_new = [&] {
    return Fd(::openat(place.dir(), place.name(), flags | O_CLOEXEC | O_NOFOLLOW, in.mode));
  };
  if (again && (flags & O_EXCL) != 0) remove_half_made(request, place);
  Fd fd = open_new();
  if (!fd && errno == EACCES && again && remove_half_made(request, place)) fd = open_new();
  int rc = errno_if(!fd);
  if (rc != 0) stage = Stage::taken;  // what is there now is not ours
  struct statx st {};
  if (rc == 0) rc = stat_at(fd.get(), "", AT_EMPTY_PATH, st);
  fuse_entry_out entry{};
  fuse_open_out out{};
  Handle* opened = nullptr;
  if (rc == 0) {
    const auto key = file_key(st);
    const auto node = nameless ? nodes_.bind_nameless(key) : nodes_.bind(request.node(), name, key);
    request.progress().bound.store(node, std::memory_order_release);
    entry = entry_out(node, st);
    opened =
        &handles_.add(std::move(fd), {node, request.tid(), *path, true, (in.flags & O_APPEND) != 0},
                      request.progress().opened);
    nodes_.add_handle(node, opened->fd);
    out.fh = opened->fh();
  }
  if (log_.on()) {
    trace::Event event;
    event.op = Op::create;
    event.error = rc;
    event.path = *path;
    event.flags = (in.flags & ~static_cast<std::uint32_t>(O_LARGEFILE | 0100000)) |
                  (nameless ? static_cast<std::uint32_t>(O_TMPFILE) : 0U);
    event.mode = in.mode & 07777 & ~in.umask;
    log_open(request, event, opened);
  }
  if (rc != 0) return request.reply_error(rc);
  request.reply(entry, out);
}

void Loopback::tell_io(Request& request, Op op, const Handle& handle, std::int64_t offset,
                       std::int64_t bytes, int error) {
  if (!log_.each_io() || !log_.on()) return;
  trace::Event event;
  event.op = op;
  event.error = error;
  event.path = handle.path();
  event.handle = handle.number;
  event.offset = offset;
  event.count = 1;
  event.bytes = bytes;
  log_event(request, event);
}

void Loopback::read(Request& request, ReplyBuffer& buffer) {
  const auto in = request.body<fuse_read_in>();
  auto& handle = Handle::of(in.fh);
  const std::size_t size = std::min<std::size_t>(in.size, kMaxData);
  std::size_t done = 0;
  int rc = 0;
  // A short answer means end of file to the kernel.
  while (done < size) {
    const ssize_t n =
        ::pread(handle.fd, buffer.out() + done, size - done, static_cast<off_t>(in.offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && done == 0) rc = errno;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  ++handle.reads;
  handle.read_bytes += static_cast<std::int64_t>(done);
  tell_io(request, Op::read, handle, static_cast<std::int64_t>(in.offset),
          static_cast<std::int64_t>(done), rc);
  if (rc != 0) return request.reply_error(rc);
  request.reply_bytes(buffer.out(), done);
}

void Loopback::write(Request& request, CallerRights& rights) {
  const auto in = request.body<fuse_write_in>();
  auto& handle = Handle::of(in.fh);
  const auto data = request.rest(sizeof(in)).substr(0, in.size);
  const bool of_pages = (in.write_flags & FUSE_WRITE_CACHE) != 0;
  const bool append = (in.flags & O_APPEND) != 0;
  if (!of_pages && append != handle.append) {  // fcntl(F_SETFL)
    const std::lock_guard lock(handle.mutex);
    const int flags = ::fcntl(handle.fd, F_GETFL);
    ::fcntl(handle.fd, F_SETFL, append ? flags | O_APPEND : flags & ~O_APPEND);
    handle.append = append;
  }
  std::size_t done = 0;
  int rc = 0;
  if (append && !of_pages) {
    if (request.progress().stage == RequestProgress::Stage::acting) {
      rights.assume_own();
      done = appended_already(handle.fd, in.offset, data);
      rights.assume(request);
      if (done > 0) ++memory_.slots.decided();
    }
    request.progress().stage = RequestProgress::Stage::acting;
  }
  while (done < data.size()) {
    const iovec part{const_cast<char*>(data.data()) + done, data.size() - done};
    const auto offset = static_cast<off_t>(in.offset + done);
    // Pages of a shared mapping go where they belong, also through an O_APPEND descriptor.
    ssize_t n = of_pages && handle.append
                    ? ::pwritev2(handle.fd, &part, 1, offset, RWF_NOAPPEND)
                    : ::pwrite(handle.fd, part.iov_base, part.iov_len, offset);
    if (n < 0 && errno == EOPNOTSUPP && of_pages && handle.append) {
      const std::lock_guard lock(handle.mutex);
      const int flags = ::fcntl(handle.fd, F_GETFL);
      ::fcntl(handle.fd, F_SETFL, flags & ~O_APPEND);
      n = ::pwrite(handle.fd, part.iov_base, part.iov_len, offset);
      ::fcntl(handle.fd, F_SETFL, flags);
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && done == 0) rc = errno;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  ++handle.writes;
  handle.write_bytes += static_cast<std::int64_t>(done);
  tell_io(request, Op::write, handle, static_cast<std::int64_t>(in.offset),
          static_cast<std::int64_t>(done), rc);
  if (rc != 0) return request.reply_error(rc);
  fuse_write_out out{};
  out.size = static_cast<std::uint32_t>(done);
  request.reply(out);
}

void Loopback::flush(Request& request) {
  // close(2) is where network file systems tell of a full disk; ours stays open.
  const auto& handle = Handle::of(request.body<fuse_flush_in>().fh);
  const int copy = ::dup(handle.fd);
  request.reply_error(copy >= 0 && ::close(copy) != 0 ? errno : 0);
}

void Loopback::tell_closed(Handle& handle, Request* request) {
  if (handle.number < 0 || !log_.on()) return;
  trace::Event event;
  event.tid = handle.tid;
  event.pid = handle.pid;
  if (const char* exe = handle.exe) event.exe = exe;
  event.path = handle.path();
  event.handle = handle.number;
  const auto tell = [&](Op op, std::int64_t count, std::int64_t bytes) {
    event.op = op;
    event.count = count;
    event.bytes = bytes;
    log_.add(event,
             request ? Telling{&request->progress().told, request->next_event()} : Telling{});
  };
  if (!log_.each_io() && handle.reads > 0) tell(Op::read, handle.reads, handle.read_bytes);
  if (!log_.each_io() && handle.writes > 0) tell(Op::write, handle.writes, handle.write_bytes);
  tell(Op::close, -1, -1);
}

void Loopback::release(Request& request) {
  const auto fh = request.body<fuse_release_in>().fh;
  if (!handles_.has(fh)) return request.reply_error(0);  // closed by a worker that was killed
  auto& handle = Handle::of(fh);
  tell_closed(handle, &request);
  nodes_.remove_handle(handle.node, handle.fd);
  handles_.remove(handle);
  request.reply_error(0);
}

void Loopback::fsync(Request& request) {
  const auto in = request.body<fuse_fsync_in>();
  const int fd = Handle::of(in.fh).fd;
  request.reply_error(errno_if(
      ((in.fsync_flags & FUSE_FSYNC_FDATASYNC) != 0 ? ::fdatasync(fd) : ::fsync(fd)) != 0));
}

void Loopback::lseek(Request& request) {
  const auto in = request.body<fuse_lseek_in>();
  const off_t at =
      ::lseek(Handle::of(in.fh).fd, static_cast<off_t>(in.offset), static_cast<int>(in.whence));
  if (at < 0) return request.reply_error(errno);
  fuse_lseek_out out{};
  out.offset = static_cast<std::uint64_t>(at);
  request.reply(out);
}

void Loopback::fallocate(Request& request) {
  const auto in = request.body<fuse_fallocate_in>();
  request.reply_error(
      errno_if(::fallocate(Handle::of(in.fh).fd, static_cast<int>(in.mode),
                           static_cast<off_t>(in.offset), static_cast<off_t>(in.length)) != 0));
}

void Loopback::copy_file_range(Request& request) {
  const auto in = request.body<fuse_copy_file_range_in>();
  auto& from = Handle::of(in.fh_in);
  auto& to = Handle::of(in.fh_out);
  auto from_offset = static_cast<off_t>(in.off_in);
  auto to_offset = static_cast<off_t>(in.off_out);
  // The answer's size field has 32 bits.
  const ssize_t n =
      ::copy_file_range(from.fd, &from_offset, to.fd, &to_offset,
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
void Loopback::ioctl(Request& request, ReplyBuffer& buffer) {
  const auto in = request.body<fuse_ioctl_in>();
  const bool known = in.cmd == FS_IOC_GETFLAGS || in.cmd == FS_IOC_SETFLAGS ||
                     in.cmd == FS_IOC_FSGETXATTR || in.cmd == FS_IOC_FSSETXATTR ||
                     in.cmd == FS_IOC_GETVERSION;
  if (!known || in.fh == 0) return request.reply_error(ENOTTY);
  alignas(8) char data[128] = {};
  const auto given = request.rest(sizeof(in)).substr(0, sizeof(data));
  std::memcpy(data, given.data(), given.size());
  const int result = ::ioctl(Handle::of(in.fh).fd, in.cmd, data);
  if (result < 0) return request.reply_error(errno);
  fuse_ioctl_out out{};
  out.result = result;
  const std::size_t size = std::min<std::size_t>(in.out_size, sizeof(data));
  std::memcpy(buffer.out(), &out, sizeof(out));
  std::memcpy(buffer.out() + sizeof(out), data, size);
  request.reply_bytes(buffer.out(), sizeof(out) + size);
}

}  // namespace heddle::loopback
