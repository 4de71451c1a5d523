// SPDX-License-Identifier: MIT
#include "record/loopback/loopback.hpp"

#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/xattr.h>

#include <cstdio>

#include "base/backoff.hpp"

namespace heddle::loopback {
namespace {

// Long enough that a search through 500 directories looks each up once, short enough for
// directories that processes outside (another rank) remove or rename.
constexpr std::uint64_t kDirectoryEntrySeconds = 1;

FileKey root_key() {
  struct statx st {};
  (void)stat_at(AT_FDCWD, "/", 0, st);
  return file_key(st);
}

/// Whether the file in the directory `parent` can be found again by its name and key, and nothing
/// but its attributes has to be looked at.
bool is_found_again(const struct statx& st, const FileKey& parent) {
  const auto key = file_key(st);
  return S_ISREG(st.stx_mode) && (st.stx_mode & (S_ISUID | S_ISGID)) == 0 && key.born_s != 0 &&
         key.mount != 0 && key.mount == parent.mount;
}

int init(Loopback& tree, Request& request) {
  const auto in = request.body<fuse_init_in>();
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  if (in.major < FUSE_KERNEL_VERSION) return EPROTO;
  if (in.major > FUSE_KERNEL_VERSION) return request.reply(out);  // the kernel asks again
  out.max_readahead = kMaxData;  // the kernel takes the lesser of this and the mount's own
  // PARALLEL_DIROPS: lookups in one directory do not wait for each other. HANDLE_KILLPRIV_V2: the
  // real file loses its set-uid bits, because the recorder writes as the caller, so the kernel does
  // not ask for security.capability before each write. DONT_MASK: default ACLs precede the umask.
  // POSIX_LOCKS and FLOCK_LOCKS: otherwise the kernel would not forward locks.
  out.flags = in.flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ATOMIC_O_TRUNC | FUSE_DONT_MASK |
                          FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_HANDLE_KILLPRIV_V2 |
                          FUSE_ASYNC_DIO | FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS | kInitExt);
  if ((in.flags & kInitExt) != 0 && (in.flags2 & kPassthroughInFlags2) != 0) {
    out.flags2 = kPassthroughInFlags2;
    // max_stack_depth. With 2, overlays below would work, but none could be mounted above.
    out.unused[0] = 1;
    tree.io_modes.agree(true);
  }
  out.max_background = 64;
  out.congestion_threshold = 48;
  out.max_write = kMaxData;
  out.max_pages = kMaxData / 4096;
  out.time_gran = 1;
  return request.reply(out);
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

namespace {

/// Whether /proc/TID/syscall may be read while the thread waits for an answer.
bool may_read_calls() {
  // Before Linux 5.10 the read takes cred_guard_mutex, which execve holds while it waits for our
  // lookups: a deadlock (fs/proc/base.c, lock_trace()).
  static const bool is_safe = [] {
    utsname name{};
    int major = 0, minor = 0;
    return ::uname(&name) == 0 && std::sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
           (major > 5 || (major == 5 && minor >= 10));
  }();
  return is_safe;
}

/// proc_pid_syscall(5): `NUMBER 0xARGUMENT...`. sscanf(3) would take a third of the whole.
Call parse_call(std::string_view text) {
  Call out;
  const char* const end = text.data() + text.size();
  auto at = std::from_chars(text.data(), end, out.number);
  for (auto& argument : out.arguments) {
    if (at.ec != std::errc() || end - at.ptr < 4) return {};  // "running"
    at = std::from_chars(at.ptr + 3, end, argument, 16);
  }
  return at.ec == std::errc() ? out : Call();
}

}  // namespace

Call call_of(std::int32_t tid) {
  char text[256];
  return may_read_calls() && read_proc(tid, "syscall", text) ? parse_call(text) : Call();
}

Call call_of(std::int32_t tid, Fd& file, CallerRights& rights) {
  constexpr int kMostTries = 8;  // "running": it is on its way to sleep
  if (!may_read_calls()) return {};
  char text[256];
  Call out;
  for (int tries = 0; out.number == -1 && tries < kMostTries; ++tries) {
    ssize_t n = file ? ::pread(file.get(), text, sizeof(text), 0) : -1;
    if (n <= 0) {
      const OwnRights own(rights);
      file.reset(::open(ProcPath(tid, "syscall").text, O_RDONLY | O_CLOEXEC));
      n = file ? ::pread(file.get(), text, sizeof(text), 0) : -1;
    }
    if (n <= 0) {
      file.reset();
      break;
    }
    out = parse_call({text, static_cast<std::size_t>(n)});
  }
  return out;
}

Loopback::Loopback(AccessLog& log, Setup setup)
    : access_log(log),
      native_files(std::move(setup.native_files)),
      own_fds(value_or_throw(open_file("/proc/self/fd", O_PATH | O_DIRECTORY))),
      nodes(value_or_throw(open_file("/", O_PATH | O_DIRECTORY)), root_key(),
            setup.most_open_nodes),
      numbers(root_key().device),
      io_modes(setup.device, log.each_io()) {}

void Loopback::log(const Request& request, Op op, int error) {
  if (access_log.on()) log(request, op, error, nodes.path(request.node()));
}

void Loopback::log(const Request& request, Op op, int error, std::string_view path,
                   std::string_view target, std::int64_t mode) {
  if (!access_log.on()) return;
  trace::Event event{
      .tid = request.tid(), .op = op, .error = error, .path = path, .target = target, .mode = mode};
  access_log.add(event);
}

int Loopback::reach(Request& request, File& file, std::uint64_t node) {
  if (node == 0) node = request.node();
  file = nodes.file(node);
  if (file) return 0;
  const auto way = nodes.way_to(node);
  if (!way) return ESTALE;  // the kernel walks the path again
  file = way->from;
  for (const auto& step : way->steps) {
    struct statx st {};
    const auto open = [&] { return open_at(file->get(), step.name.c_str(), O_PATH | O_NOFOLLOW); };
    Fd fd;
    {
      const OwnRights own(request.rights());
      fd = open();
    }
    if (!fd && errno == EACCES) fd = open();  // a file server may give a user more than root
    if (!fd) return errno == EMFILE || errno == ENFILE ? errno : ESTALE;
    if (stat_fd(fd.get(), st) != 0 || file_key(st) != step.key) return ESTALE;
    file = nodes.warm(step.id, std::move(fd));
    if (!file) return ESTALE;
  }
  return 0;
}

Fd Loopback::open_at(int directory, const char* name, int flags, mode_t mode) {
  Fd out(::openat(directory, name, flags | O_CLOEXEC, mode));
  if (out || (errno != EMFILE && errno != ENFILE)) return out;
  nodes.cool();
  return Fd(::openat(directory, name, flags | O_CLOEXEC, mode));
}

Fd Loopback::reopen(int fd, int flags) {
  char name[16];
  *std::to_chars(name, std::end(name), fd).ptr = '\0';
  return open_at(own_fds.get(), name, flags);
}

/// Hides set-id bits and device numbers on real mounts with nosuid or nodev, since the one mount of
/// the loopback has neither.
void Loopback::fill_attr(int fd, const struct statx& st, fuse_attr& attr) {
  attr.ino = numbers.of(file_key(st).device, st.stx_ino);
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

namespace {

/// Whether everybody may search the directory `fd`. Only of these may the kernel cache entries,
/// because it checks no rights on cached ones.
bool all_may_search(int fd) {
  if (!CallerRights::are_many()) return true;
  struct statx st {};
  if (stat_fd(fd, st) != 0 || (st.stx_mode & 0111) != 0111) return false;
  // An ACL may give named users less than others.
  return ::getxattr(OwnPath(fd).text, "system.posix_acl_access", nullptr, 0) < 0 &&
         (errno == ENODATA || errno == EOPNOTSUPP);
}

}  // namespace

fuse_entry_out Loopback::entry_out(int fd, const struct statx& st) {
  fuse_entry_out out{};
  fill_attr(fd, st, out.attr);
  return out;
}

int Loopback::make_entry(Request& request, const File& parent, std::string_view name, Entry& entry,
                         bool for_stat) {
  const auto known = nodes.child(request.node(), name);
  File file;
  if (known.is_open) file = nodes.file(known.id);
  // A file with a descriptor, or a miss, costs one call.
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
  bool is_cold = false;
  if (rc == -1 && for_stat) {
    rc = stat_at(parent->get(), name.data(), AT_SYMLINK_NOFOLLOW, entry.st);
    is_cold = rc == 0 && is_found_again(entry.st, nodes.key(request.node()));
    if (rc == 0 && !is_cold) rc = -1;
  }
  if (rc == -1) {
    rc = look(0);
    // O_DIRECTORY triggers the automount.
    if (rc == 0 && (entry.st.stx_attributes & STATX_ATTR_AUTOMOUNT) != 0) rc = look(O_DIRECTORY);
  }
  if (rc == ENOENT) nodes.unbind(request.node(), name);
  if (rc != 0) return rc;
  // A procfs shows what its reader, the recorder, may see. One mounted before the run is native and
  // looked up here only to be mounted over.
  if (fd && file_key(entry.st).device != nodes.key(request.node()).device && is_of_proc(fd.get()) &&
      !native_files.contains(nodes.path(request.node(), name)))
    return EACCES;
  entry.out = entry_out(fd ? fd.get() : is_cold ? -1 : file->get(), entry.st);
  if (S_ISDIR(entry.st.stx_mode) && all_may_search(parent->get()))
    entry.out.entry_valid = kDirectoryEntrySeconds;
  entry.out.nodeid = nodes.bind(request.node(), name, file_key(entry.st), std::move(fd));
  return 0;
}

void Loopback::handle(Request& request) {
  static const auto kOperations = [] {
    std::array<Operation, 64> all{};
    for (const auto& list : {name_operations(), file_operations(), attribute_operations()})
      for (const Operation& operation : list) all[operation.opcode] = operation;
    all[FUSE_INIT] = {FUSE_INIT, init, Rights::any};
    all[FUSE_DESTROY] = {FUSE_DESTROY, [](Loopback&, Request&) { return 0; }, Rights::any};
    return all;
  }();
  const Operation operation =
      request.opcode() < kOperations.size() ? kOperations[request.opcode()] : Operation{};
  int rc = operation.run ? 0 : ENOSYS;
  auto& rights = request.rights();
  const bool assumes = operation.rights == Rights::callers ||
                       (operation.rights == Rights::user && !rights.are_all_of(request.header()));
  if (assumes && !rights.assume(request.header())) rc = EIO;
  if (rc == 0) rc = operation.run(*this, request);
  if (rc != kAnswered) request.reply_error(rc);
}

}  // namespace heddle::loopback
