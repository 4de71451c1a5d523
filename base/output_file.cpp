// SPDX-License-Identifier: MIT
#include "base/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <charconv>
#include <filesystem>

#include "base/atomic_file.hpp"

namespace heddle {
namespace {

/// Nothing of ours is made or replaced there, whatever stands there at the moment: root could.
/// Shared memory is files as others are.
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
  // Opened, so that the kernel decides whether the link may be followed (protected_symlinks,
  // proc(5)) and the file written; O_NONBLOCK: a pipe without a reader.
  const auto fd = open_file(path, O_WRONLY | O_NONBLOCK | O_NOCTTY);
  if (!fd && fd.error().code() == ENOENT)
    return fail(path, "cannot write", "a symbolic link to nothing");
  if (!fd && fd.error().code() != ENXIO) return fail_errno(path, "cannot write", fd.error().code());
  if (!fd || ::fstat(fd->get(), &st) != 0 || !S_ISREG(st.st_mode)) return fail(not_regular(path));
  std::error_code error;
  auto real = std::filesystem::canonical(path, error).string();
  if (error) return fail_errno(path, "cannot write", error.value());
  return real;
}

Result<Fd> open_unreplaceable(const std::string& path) {
  if (const auto number = named_descriptor(path)) {
    // The copy may be written to although another closes the original.
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
  auto fd = open_unreplaceable(path);
  if (!fd) return fail(std::move(fd.error()));
  if (!*fd)  // goes again at once, but tells whether there is a place
    if (auto file = AtomicFile::create(path); !file) return fail(std::move(file.error()));
  return OutputFile(std::move(path), std::move(*fd));
}

Result<void> OutputFile::write(std::string_view text) {
  if (fd_) {
    auto written = write_all(fd_.get(), text, path_);
    fd_.reset();  // a pipe's reader sees the end
    return written;
  }
  auto file = AtomicFile::create(path_);
  if (!file) return fail(std::move(file.error()));
  if (auto written = file->write(text); !written) return written;
  return file->commit();
}

Result<void> write_output(const std::string& path, std::string_view text) {
  auto file = OutputFile::prepare(path);
  if (!file) return fail(std::move(file.error()));
  return file->write(text);
}

}  // namespace heddle
