// SPDX-License-Identifier: MIT
#include "base/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <filesystem>

#include "base/output_file.hpp"

namespace heddle {

AtomicFile::AtomicFile(std::string path, std::string temp_path, Fd fd)
    : path_(std::move(path)), temp_path_(std::move(temp_path)), fd_(std::move(fd)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temp_path_(std::exchange(other.temp_path_, {})),
      fd_(std::move(other.fd_)) {}

AtomicFile::~AtomicFile() {
  if (!temp_path_.empty()) ::unlink(temp_path_.c_str());
}

Result<AtomicFile> AtomicFile::create(std::string path) {
  auto target = replaceable_path(path);
  if (!target) return fail(std::move(target.error()));
  path = std::move(*target);
  static std::atomic<unsigned> counter{0};
  // O_EXCL, not mkstemp: mkstemp gives mode 0600 whatever the umask says, and the published file is
  // for others to read.
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string temp =
        path + ".new-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
    const int fd = ::open(temp.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd >= 0) return AtomicFile(std::move(path), std::move(temp), Fd(fd));
    if (errno != EEXIST) break;
  }
  return fail_errno(path, "cannot write");
}

Result<void> AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0) return fail_errno(path_, "cannot write");
  if (::rename(temp_path_.c_str(), path_.c_str()) != 0) return fail_errno(path_, "cannot write");
  temp_path_.clear();
  const auto directory = std::filesystem::path(path_).parent_path();
  auto dir = open_file(directory.empty() ? "." : directory.string(), O_RDONLY | O_DIRECTORY);
  // The file stands already; a file system that cannot sync directories (EINVAL) takes nothing from
  // that.
  if (dir) ::fsync(dir->get());
  return {};
}

}  // namespace heddle
