// SPDX-License-Identifier: MIT
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "record/loopback/loopback.hpp"

namespace heddle::loopback {
namespace {

// Not O_DIRECT: the buffers are ours, and need not be aligned. Not O_NONBLOCK and the like: the
// files are regular.
constexpr int kPassedFlags = O_ACCMODE | O_APPEND | O_TRUNC | O_SYNC | O_DSYNC | O_NOATIME;
constexpr std::uint32_t kHiddenFlags = kOpenForExec | O_LARGEFILE | 0100000;
constexpr std::size_t kMuchData = 256 * 1024;

/// struct linux_dirent64 of getdents64(2).
struct RawEntry {
  std::uint64_t ino;
  std::int64_t next;  ///< offset of the next entry
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

void log_open(Loopback& tree, Request& request, trace::Event& event, Handle* opened) {
  event.tid = request.tid();
  if (opened) event.handle = opened->number;
  tree.access_log.add(event);
  if (!opened) return;
  opened->exe = event.exe;
  opened->pid = event.pid;
}

Handle& add_handle(Loopback& tree, Request& request, Fd fd, std::uint64_t node, std::uint32_t flags,
                   std::string_view path, fuse_open_out& out) {
  auto handle = std::make_unique<Handle>();
  {
    const OwnRights own(request.rights());
    handle->mode = tree.io_modes.open(node, fd.get(), static_cast<int>(flags), out);
  }
  handle->fd = std::move(fd);
  handle->node = node;
  handle->number = tree.handles.next_number();
  handle->access = static_cast<int>(flags) & O_ACCMODE;
  handle->append = (flags & O_APPEND) != 0;
  handle->tid = request.tid();
  handle->path = path;
  tree.nodes.count_handle(node, 1);
  Handle& added = tree.handles.add(std::move(handle));
  out.fh = added.fh();
  return added;
}

/// Opens a node's file as the caller. 0 or an errno.
int open_file(Loopback& tree, Request& request, const File& file, std::uint32_t flags, Fd& fd) {
  // The kernel opens other types itself; opening a FIFO would block this thread.
  if (!S_ISREG(tree.nodes.key(request.node()).type)) return EINVAL;
  const bool for_exec = (flags & kOpenForExec) != 0;
  if (for_exec) {
    // The kernel checks only that some x bit is set, not the caller's right.
    if (const int rc = may_access(request, file->get(), X_OK); rc != 0) return rc;
    if (has_flag(file->get(), ST_NOEXEC)) return EACCES;
  }
  int rc = 0;
  {
    std::optional<IoModes::Change> change;
    if ((flags & O_TRUNC) != 0) change.emplace(tree.io_modes, request.node(), file->get());
    fd = tree.reopen(file->get(), static_cast<int>(flags) & kPassedFlags);
    rc = errno_if(!fd);
  }
  if (rc != EACCES || !for_exec) return rc;
  // A program that may be executed but not read: only the kernel reads it.
  const OwnRights own(request.rights());
  fd = tree.reopen(file->get(), O_RDONLY);
  return errno_if(!fd);
}

int open(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_open_in>();
  File file;
  struct statx st {};
  Fd fd;
  int rc = tree.reach(request, file);
  if (rc == 0) rc = open_file(tree, request, file, in.flags, fd);
  if (rc == 0) rc = stat_fd(fd.get(), st);
  if (rc == ESTALE) return rc;  // the kernel walks the path again
  const auto path = tree.nodes.path(request.node());
  fuse_open_out out{};
  Handle* opened = nullptr;
  if (rc == 0) {
    opened = &add_handle(tree, request, std::move(fd), request.node(), in.flags, path, out);
    if (tree.stat_calls.opens_unseen(request.tid(), request.node()))
      request.forget_attributes(request.node());
    const bool same = tree.nodes.same_content(request.node(), st);
    if ((in.flags & O_TRUNC) == 0 && same && opened->mode == IoModes::Mode::kept)
      out.open_flags |= FOPEN_KEEP_CACHE;
  }
  if (tree.access_log.on()) {
    trace::Event event{.op = (in.flags & kOpenForExec) != 0 ? Op::exec : Op::open,
                       .error = rc,
                       .path = path,
                       .flags = in.flags & ~kHiddenFlags};
    log_open(tree, request, event, opened);
  }
  if (rc == 0 && (in.flags & kOpenForExec) != 0) request.rights().forget_callers();
  return rc != 0 ? rc : request.reply(out);
}

/// Creates the file, or opens one that a process outside created since the lookup. 0 or an errno.
int create_file(Loopback& tree, const File& parent, const std::string& name, int flags,
                const fuse_create_in& in, Fd& fd) {
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    fd.reset(::openat(parent->get(), ".", flags | O_CLOEXEC, in.mode));
    return errno_if(!fd);
  }
  for (int tries = 0; tries < 100; ++tries) {
    // O_EXCL opens no existing file: a FIFO, or a link to one, would block this thread.
    fd = tree.open_at(parent->get(), name.c_str(), flags | O_CREAT | O_EXCL | O_NOFOLLOW, in.mode);
    if (fd || errno != EEXIST || (in.flags & O_EXCL) != 0) return errno_if(!fd);
    struct statx st {};
    const Fd there(::openat(parent->get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!there && errno == ENOENT) continue;
    if (!there || stat_fd(there.get(), st) != 0) return errno;
    if (is_of_proc(there.get())) return EACCES;
    if (!S_ISREG(st.stx_mode)) return ESTALE;  // the kernel walks again and opens it itself
    fd = tree.reopen(there.get(), flags);
    return errno_if(!fd);
  }
  return ESTALE;
}

int create(Loopback& tree, Request& request) {
  const bool nameless = request.opcode() == kOpTmpfile;
  const auto in = request.body<fuse_create_in>();
  const std::string name(nameless ? "" : request.name(sizeof(in)));
  File parent;
  Fd fd;
  struct statx st {};
  int rc = tree.reach(request, parent);
  request.rights().set_umask(in.umask);
  const int flags = (static_cast<int>(in.flags) & kPassedFlags) | (nameless ? O_TMPFILE : 0);
  if (rc == 0) rc = create_file(tree, parent, name, flags, in, fd);
  Fd node_fd;
  if (rc == 0) {
    node_fd = tree.reopen(fd.get(), O_PATH);
    rc = node_fd ? stat_fd(fd.get(), st) : errno;
  }
  if (rc == ESTALE) return rc;
  const auto path = tree.nodes.path(request.node(), name);
  fuse_entry_out entry{};
  fuse_open_out out{};
  Handle* opened = nullptr;
  if (rc == 0) {
    entry = tree.entry_out(fd.get(), st);
    entry.nodeid = nameless
                       ? tree.nodes.bind_nameless(file_key(st), std::move(node_fd))
                       : tree.nodes.bind(request.node(), name, file_key(st), std::move(node_fd));
    opened = &add_handle(tree, request, std::move(fd), entry.nodeid, in.flags, path, out);
  }
  if (tree.access_log.on()) {
    trace::Event event{.op = Op::create,
                       .error = rc,
                       .path = path,
                       .flags = (in.flags & ~kHiddenFlags) |
                                (nameless ? static_cast<std::uint32_t>(O_TMPFILE) : 0U),
                       .mode = in.mode & 07777 & ~in.umask};
    log_open(tree, request, event, opened);
  }
  if (rc != 0) return rc;
  std::memcpy(request.out(), &entry, sizeof(entry));
  std::memcpy(request.out() + sizeof(entry), &out, sizeof(out));
  return request.reply_bytes(request.out(), sizeof(entry) + sizeof(out));
}

/// Repeats a read or write until `size` bytes are done or no more can be. 0, or the first errno.
template <class Once>
int transfer(std::size_t size, std::size_t& done, Once once) {
  while (done < size) {
    const ssize_t n = once(done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && done == 0) return errno;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  return 0;
}

void log_io(Loopback& tree, Request& request, Op op, Handle& handle, std::uint64_t offset,
            std::size_t bytes, int error) {
  if (!tree.access_log.each_io() || !tree.access_log.on()) return;
  trace::Event event{.tid = request.tid(),
                     .op = op,
                     .error = error,
                     .path = handle.path,
                     .handle = handle.number,
                     .count = 1,
                     .bytes = static_cast<std::int64_t>(bytes),
                     .offset = static_cast<std::int64_t>(offset)};
  tree.access_log.add(event);
}

int read(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_read_in>();
  auto& handle = Handle::of(in.fh);
  const std::size_t size = std::min<std::size_t>(in.size, kMaxData);
  if (size > kMuchData && !request.few_callers()) request.go_slow();
  std::size_t done = 0;
  // The kernel takes a short answer for the end of the file.
  const int rc = transfer(size, done, [&](std::size_t at) {
    return ::pread(handle.fd.get(), request.out() + at, size - at,
                   static_cast<off_t>(in.offset + at));
  });
  log_io(tree, request, Op::read, handle, in.offset, done, rc);
  return rc != 0 ? rc : request.reply_bytes(request.out(), done);
}

int write(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_write_in>();
  auto& handle = Handle::of(in.fh);
  int fd = handle.fd.get();
  const auto data = request.rest(sizeof(in)).substr(0, in.size);
  if (data.size() > kMuchData && !request.few_callers()) request.go_slow();
  const bool of_pages = (in.write_flags & FUSE_WRITE_CACHE) != 0;
  const bool append = (in.flags & O_APPEND) != 0;
  if (!of_pages && append != handle.append) {  // fcntl(F_SETFL)
    const std::lock_guard lock(handle.mutex);
    const int flags = ::fcntl(fd, F_GETFL);
    ::fcntl(fd, F_SETFL, append ? flags | O_APPEND : flags & ~O_APPEND);
    handle.append = append;
  }
  // O_APPEND would move the pages of a shared mapping to the end of the file.
  Fd not_appending;
  int rc = 0;
  if (of_pages && handle.append) {
    const OwnRights own(request.rights());
    not_appending = tree.reopen(fd, O_WRONLY);
    rc = errno_if(!not_appending);
    fd = not_appending.get();
  }
  std::size_t done = 0;
  if (rc == 0) {
    // Ends before the answer: then the program may close the file.
    const IoModes::Change change(tree.io_modes, handle.node, handle.fd.get(), of_pages);
    if (change.collides()) tree.access_log.add_collision(handle.path);
    rc = transfer(data.size(), done, [&](std::size_t at) {
      return ::pwrite(fd, data.data() + at, data.size() - at, static_cast<off_t>(in.offset + at));
    });
  }
  log_io(tree, request, Op::write, handle, in.offset, done, rc);
  if (rc != 0) return rc;
  fuse_write_out out{};
  out.size = static_cast<std::uint32_t>(done);
  return request.reply(out);
}

int flush(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_flush_in>();
  const auto& handle = Handle::of(in.fh);
  tree.locks.close_owner(handle.node, in.lock_owner);
  if (handle.access == O_RDONLY) return 0;
  // Network file systems report a full disk at close(2).
  const int copy = ::dup(handle.fd.get());
  return copy >= 0 && ::close(copy) != 0 ? errno : 0;
}

void log_closed(Loopback& tree, Handle& handle) {
  if (handle.number < 0 || !tree.access_log.on()) return;
  trace::Event event{.pid = handle.pid,
                     .tid = handle.tid,
                     .op = Op::close,
                     .path = handle.path,
                     .exe = handle.exe,
                     .handle = handle.number};
  tree.access_log.add(event);
}

int release(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_release_in>();
  auto& handle = Handle::of(in.fh);
  log_closed(tree, handle);
  // The open file may live on: passthrough uses it for other opens' reads and writes.
  if ((in.release_flags & FUSE_RELEASE_FLOCK_UNLOCK) != 0) (void)::flock(handle.fd.get(), LOCK_UN);
  tree.locks.close_handle(handle.node, &handle);
  tree.io_modes.close(handle.node, handle.mode);
  tree.nodes.count_handle(handle.node, -1);
  tree.handles.remove(handle);
  return 0;
}

int getlk(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_lk_in>();
  const auto& handle = Handle::of(in.fh);
  const auto wanted = wanted_lock(request, in);
  const OwnRights own(request.rights());
  LockedRange range;
  const int rc = tree.locks.test(
      wanted, [&](int access) { return tree.reopen(handle.fd.get(), access); }, range);
  if (rc != 0) return rc;
  fuse_lk_out out{};
  out.lk = {range.start, range.end, static_cast<std::uint32_t>(range.type),
            static_cast<std::uint32_t>(range.pid)};
  return request.reply(out);
}

int setlk(Loopback& tree, Request& request) {
  const bool wait = request.opcode() == FUSE_SETLKW;
  const auto in = request.body<fuse_lk_in>();
  const auto& handle = Handle::of(in.fh);
  const auto type = static_cast<short>(in.lk.type);
  const std::function<void()> go_slow = [&] { request.go_slow(); };
  const auto* if_waiting = wait ? &go_slow : nullptr;
  int rc = 0;
  if ((in.lk_flags & FUSE_LK_FLOCK) != 0) {
    const int operation = type == F_UNLCK ? LOCK_UN : type == F_RDLCK ? LOCK_SH : LOCK_EX;
    rc = tree.locks.flock(handle.fd.get(), operation, request.header().unique, if_waiting);
  } else {
    const auto wanted = wanted_lock(request, in);
    const OwnRights own(request.rights());
    rc = tree.locks.set(
        wanted, [&](int access) { return tree.reopen(handle.fd.get(), access); }, if_waiting);
  }
  // The new holder must see what the holders before it wrote.
  if (rc == 0 && type != F_UNLCK && tree.io_modes.keeps_pages(handle.node)) {
    request.go_slow();
    request.drop_pages(handle.node);
  }
  return rc;
}

int interrupt(Loopback& tree, Request& request) {
  tree.locks.interrupt(request.body<fuse_interrupt_in>().unique);
  return kAnswered;
}

int fsync(Loopback&, Request& request) {
  const auto in = request.body<fuse_fsync_in>();
  request.go_slow();
  const int fd = Handle::of(in.fh).fd.get();
  return errno_if(((in.fsync_flags & FUSE_FSYNC_FDATASYNC) != 0 ? ::fdatasync(fd) : ::fsync(fd)) !=
                  0);
}

int lseek(Loopback&, Request& request) {
  const auto in = request.body<fuse_lseek_in>();
  const off_t at = ::lseek(Handle::of(in.fh).fd.get(), static_cast<off_t>(in.offset),
                           static_cast<int>(in.whence));
  if (at < 0) return errno;
  fuse_lseek_out out{};
  out.offset = static_cast<std::uint64_t>(at);
  return request.reply(out);
}

int fallocate(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_fallocate_in>();
  request.go_slow();
  const auto& handle = Handle::of(in.fh);
  const IoModes::Change change(tree.io_modes, handle.node, handle.fd.get());
  return errno_if(::fallocate(handle.fd.get(), static_cast<int>(in.mode),
                              static_cast<off_t>(in.offset), static_cast<off_t>(in.length)) != 0);
}

int copy_file_range(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_copy_file_range_in>();
  request.go_slow();
  auto& from = Handle::of(in.fh_in);
  auto& to = Handle::of(in.fh_out);
  auto from_offset = static_cast<off_t>(in.off_in);
  auto to_offset = static_cast<off_t>(in.off_out);
  ssize_t n = 0;
  int rc = 0;
  {
    const IoModes::Change change(tree.io_modes, to.node, to.fd.get());
    // The answer's size field has 32 bits.
    n = ::copy_file_range(from.fd.get(), &from_offset, to.fd.get(), &to_offset,
                          std::min<std::uint64_t>(in.len, 1U << 30),
                          static_cast<unsigned>(in.flags));
    rc = errno_if(n < 0);
  }
  if (rc != 0) return rc;
  log_io(tree, request, Op::read, from, in.off_in, static_cast<std::size_t>(n), 0);
  log_io(tree, request, Op::write, to, in.off_out, static_cast<std::size_t>(n), 0);
  fuse_write_out out{};
  out.size = static_cast<std::uint32_t>(n);
  return request.reply(out);
}

/// For lsattr, chattr and labels; other ioctls carry pointers or are for devices.
int ioctl(Loopback&, Request& request) {
  const auto in = request.body<fuse_ioctl_in>();
  const bool known = in.cmd == FS_IOC_GETFLAGS || in.cmd == FS_IOC_SETFLAGS ||
                     in.cmd == FS_IOC_FSGETXATTR || in.cmd == FS_IOC_FSSETXATTR ||
                     in.cmd == FS_IOC_GETVERSION || in.cmd == FS_IOC_GETFSLABEL;
  if (!known || in.fh == 0) return ENOTTY;
  alignas(8) char data[FSLABEL_MAX] = {};
  const auto given = request.rest(sizeof(in)).substr(0, sizeof(data));
  std::memcpy(data, given.data(), given.size());
  const int result = ::ioctl(Handle::of(in.fh).fd.get(), in.cmd, data);
  if (result < 0) return errno;
  fuse_ioctl_out out{};
  out.result = result;
  const std::size_t size = std::min<std::size_t>(in.out_size, sizeof(data));
  std::memcpy(request.out(), &out, sizeof(out));
  std::memcpy(request.out() + sizeof(out), data, size);
  return request.reply_bytes(request.out(), sizeof(out) + size);
}

int opendir(Loopback& tree, Request& request) {
  File file;
  Fd fd;
  int rc = tree.reach(request, file);
  if (rc == 0) {
    // A shorter way than reopen(), of a directory that the caller may search.
    constexpr int kFlags = O_RDONLY | O_DIRECTORY;
    fd = tree.open_at(file->get(), ".", kFlags);
    if (!fd && errno == EACCES) fd = tree.reopen(file->get(), kFlags);
    rc = errno_if(!fd);
  }
  tree.log(request, Op::opendir, rc);
  if (rc != 0) return rc;
  auto handle = std::make_unique<Handle>();
  handle->fd = std::move(fd);
  handle->node = request.node();
  tree.nodes.count_handle(request.node(), 1);
  fuse_open_out out{};
  out.fh = tree.handles.add(std::move(handle)).fh();
  return request.reply(out);
}

int readdir(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_read_in>();
  auto& handle = Handle::of(in.fh);
  const std::lock_guard lock(handle.mutex);
  const auto offset = static_cast<std::int64_t>(in.offset);
  if (offset != handle.dir_offset && ::lseek(handle.fd.get(), offset, SEEK_SET) < 0) return errno;
  handle.dir_offset = offset;
  const auto device = tree.nodes.key(handle.node).device;
  const std::size_t room = std::min<std::size_t>(in.size, kMaxData);
  std::size_t used = 0;
  alignas(8) char raw[16384];
  // In the protocol's form an entry is at most a third longer (32 bytes for 24), so all fit.
  const long n =
      ::syscall(SYS_getdents64, handle.fd.get(), raw, std::min(sizeof(raw), room / 4 * 3));
  if (n < 0) return errno;
  for (long at = 0; at < n;) {
    RawEntry entry;
    std::memcpy(&entry, raw + at, kNameOffset);
    const char* name = raw + at + kNameOffset;
    const std::size_t length = std::strlen(name);
    const std::size_t size = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length);
    fuse_dirent out{};
    out.ino = tree.numbers.of(device, entry.ino);
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
  return request.reply_bytes(request.out(), used);
}

}  // namespace

void Loopback::close_all() {
  handles.each([this](Handle& handle) {
    log_closed(*this, handle);
    handle.number = -1;  // so that a later RELEASE logs nothing
  });
}

std::span<const Operation> file_operations() {
  static constexpr Operation kAll[] = {{FUSE_OPEN, open},
                                       {FUSE_CREATE, create},
                                       {kOpTmpfile, create},
                                       {FUSE_READ, read},
                                       {FUSE_WRITE, write},
                                       {FUSE_FLUSH, flush, Rights::any},
                                       {FUSE_RELEASE, release, Rights::any},
                                       {FUSE_RELEASEDIR, release, Rights::any},
                                       {FUSE_INTERRUPT, interrupt, Rights::any},
                                       {FUSE_FSYNC, fsync},
                                       {FUSE_FSYNCDIR, fsync},
                                       {FUSE_LSEEK, lseek},
                                       {FUSE_FALLOCATE, fallocate},
                                       {FUSE_COPY_FILE_RANGE, copy_file_range},
                                       {FUSE_GETLK, getlk},
                                       {FUSE_SETLK, setlk},
                                       {FUSE_SETLKW, setlk},
                                       {FUSE_IOCTL, ioctl},
                                       {FUSE_OPENDIR, opendir},
                                       {FUSE_READDIR, readdir, Rights::user}};
  return kAll;
}

}  // namespace heddle::loopback
