// SPDX-License-Identifier: MIT
#include "base/temp_dir.hpp"

#include <fts.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>

namespace heddle {
namespace {

/// Whether something is mounted there: another file system than that of the directory above.
bool is_mount_point(const std::string& path) {
  struct stat here {};
  struct stat above {};
  if (::lstat(path.c_str(), &here) != 0) return errno != ENOENT && errno != ENOTDIR;
  if (!S_ISDIR(here.st_mode)) return false;
  return ::stat((path + "/..").c_str(), &above) != 0 || here.st_dev != above.st_dev;
}

}  // namespace

Result<TempDir> TempDir::create(const std::string& prefix, std::string parent) {
  if (parent.empty()) {
    const char* tmp = std::getenv("TMPDIR");
    if (!tmp || !*tmp) return create(prefix, "/tmp");
    auto made = create(prefix, tmp);
    if (made) return made;
    // As tempnam(3) does; the failure is that of what the user set.
    auto second = create(prefix, "/tmp");
    return second ? std::move(second) : std::move(made);
  }
  // Absolute: its owner, and programs that were told of it, may change their working directory.
  if (std::error_code error; parent.front() != '/')
    if (const auto whole = std::filesystem::absolute(parent, error); !error)
      parent = whole.lexically_normal().string();
  std::string path = parent + "/" + prefix + "-XXXXXX";
  if (!::mkdtemp(path.data())) return fail_errno(parent, "cannot make a temporary directory in it");
  return TempDir(std::move(path));
}

TempDir& TempDir::operator=(TempDir&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = std::exchange(other.path_, {});
  }
  return *this;
}

TempDir::~TempDir() { remove(); }

void TempDir::remove() noexcept {
  if (path_.empty()) return;
  // Nobody tries again later what failed for a moment (no memory, a signal).
  for (int tries = 0; tries < 3 && !remove_tree(path_); ++tries) {
  }
}

Result<void> remove_tree(const std::string& path) {
  // What is mounted may be all files of the machine (fs-record's loopback).
  if (is_mount_point(path)) return fail_errno(path, "cannot remove", EBUSY);
  char* roots[] = {const_cast<char*>(path.c_str()), nullptr};
  std::unique_ptr<FTS, int (*)(FTS*)> walk(
      ::fts_open(roots, FTS_PHYSICAL | FTS_XDEV | FTS_NOCHDIR, nullptr), ::fts_close);
  if (!walk) return fail_errno(path, "cannot remove");
  int first_error = 0;
  while (FTSENT* entry = ::fts_read(walk.get())) {
    if (entry->fts_info == FTS_D) continue;
    if (entry->fts_info == FTS_NS && entry->fts_errno == ENOENT) continue;
    const int rc = entry->fts_info == FTS_DP || entry->fts_info == FTS_DNR
                       ? ::rmdir(entry->fts_accpath)
                       : ::unlink(entry->fts_accpath);
    if (rc != 0 && errno != ENOENT && !first_error) first_error = errno;
  }
  if (first_error) return fail_errno(path, "cannot remove", first_error);
  return {};
}

}  // namespace heddle
