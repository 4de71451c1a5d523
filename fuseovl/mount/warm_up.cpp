// SPDX-License-Identifier: MIT
#include "fuseovl/mount/warm_up.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/fd.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

// Below each directory of LD_LIBRARY_PATH ld.so tries these sub-directories first (glibc
// elf/dl-hwcaps_subdirs.c and, up to 2.36, sysdeps/x86/dl-hwcap.h with elf/dl-hwcaps.c).
constexpr const char* kProbedNames[] = {"glibc-hwcaps", "tls",      "x86_64",  "i686",
                                        "haswell",      "avx512_1", "xeon_phi"};

void probe_missing_names(int directory) {
  for (const char* name : kProbedNames) (void)::faccessat(directory, name, F_OK, 0);
}

}  // namespace

bool is_of_only_view(const std::string& path, const DirectoryEntry& entry) {
  return entry.type == DT_REG && path.find('/') == std::string::npos && path != kShortCache;
}

Result<void> warm_up(const std::string& mount_point, const WarmUpOptions& options) {
  Fd root(::open(mount_point.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!root || ::fstat(root.get(), &status) != 0) return fail_errno(mount_point, "does not answer");
  probe_missing_names(root.get());
  bool only_view = false;
  const auto visit = [&](const std::string& path, const DirectoryEntry& entry) {
    if (is_of_only_view(path, entry)) only_view = true;
    // Each guided open walks the link of the map's own directory.
    char target[8];
    if (entry.type == DT_LNK) (void)!::readlinkat(root.get(), path.c_str(), target, sizeof(target));
  };
  const auto enter = [&](const std::string& path) {
    if (path == kOwnDirectory || path == kMapsDirectory) return true;
    if (path.starts_with(std::string(kMapsDirectory) + "/")) return false;
    // The only view's directory, and plugin directories, which few ask for, are left to the
    // prefetch.
    if (only_view) return false;
    const Fd view(::openat(root.get(), path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    // Views are directories of the root; ld.so does not search plugin directories.
    if (view && path.find('/') == std::string::npos) probe_missing_names(view.get());
    return true;
  };
  if (auto walked = walk_tree(root.get(), visit, enter); !walked) return walked;
  // Answered ENOSYS once, never asked again: OPEN, FLUSH, LISTXATTR, STATX.
  Fd index(::openat(root.get(), ".heddle/index", O_RDONLY | O_CLOEXEC));
  if (!index) return fail_errno(mount_point, "is no heddle mount");
  (void)::flistxattr(root.get(), nullptr, 0);
  struct statx extended {};
  (void)::statx(root.get(), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &extended);
  // Not into the prefetch's hands: an open file would keep the mount busy.
  index.reset();
  root.reset();
  // Whether it can work here is no matter of the warm-up's success.
  PrefetchOptions prefetch;
  prefetch.budget = options.prefetch;
  if (!options.outlive_caller) prefetch.while_alive = ::getpid();
  (void)start_prefetch(mount_point, prefetch);
  return {};
}

}  // namespace heddle
