// SPDX-License-Identifier: MIT
#include "record/loopback/loopback.hpp"

#include <sys/statvfs.h>
#include <sys/sysmacros.h>

namespace heddle::loopback {
namespace {

// Long enough that a search through 500 folders asks for each once, short enough that a folder
// removed or moved by somebody outside (another rank's recorder) is not believed for long.
constexpr std::uint64_t kFolderEntrySeconds = 1;

FileKey root_key() {
  struct statx st {};
  (void)stat_at(AT_FDCWD, "/", 0, st);
  return file_key(st);
}

}  // namespace

int stat_at(int dir, const char* name, int flags, struct statx& st) {
  return ::statx(dir, name, flags | AT_STATX_SYNC_AS_STAT, STATX_BASIC_STATS | STATX_BTIME, &st) ==
                 0
             ? 0
             : errno;
}

Loopback::Loopback(AccessLog& log, LoopbackMemory& memory)
    : log_(log),
      memory_(memory),
      nodes_(memory, root_key()),
      numbers_(memory, root_key().device),
      handles_(memory.store) {
  // A worker may have died between its note of a handle here and there.
  handles_.each([this](Handle& handle) { nodes_.forget_handles(handle.node); });
  handles_.each([this](Handle& handle) { nodes_.add_handle(handle.node, handle.fd); });
}

void Loopback::take_over(Request& request) {
  auto& progress = request.progress();
  if (is_forget(request.opcode()))
    return request.opcode() == FUSE_FORGET ? forget(request) : batch_forget(request);
  progress.told = log_.told(progress.told);
  if (progress.stage == RequestProgress::Stage::done) return;
  if (const std::uint64_t fh = progress.opened; fh != 0 && handles_.has(fh)) {
    Handle& handle = Handle::of(fh);
    nodes_.remove_handle(handle.node, handle.fd);
    handles_.remove(handle);
  }
  progress.opened = 0;
  // Rather a look-up that is never forgotten than one forgotten twice.
  if (const std::uint64_t node = progress.bound.exchange(0); node != 0) nodes_.forget(node, 1);
}

bool Loopback::is_slow(const Request& request) {
  switch (request.opcode()) {
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
    case FUSE_FALLOCATE:
    case FUSE_COPY_FILE_RANGE:
      return true;
    case FUSE_READ:
      return request.body<fuse_read_in>().size > 256 * 1024;
    case FUSE_WRITE:
      return request.body<fuse_write_in>().size > 256 * 1024;
    default:
      return false;
  }
}

void Loopback::init(Request& request) {
  const auto in = request.body<fuse_init_in>();
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  if (in.major < FUSE_KERNEL_VERSION) return request.reply_error(EPROTO);
  if (in.major > FUSE_KERNEL_VERSION) return request.reply(out);  // it asks again, in our version
  out.max_readahead = in.max_readahead;
  // PARALLEL_DIROPS: else look-ups in one folder wait for each other. HANDLE_KILLPRIV_V2: we write
  // as the caller, so the real file loses its set-uid bit as it should, and the kernel need not
  // ask for security.capability before each write. DONT_MASK: default ACLs come before the umask.
  out.flags =
      in.flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ATOMIC_O_TRUNC | FUSE_DONT_MASK |
                  FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_HANDLE_KILLPRIV_V2 | FUSE_ASYNC_DIO);
  out.max_background = 64;
  out.congestion_threshold = 48;
  out.max_write = kMaxData;
  out.max_pages = kMaxData / 4096;
  out.time_gran = 1;
  request.reply(out);
}

void Loopback::log_event(Request& request, trace::Event& event) {
  event.tid = request.tid();
  log_.add(event, {&request.progress().told, request.next_event()});
}

void Loopback::log(Request& request, Op op, int error, std::string_view path,
                   std::string_view target) {
  if (!log_.on()) return;
  trace::Event event;
  event.op = op;
  event.error = error;
  event.path = path;
  event.target = target;
  log_event(request, event);
}

int Loopback::reach(std::uint64_t node, std::optional<Target>& target) const {
  if (auto path = nodes_.path(node)) {
    target.emplace(std::move(*path));
    return 0;
  }
  const int fd = nodes_.any_fd(node);
  if (fd < 0) return ESTALE;  // the kernel walks the path again
  target.emplace(fd);
  return 0;
}

int Loopback::stat_node(std::uint64_t node, struct statx& st) const {
  int rc = ESTALE;
  if (const auto path = nodes_.path(node)) {
    const Place place(*path);
    rc = stat_at(place.dir(), place.name(), AT_SYMLINK_NOFOLLOW, st);
    // Replaced by somebody outside: the caller means the file it had, if it holds it.
    if (rc == 0 && node != FUSE_ROOT_ID && file_key(st) != nodes_.key(node)) rc = ESTALE;
    if (rc == 0) return 0;
  }
  const int fd = nodes_.any_fd(node);
  return fd < 0 ? rc : stat_at(fd, "", AT_EMPTY_PATH, st);
}

void Loopback::fill_attr(const struct statx& st, fuse_attr& attr) {
  attr.ino = numbers_.of(file_key(st).device, st.stx_ino);
  attr.size = st.stx_size;
  attr.blocks = st.stx_blocks;
  attr.atime = static_cast<std::uint64_t>(st.stx_atime.tv_sec);
  attr.mtime = static_cast<std::uint64_t>(st.stx_mtime.tv_sec);
  attr.ctime = static_cast<std::uint64_t>(st.stx_ctime.tv_sec);
  attr.atimensec = st.stx_atime.tv_nsec;
  attr.mtimensec = st.stx_mtime.tv_nsec;
  attr.ctimensec = st.stx_ctime.tv_nsec;
  attr.mode = st.stx_mode;
  attr.nlink = st.stx_nlink;
  attr.uid = st.stx_uid;
  attr.gid = st.stx_gid;
  attr.rdev = encode_device(st.stx_rdev_major, st.stx_rdev_minor);
  attr.blksize = st.stx_blksize;
}

fuse_entry_out Loopback::entry_out(std::uint64_t node, const struct statx& st) {
  fuse_entry_out out{};
  out.nodeid = node;
  out.entry_valid = S_ISDIR(st.stx_mode) ? kFolderEntrySeconds : 0;
  fill_attr(st, out.attr);
  return out;
}

int Loopback::make_entry(Request& request, std::string_view name, const std::string& path,
                         Entry& entry) {
  const Place place(path);
  if (const int rc = stat_at(place.dir(), place.name(), AT_SYMLINK_NOFOLLOW, entry.st); rc != 0) {
    if (rc == ENOENT) nodes_.unbind(request.node(), name);
    return rc;
  }
  const auto node = nodes_.bind(request.node(), name, file_key(entry.st));
  request.progress().bound.store(node, std::memory_order_release);
  entry.out = entry_out(node, entry.st);
  return 0;
}

void Loopback::answer_made(Request& request, Op op, int rc, std::string_view name,
                           const std::string& path, std::int64_t mode, std::string_view target) {
  Entry entry;
  if (rc == 0) rc = make_entry(request, name, path, entry);
  if (log_.on()) {
    trace::Event event;
    event.op = op;
    event.error = rc;
    event.path = path;
    event.mode = mode;
    event.target = target;
    log_event(request, event);
  }
  if (rc != 0) return request.reply_error(rc);
  request.reply(entry.out);
}

void Loopback::statfs(Request& request) {
  std::optional<Target> target;
  struct statvfs st {};
  int rc = reach(request.node(), target);
  if (rc == 0) {
    // statvfs(2) takes no folder descriptor, and a path may be longer than PATH_MAX.
    const Fd fd(::openat(target->dir(), target->name(),
                         O_PATH | O_CLOEXEC | (target->fd() < 0 ? O_NOFOLLOW : 0)));
    rc = fd && ::fstatvfs(fd.get(), &st) == 0 ? 0 : errno;
  }
  if (rc != 0) return request.reply_error(rc);
  fuse_statfs_out out{};
  out.st.blocks = st.f_blocks;
  out.st.bfree = st.f_bfree;
  out.st.bavail = st.f_bavail;
  out.st.files = st.f_files;
  out.st.ffree = st.f_ffree;
  out.st.bsize = static_cast<std::uint32_t>(st.f_bsize);
  out.st.frsize = static_cast<std::uint32_t>(st.f_frsize);
  out.st.namelen = static_cast<std::uint32_t>(st.f_namemax);
  request.reply(out);
}

void Loopback::close_all() {
  handles_.each([this](Handle& handle) {
    tell_closed(handle, nullptr);
    handle.number = -1;  // once
  });
}

void Loopback::handle(Request& request, CallerRights& rights, ReplyBuffer& buffer) {
  const auto opcode = request.opcode();
  switch (opcode) {
    case FUSE_FORGET:
      return forget(request);
    case FUSE_BATCH_FORGET:
      return batch_forget(request);
    case FUSE_INIT:
      return init(request);
    case FUSE_DESTROY:
      return request.reply_error(0);
    case FUSE_FLUSH:
      return flush(request);
    case FUSE_RELEASE:
      return release(request);
    case FUSE_RELEASEDIR:
      return releasedir(request);
    default:
      break;
  }
  rights.assume(request);
  switch (opcode) {
    case FUSE_LOOKUP:
      return lookup(request);
    case FUSE_GETATTR:
      return getattr(request);
    case FUSE_SETATTR:
      return setattr(request);
    case FUSE_READLINK:
      return readlink(request);
    case FUSE_SYMLINK:
      return symlink(request);
    case FUSE_MKNOD:
      return mknod(request, rights);
    case FUSE_MKDIR:
      return mkdir(request, rights);
    case FUSE_UNLINK:
      return remove(request, 0);
    case FUSE_RMDIR:
      return remove(request, AT_REMOVEDIR);
    case FUSE_RENAME:
      return rename(request, request.body<fuse_rename_in>().newdir, 0, sizeof(fuse_rename_in));
    case FUSE_RENAME2: {
      const auto in = request.body<fuse_rename2_in>();
      return rename(request, in.newdir, in.flags, sizeof(in));
    }
    case FUSE_LINK:
      return link(request);
    case FUSE_OPEN:
      return open(request, rights);
    case FUSE_CREATE:
      return create(request, rights, false);
    case kOpTmpfile:
      return create(request, rights, true);
    case FUSE_READ:
      return read(request, buffer);
    case FUSE_WRITE:
      return write(request, rights);
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
      return fsync(request);
    case FUSE_LSEEK:
      return lseek(request);
    case FUSE_FALLOCATE:
      return fallocate(request);
    case FUSE_COPY_FILE_RANGE:
      return copy_file_range(request);
    case FUSE_IOCTL:
      return ioctl(request, buffer);
    case FUSE_OPENDIR:
      return opendir(request);
    case FUSE_READDIR:
      return readdir(request, buffer);
    case FUSE_STATFS:
      return statfs(request);
    case FUSE_ACCESS:
      return access(request);
    case FUSE_GETXATTR:
      return getxattr(request, buffer);
    case FUSE_LISTXATTR:
      return listxattr(request, buffer);
    case FUSE_SETXATTR:
      return setxattr(request);
    case FUSE_REMOVEXATTR:
      return removexattr(request);
    case kOpStatx:
      return statx(request);
    default:
      return request.reply_error(ENOSYS);
  }
}

}  // namespace heddle::loopback
