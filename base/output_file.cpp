// SPDX-License-Identifier: MIT
#include "base/output_file.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include <atomic>
#include <charconv>
#include <cstdio>

#include "base/trusted_path.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

/// Paths where root could, but must not, create or replace files. Shared memory has ordinary files.
bool is_kernels(const std::string& path) {
  return (path.starts_with("/dev/") || path.starts_with("/proc/")) &&
         !path.starts_with("/dev/shm/");
}

Error not_regular(const std::string& path) {
  return Error::with_code(EINVAL, path, "cannot write", "not a regular file");
}

/// Where a path leads when its last component's links are followed.
struct Place {
  Fd directory;
  std::string name;  ///< there
  mode_t type = 0;   ///< S_IFMT; 0: nothing has the name
  bool by_link = false;
  std::string kernels;  ///< instead: a path in /dev or /proc, which only root's links are in
};

/// Whether the link may be followed by its owner and its directory's (protected_symlinks, proc(5)).
bool kernel_follows(const struct stat& link, const struct stat& directory) {
  constexpr mode_t kShared = S_ISVTX | S_IWOTH;
  return (directory.st_mode & kShared) != kShared || link.st_uid == ::geteuid() ||
         link.st_uid == directory.st_uid;
}

Result<Place> find_place(const std::string& path) {
  std::string at = path;
  for (int links = 0; links <= 40; ++links) {  // the kernel's limit (fs/namei.c, MAXSYMLINKS)
    const auto slash = at.rfind('/');
    auto name = at.substr(slash + 1);
    if (name.empty() || name == "." || name == "..")
      return fail_errno(path, "cannot write", path.empty() ? ENOENT : EISDIR);
    const auto above = slash == at.npos ? std::string() : at.substr(0, slash + 1);
    auto directory = open_directory_to_write(above);
    if (!directory && directory.error().code() != EPERM)
      return fail_errno(path, "cannot write", directory.error().code());
    if (!directory) return fail(std::move(directory.error()));
    Fd file(::openat(directory->get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!file && errno != ENOENT) return fail_errno(path, "cannot write");
    if (!file && links > 0) return fail(path, "cannot write", "a dangling symbolic link");
    if (!file) return Place{std::move(*directory), std::move(name), 0, false, {}};
    struct stat status {
    }, above_it{};
    if (::fstat(file.get(), &status) != 0 || ::fstat(directory->get(), &above_it) != 0)
      return fail_errno(path, "cannot write");
    if (!S_ISLNK(status.st_mode))
      return Place{std::move(*directory), std::move(name), status.st_mode & S_IFMT, links > 0, {}};
    if (!may_follow_to_write(*directory, file) || !kernel_follows(status, above_it))
      return fail(Error::with_code(EACCES, path, "cannot write",
                                   "another user can have put the symbolic link there"));
    std::string target(static_cast<std::size_t>(PATH_MAX), '\0');
    const auto length = ::readlinkat(file.get(), "", target.data(), target.size());
    if (length <= 0) return fail_errno(path, "cannot write");
    target.resize(static_cast<std::size_t>(length));
    at = target.starts_with('/') ? target : above + target;
    if (is_kernels(at)) return Place{Fd(), {}, S_IFCHR, true, at};
  }
  return fail_errno(path, "cannot write", ELOOP);
}

/// Where a new file replaces `path`.
Result<Place> find_replaceable(const std::string& path) {
  if (named_descriptor(path) || is_kernels(path)) return fail(not_regular(path));
  auto place = TRY(find_place(path));
  if (S_ISDIR(place.type)) return fail_errno(path, "cannot write", EISDIR);
  if (place.type != 0 && !S_ISREG(place.type)) return fail(not_regular(path));
  // Where a link leads, only what could be written without replacing it. EPERM: seccomp filters
  // that do not know faccessat2.
  if (place.by_link &&
      ::faccessat(place.directory.get(), place.name.c_str(), W_OK, AT_EACCESS) != 0 &&
      errno != EPERM)
    return fail_errno(path, "cannot write");
  return place;
}

std::string own_fd_path(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

/// A file in `directory` that a killed program leaves nothing of: it gets a name when it is whole.
/// No descriptor: the file system has no such files, or their names in /proc are not there.
Fd open_nameless(const Fd& directory, mode_t mode) {
  constexpr mode_t kOthers = 077;
  Fd file(::openat(directory.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 ||
      ::access(own_fd_path(file.get()).c_str(), F_OK) != 0)
    return {};
  // Before Linux 6.0 some file systems leave out the umask.
  if ((mode & kOthers) != 0 && (status.st_mode & kOthers) == (mode & kOthers)) return {};
  return file;
}

}  // namespace

std::optional<int> named_descriptor(std::string_view path) {
  if (path == "-" || path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view directory : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(directory)) continue;
    const auto digits = path.substr(directory.size());
    int number = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
    if (error == std::errc() && end == digits.end() && number >= 0) return number;
  }
  return std::nullopt;
}

Result<Fd> open_unreplaceable(const std::string& path) {
  if (const auto number = named_descriptor(path)) {
    // A duplicate stays valid when another user of the original closes it.
    Fd fd(::fcntl(*number, F_DUPFD_CLOEXEC, 3));
    if (!fd) return fail_errno(path, "cannot write");
    const int flags = ::fcntl(fd.get(), F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
      return fail_errno(path, "cannot write", EBADF);
    return fd;
  }
  if (is_kernels(path)) {
    auto fd = open_file(path, O_WRONLY | O_NOCTTY);
    if (!fd) return fail_errno(path, "cannot write", fd.error().code());
    return fd;
  }
  const auto place = find_place(path);  // AtomicFile reports the failure
  if (!place || place->type == 0 || S_ISREG(place->type)) return Fd();
  if (!place->kernels.empty()) return open_unreplaceable(place->kernels);
  int fd = -1;
  do {  // a pipe waits
    fd = ::openat(place->directory.get(), place->name.c_str(),
                  O_WRONLY | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return fail_errno(path, "cannot write");
  return Fd(fd);
}

Result<Fd> open_in_place(const std::string& path) {
  const auto place = TRY(find_replaceable(path));
  Fd fd(::openat(place.directory.get(), place.name.c_str(),
                 O_WRONLY | O_TRUNC | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return fail_errno(path, "cannot write");
  return fd;
}

Result<OutputFile> OutputFile::prepare(std::string path) {
  Fd fd = TRY(open_unreplaceable(path));
  if (!fd) TRY(AtomicFile::create(path));  // removed at once; tells whether it can be written
  return OutputFile(std::move(path), std::move(fd));
}

Result<void> OutputFile::write(std::string_view text) {
  if (fd_) {
    auto written = write_all(fd_.get(), text, path_);
    fd_.reset();  // end of file for a pipe's reader
    return written;
  }
  auto file = TRY(AtomicFile::create(path_));
  TRY(file.write(text));
  return file.commit();
}

Result<void> write_output(const std::string& path, std::string_view text) {
  auto file = TRY(OutputFile::prepare(path));
  return file.write(text);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      name_(std::move(other.name_)),
      temp_(std::exchange(other.temp_, {})),
      directory_(std::move(other.directory_)),
      fd_(std::move(other.fd_)) {}

AtomicFile::~AtomicFile() {
  if (!temp_.empty()) ::unlinkat(directory_.get(), temp_.c_str(), 0);
}

Result<AtomicFile> AtomicFile::create(const std::string& path, mode_t mode) {
  auto place = TRY(find_replaceable(path));
  struct stat before {
  }, now{};
  const bool replaces =
      ::fstatat(place.directory.get(), place.name.c_str(), &before, AT_SYMLINK_NOFOLLOW) == 0 &&
      before.st_uid == ::geteuid();
  AtomicFile out(path, std::move(place.name), std::move(place.directory));
  out.fd_ = open_nameless(out.directory_, mode);
  if (!out.fd_) out.fd_ = TRY(out.open_aside(mode));
  // A private file stays private.
  if (replaces && ::fstat(out.fd_.get(), &now) == 0 &&
      (now.st_mode & ~before.st_mode & 0777) != 0 &&
      ::fchmod(out.fd_.get(), now.st_mode & before.st_mode & 0777) != 0)
    return fail_errno(path, "cannot write");
  return out;
}

Result<Fd> AtomicFile::open_aside(mode_t mode) {
  // Not mkstemp, whose mode is always 0600, since others read the published file.
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string temp = aside_name();
    Fd file(::openat(directory_.get(), temp.c_str(),
                     O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
    if (file) {
      temp_ = std::move(temp);
      return file;
    }
    if (errno != EEXIST) break;
  }
  return fail_errno(path_, "cannot write");
}

std::string AtomicFile::aside_name() const {
  static std::atomic<unsigned> counter{0};
  return name_ + ".new-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
}

bool AtomicFile::link(const std::string& name) const {
  // Unlike AT_EMPTY_PATH, the name in /proc needs no capability (open(2), O_TMPFILE).
  return ::linkat(AT_FDCWD, own_fd_path(fd_.get()).c_str(), directory_.get(), name.c_str(),
                  AT_SYMLINK_FOLLOW) == 0;
}

Result<void> AtomicFile::name_it() {
  for (int attempt = 0; temp_.empty() && attempt < 100; ++attempt) {
    std::string temp = aside_name();
    if (link(temp))
      temp_ = std::move(temp);
    else if (errno != EEXIST)
      break;
  }
  return temp_.empty() ? copy_aside() : Result<void>();
}

Result<void> AtomicFile::copy_aside() {
  struct stat status {};
  const off_t end = ::lseek(fd_.get(), 0, SEEK_CUR);
  if (::fstat(fd_.get(), &status) != 0) return fail_errno(path_, "cannot write");
  Fd copy = TRY(open_aside(0600));
  off_t at = 0;
  ssize_t sent = 0;
  do {
    sent = ::sendfile(copy.get(), fd_.get(), &at, std::size_t{1} << 30);
  } while (sent > 0 || (sent < 0 && errno == EINTR));
  if (sent < 0 ||
      ((status.st_uid != ::geteuid() || status.st_gid != ::getegid()) &&
       ::fchown(copy.get(), status.st_uid, status.st_gid) != 0) ||
      ::fchmod(copy.get(), status.st_mode & 07777) != 0 || ::fsync(copy.get()) != 0 ||
      ::lseek(copy.get(), end, SEEK_SET) < 0)
    return fail_errno(path_, "cannot write");
  fd_ = std::move(copy);
  return {};
}

void AtomicFile::sync_directory() const {
  // The file is published already, also on file systems that cannot sync directories (EINVAL).
  const Fd directory(::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) ::fsync(directory.get());
}

Result<void> AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0) return fail_errno(path_, "cannot write");
  TRY(name_it());
  if (::renameat(directory_.get(), temp_.c_str(), directory_.get(), name_.c_str()) != 0)
    return fail_errno(path_, "cannot write");
  temp_.clear();
  sync_directory();
  return {};
}

Result<bool> AtomicFile::commit_new(const std::string& name) {
  const int at = directory_.get();
  if (::fsync(fd_.get()) != 0) return fail_errno(path_, "cannot write");
  if (temp_.empty()) {
    if (link(name)) {
      sync_directory();
      return true;
    }
    if (errno == EEXIST) return false;
    TRY(name_it());
  }
  // Some file systems have no links, others no RENAME_NOREPLACE.
  if (::linkat(at, temp_.c_str(), at, name.c_str(), 0) == 0) {
    ::unlinkat(at, temp_.c_str(), 0);
  } else if (errno == EEXIST) {
    return false;
  } else if (::renameat2(at, temp_.c_str(), at, name.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno == EEXIST) return false;
    return fail_errno(path_, "cannot write");
  }
  temp_.clear();
  sync_directory();
  return true;
}

Result<Fd> AtomicFile::commit_open() {
  // For a rename over a file ext4 writes the new one to the disk first, not for an exchange.
  const int at = directory_.get();
  TRY(name_it());
  const auto exchange = [&] {
    return ::renameat2(at, temp_.c_str(), at, name_.c_str(), RENAME_EXCHANGE) == 0;
  };
  if (exchange()) {
    if (::unlinkat(at, temp_.c_str(), 0) != 0) {
      const int error = errno;  // it has become a directory, for example
      (void)exchange();
      return fail_errno(path_, "cannot write", error);
    }
  } else if (::renameat(at, temp_.c_str(), at, name_.c_str()) != 0) {
    return fail_errno(path_, "cannot write");
  }
  temp_.clear();
  return std::move(fd_);
}

}  // namespace heddle
