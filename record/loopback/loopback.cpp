// SPDX-License-Identifier: MIT
#include "record/loopback/loopback.hpp"

#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/xattr.h>

#include <cstdio>

namespace heddle::loopback {
namespace {

// Long enough that a search through 500 directories asks for each once, short enough that one
// removed or moved by somebody outside (another rank's recorder) is not believed for long.
constexpr std::uint64_t kDirectoryEntrySeconds = 1;

Fd open_root() { return value_or_throw(heddle::open_file("/", O_PATH | O_DIRECTORY)); }

struct statx stat_root() {
  struct statx st {};
  (void)stat_at(AT_FDCWD, "/", 0, st);
  return st;
}

}  // namespace

int stat_at(int dir, const char* name, int flags, struct statx& st) {
  constexpr unsigned kWanted = STATX_BASIC_STATS | STATX_BTIME | STATX_MNT_ID;
  return ::statx(dir, name, flags | AT_STATX_SYNC_AS_STAT, kWanted, &st) == 0 ? 0 : errno;
}

bool has_flag(int fd, unsigned long flag) {
  struct statvfs st {};
  return ::fstatvfs(fd, &st) == 0 && (st.f_flag & flag) != 0;
}

bool is_of_proc(int fd) {
  struct statfs st {};
  return ::fstatfs(fd, &st) == 0 && st.f_type == PROC_SUPER_MAGIC;
}

Call call_of(std::int32_t tid) {
  // Before Linux 5.10 reading waits for cred_guard_mutex, which execve holds while it walks to the
  // program: both of us would stop for good (fs/proc/base.c, lock_trace()).
  static const bool kernel_tells = [] {
    utsname name{};
    int major = 0, minor = 0;
    return ::uname(&name) == 0 && std::sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
           (major > 5 || (major == 5 && minor >= 10));
  }();
  Call out;
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%d/syscall", tid);
  const Fd fd(kernel_tells ? ::open(path, O_RDONLY | O_CLOEXEC) : -1);
  char text[256];
  const ssize_t n = fd ? ::read(fd.get(), text, sizeof(text) - 1) : -1;
  text[n > 0 ? n : 0] = '\0';
  if (std::sscanf(text, "%ld %lx %lx %lx", &out.number, &out.arguments[0], &out.arguments[1],
                  &out.arguments[2]) != 4)
    out.number = -1;
  return out;
}

OwnPath::OwnPath(int fd) { std::snprintf(text, sizeof(text), "/proc/self/fd/%d", fd); }

Loopback::Loopback(AccessLog& log, Setup setup)
    : log_(log),
      native_files_(std::move(setup.native_files)),
      own_fds_(value_or_throw(heddle::open_file("/proc/self/fd", O_PATH | O_DIRECTORY))),
      nodes_(open_root(), file_key(stat_root()), setup.most_open_nodes),
      numbers_(file_key(stat_root()).device),
      io_modes_(setup.device) {}

void Loopback::init(Request& request) {
  const auto in = request.body<fuse_init_in>();
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  if (in.major < FUSE_KERNEL_VERSION) return request.reply_error(EPROTO);
  if (in.major > FUSE_KERNEL_VERSION) return request.reply(out);  // it asks again, in our version
  out.max_readahead = in.max_readahead;
  // PARALLEL_DIROPS: else lookups in one directory wait for each other. HANDLE_KILLPRIV_V2: we
  // write as the caller, so the real file loses its set-uid bit as it should, and the kernel need
  // not ask for security.capability before each write. DONT_MASK: default ACLs come before the
  // umask. The two of locks: or the kernel would keep them to itself.
  out.flags = in.flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ATOMIC_O_TRUNC | FUSE_DONT_MASK |
                          FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_HANDLE_KILLPRIV_V2 |
                          FUSE_ASYNC_DIO | FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS | kInitExt);
  if ((in.flags & kInitExt) != 0 && (in.flags2 & kPassthroughInFlags2) != 0) {
    out.flags2 = kPassthroughInFlags2;
    // max_stack_depth. Not 2, which would admit overlays below: the program could mount none above.
    out.unused[0] = 1;
    io_modes_.agree(true);
  }
  out.max_background = 64;
  out.congestion_threshold = 48;
  out.max_write = kMaxData;
  out.max_pages = kMaxData / 4096;
  out.time_gran = 1;
  request.reply(out);
}

void Loopback::log(Request& request, Op op, int error, std::string_view path,
                   std::string_view target) {
  if (!log_.on()) return;
  trace::Event event{
      .tid = request.tid(), .op = op, .error = error, .path = path, .target = target};
  log_.add(event);
}

/// The node's descriptor; one that has none is looked for by its names. Each name on the way is
/// opened by itself and must be the file that it was, so that no link is followed, and with our own
/// rights: the caller has the file already, whatever stands on the way to it. 0 or an errno.
int Loopback::reach(Request& request, std::uint64_t node, File& file) {
  file = nodes_.file(node);
  if (file) return 0;
  const auto way = nodes_.way_to(node);
  if (!way) return ESTALE;  // the kernel walks the path again
  const OwnRights own(request.rights());
  file = way->from;
  for (const auto& step : way->steps) {
    struct statx st {};
    Fd fd = open_at(file->get(), step.name.c_str(), O_PATH | O_NOFOLLOW);
    if (!fd) return errno == EMFILE || errno == ENFILE ? errno : ESTALE;
    if (stat_fd(fd.get(), st) != 0 || file_key(st) != step.key) return ESTALE;
    file = nodes_.warm(step.id, std::move(fd));
    if (!file) return ESTALE;
  }
  return 0;
}

/// openat(2); when we are out of descriptors, nodes lose theirs first. Invalid and errno.
Fd Loopback::open_at(int directory, const char* name, int flags, mode_t mode) {
  Fd out(::openat(directory, name, flags | O_CLOEXEC, mode));
  if (out || (errno != EMFILE && errno != ENFILE)) return out;
  nodes_.cool();
  return Fd(::openat(directory, name, flags | O_CLOEXEC, mode));
}

/// Opens the file of a descriptor by open(2)'s flags. Invalid and errno.
Fd Loopback::reopen(int fd, int flags) {
  char name[16];
  std::snprintf(name, sizeof(name), "%d", fd);
  return open_at(own_fds_.get(), name, flags);
}

/// A set-id program does nothing, and a device is none, where the real mount says so: ours does
/// not, being one for all.
void Loopback::fill_attr(int fd, const struct statx& st, fuse_attr& attr) {
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
  if (S_ISREG(st.stx_mode) && (st.stx_mode & (S_ISUID | S_ISGID)) != 0 && has_flag(fd, ST_NOSUID))
    attr.mode &= ~static_cast<unsigned>(S_ISUID | S_ISGID);
  if ((S_ISCHR(st.stx_mode) || S_ISBLK(st.stx_mode)) && has_flag(fd, ST_NODEV)) attr.rdev = 0;
}

/// Whether everybody may pass through the directory: then the kernel may keep entries of it. On
/// what it keeps it checks nothing, so a directory that is closed to somebody is passed through us.
bool Loopback::is_open_to_all(int fd) {
  if (!CallerRights::are_many()) return true;
  struct statx st {};
  if (stat_fd(fd, st) != 0 || (st.stx_mode & 0111) != 0111) return false;
  // Named users may have less than all others.
  return ::getxattr(OwnPath(fd).text, "system.posix_acl_access", nullptr, 0) < 0 &&
         (errno == ENODATA || errno == EOPNOTSUPP);
}

/// `parent` is -1 for what has none.
fuse_entry_out Loopback::entry_out(int parent, int fd, const struct statx& st) {
  fuse_entry_out out{};
  if (S_ISDIR(st.stx_mode) && is_open_to_all(parent)) out.entry_valid = kDirectoryEntrySeconds;
  fill_attr(fd, st, out.attr);
  return out;
}

/// What `name` in `parent` is now, as a node. 0 or an errno.
int Loopback::make_entry(Request& request, const File& parent, std::string_view name,
                         Entry& entry) {
  const auto known = nodes_.child(request.node(), name);
  File file;
  if (known.is_open) file = nodes_.file(known.id);
  // One call for a file that we have already, and one for a miss.
  int rc = -1;
  if (file) {
    rc = stat_at(parent->get(), name.data(), AT_SYMLINK_NOFOLLOW, entry.st);
    if (rc == 0 && file_key(entry.st) != known.key) rc = -1;
  }
  Fd fd;
  const auto look = [&](int more) {
    fd = open_at(parent->get(), name.data(), O_PATH | O_NOFOLLOW | more);
    return fd ? stat_fd(fd.get(), entry.st) : errno;
  };
  if (rc == -1) {
    rc = look(0);
    // O_DIRECTORY has what an automounter keeps there mounted.
    if (rc == 0 && (entry.st.stx_attributes & STATX_ATTR_AUTOMOUNT) != 0) rc = look(O_DIRECTORY);
  }
  if (rc == ENOENT) nodes_.unbind(request.node(), name);
  if (rc != 0) return rc;
  // What a procfs shows it shows to who asks, and that is us. One of before the run is native, and
  // only looked at here, to be mounted over.
  if (fd && file_key(entry.st).device != nodes_.key(request.node()).device &&
      is_of_proc(fd.get()) &&
      !native_files_.contains(nodes_.path(request.node(), name).value_or("")))
    return EACCES;
  entry.out = entry_out(parent->get(), fd ? fd.get() : file->get(), entry.st);
  entry.out.nodeid = nodes_.bind(request.node(), name, file_key(entry.st), std::move(fd));
  return 0;
}

void Loopback::statfs(Request& request) {
  File file;
  struct statvfs st {};
  int rc = reach(request, request.node(), file);
  if (rc == 0) rc = errno_if(::fstatvfs(file->get(), &st) != 0);
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
    log_closed(handle);
    handle.number = -1;  // once
  });
}

void Loopback::handle(Request& request) {
  // Those that need no rights of the caller; FORGET and INTERRUPT have no answer.
  switch (request.opcode()) {
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
    case FUSE_RELEASEDIR:
      return release(request);
    case FUSE_INTERRUPT:
      return locks_.interrupt(request.body<fuse_interrupt_in>().unique);
    default:
      break;
  }
  using Handler = void (Loopback::*)(Request&);
  static constexpr std::pair<std::uint32_t, Handler> kHandlers[] = {
      {FUSE_LOOKUP, &Loopback::lookup},
      {FUSE_GETATTR, &Loopback::getattr},
      {FUSE_SETATTR, &Loopback::setattr},
      {FUSE_READLINK, &Loopback::readlink},
      {FUSE_SYMLINK, &Loopback::symlink},
      {FUSE_MKNOD, &Loopback::mknod},
      {FUSE_MKDIR, &Loopback::mkdir},
      {FUSE_UNLINK, &Loopback::remove},
      {FUSE_RMDIR, &Loopback::remove},
      {FUSE_RENAME, &Loopback::rename},
      {FUSE_RENAME2, &Loopback::rename},
      {FUSE_LINK, &Loopback::link},
      {FUSE_OPEN, &Loopback::open},
      {FUSE_CREATE, &Loopback::create},
      {kOpTmpfile, &Loopback::create},
      {FUSE_READ, &Loopback::read},
      {FUSE_WRITE, &Loopback::write},
      {FUSE_FSYNC, &Loopback::fsync},
      {FUSE_FSYNCDIR, &Loopback::fsync},
      {FUSE_LSEEK, &Loopback::lseek},
      {FUSE_FALLOCATE, &Loopback::fallocate},
      {FUSE_COPY_FILE_RANGE, &Loopback::copy_file_range},
      {FUSE_GETLK, &Loopback::getlk},
      {FUSE_SETLK, &Loopback::setlk},
      {FUSE_SETLKW, &Loopback::setlk},
      {FUSE_IOCTL, &Loopback::ioctl},
      {FUSE_OPENDIR, &Loopback::opendir},
      {FUSE_READDIR, &Loopback::readdir},
      {FUSE_STATFS, &Loopback::statfs},
      {FUSE_ACCESS, &Loopback::access},
      {FUSE_GETXATTR, &Loopback::getxattr},
      {FUSE_LISTXATTR, &Loopback::listxattr},
      {FUSE_SETXATTR, &Loopback::setxattr},
      {FUSE_REMOVEXATTR, &Loopback::removexattr},
      {kOpStatx, &Loopback::statx}};
  const auto* const handler =
      std::find_if(std::begin(kHandlers), std::end(kHandlers),
                   [&](const auto& entry) { return entry.first == request.opcode(); });
  if (!request.rights().assume(request.header())) return request.reply_error(EIO);
  if (handler == std::end(kHandlers)) return request.reply_error(ENOSYS);
  (this->*handler->second)(request);
}

}  // namespace heddle::loopback
