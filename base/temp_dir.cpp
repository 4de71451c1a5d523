// SPDX-License-Identifier: MIT
#include "base/temp_dir.hpp"

#include <fts.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace heddle {

Result<TempDir> TempDir::create(const std::string& prefix, std::string parent) {
  if (parent.empty()) {
    const char* tmp = std::getenv("TMPDIR");
    parent = tmp && *tmp ? tmp : "/tmp";
  }
  std::string path = parent + "/" + prefix + "-XXXXXX";
  if (!::mkdtemp(path.data())) return fail_errno(parent, "cannot make a temporary folder in it");
  return TempDir(std::move(path));
}

TempDir& TempDir::operator=(TempDir&& other) noexcept {
  if (this != &other) {
    if (!path_.empty()) (void)remove_tree(path_);
    path_ = std::exchange(other.path_, {});
  }
  return *this;
}

TempDir::~TempDir() {
  if (!path_.empty()) (void)remove_tree(path_);
}

Result<void> remove_tree(const std::string& path) {
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
