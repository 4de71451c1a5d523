// SPDX-License-Identifier: MIT
#include "base/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <charconv>
#include <cstdio>
#include <filesystem>

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

Result<std::string> replaceable_path(const std::string& path) {
  struct stat st {};
  if (named_descriptor(path) || is_kernels(path)) return fail(not_regular(path));
  if (::lstat(path.c_str(), &st) != 0) {
    if (errno == ENOENT) return path;
    return fail_errno(path, "cannot write");
  }
  if (S_ISREG(st.st_mode)) return path;
  if (S_ISDIR(st.st_mode)) return fail_errno(path, "cannot write", EISDIR);
  if (!S_ISLNK(st.st_mode)) return fail(not_regular(path));
  // By opening it the kernel decides whether the link may be followed (protected_symlinks, proc(5))
  // and the file written. O_NONBLOCK: for a pipe without a reader.
  const auto fd = open_file(path, O_WRONLY | O_NONBLOCK | O_NOCTTY);
  if (!fd && fd.error().code() == ENOENT)
    return fail(path, "cannot write", "a dangling symbolic link");
  if (!fd && fd.error().code() != ENXIO) return fail_errno(path, "cannot write", fd.error().code());
  if (!fd || ::fstat(fd->get(), &st) != 0 || !S_ISREG(st.st_mode)) return fail(not_regular(path));
  std::error_code error;
  auto real = std::filesystem::canonical(path, error).string();
  if (error) return fail_errno(path, "cannot write", error.value());
  return real;
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
  struct stat st {};
  if (!is_kernels(path) && (::stat(path.c_str(), &st) != 0 || S_ISREG(st.st_mode))) return Fd();
  auto fd = open_file(path, O_WRONLY | O_NOCTTY);
  if (!fd) return fail_errno(path, "cannot write", fd.error().code());
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
      temp_path_(std::exchange(other.temp_path_, {})),
      directory_(std::move(other.directory_)),
      fd_(std::move(other.fd_)) {}

AtomicFile::~AtomicFile() {
  if (!temp_path_.empty()) ::unlinkat(directory_.get(), name_of(temp_path_), 0);
}

Result<void> AtomicFile::make(mode_t mode) {
  static std::atomic<unsigned> counter{0};
  // Not mkstemp, whose mode is always 0600, since others read the published file.
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string temp =
        path_ + ".new-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
    fd_ = Fd(::openat(directory_.get(), name_of(temp),
                      O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
    if (fd_) {
      temp_path_ = std::move(temp);
      return {};
    }
    if (errno != EEXIST) break;
  }
  return fail_errno(path_, "cannot write");
}

Result<AtomicFile> AtomicFile::create(std::string path) {
  path = TRY(replaceable_path(path));
  const auto parent = std::filesystem::path(path).parent_path();
  auto directory = open_file(parent.empty() ? "." : parent.string(), O_PATH | O_DIRECTORY);
  if (!directory) return fail_errno(path, "cannot write", directory.error().code());
  AtomicFile out(std::move(path), std::move(*directory));
  TRY(out.make(0666));
  return out;
}

Result<AtomicFile> AtomicFile::create_beside(const Fd& old) {
  const auto link = "/proc/self/fd/" + std::to_string(old.get());
  std::error_code error;
  const std::string path = std::filesystem::read_symlink(link, error);
  if (error) return fail_errno(link, "cannot read", error.value());
  AtomicFile out(path,
                 TRY(open_file(std::filesystem::path(path).parent_path(), O_PATH | O_DIRECTORY)));
  struct stat is {
  }, was{};
  if (::fstat(old.get(), &was) != 0 ||
      ::fstatat(out.directory_.get(), name_of(path), &is, AT_SYMLINK_NOFOLLOW) != 0 ||
      is.st_dev != was.st_dev || is.st_ino != was.st_ino)
    return fail(
        Error::with_code(ESTALE, path, "cannot write", "it was moved or replaced meanwhile"));
  TRY(out.make(0600));
  return out;
}

Result<void> AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0 ||
      ::renameat(directory_.get(), name_of(temp_path_), directory_.get(), name_of(path_)) != 0)
    return fail_errno(path_, "cannot write");
  temp_path_.clear();
  // The file is published already, also on file systems that cannot sync directories (EINVAL).
  const Fd directory(::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) ::fsync(directory.get());
  return {};
}

}  // namespace heddle
