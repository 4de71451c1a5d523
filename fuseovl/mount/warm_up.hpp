// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "fuseovl/mount/directory_reader.hpp"
#include "fuseovl/mount/prefetch.hpp"

namespace heddle {

/// Names that are not there: their lookups tell the daemon how far the prefetch is.
inline constexpr const char* kPrefetchBegins = ".heddle/prefetch-begins";
inline constexpr const char* kPrefetchDone = ".heddle/prefetch-done";

/// Whether `path` below a mount's root shows that the mount has one view: its names stand at the
/// root, where programs are sent, and its directory holds them once more.
bool is_of_only_view(const std::string& path, const DirectoryEntry& entry);

struct WarmUpOptions {
  /// Of the prefetch that follows in the background (fuseovl/mount/prefetch.hpp); 0: none.
  std::uint64_t prefetch = kDefaultPrefetch;
  /// Whether the prefetch goes on when the calling process has ended.
  bool outlive_caller = false;
};

/// Asks a heddle mount once for what starts need and the kernel can keep: the names and attributes
/// of every view, those ld.so probes for that are not there (glibc-hwcaps), and each operation the
/// daemon does not have. A later start then sends no request. The rest is left to the prefetch.
/// Must not be called by the daemon itself: killed while it waits for its own answer, it could not
/// end. The caller has one thread: it forks.
Result<void> warm_up(const std::string& mount_point, const WarmUpOptions& options = {});

}  // namespace heddle
