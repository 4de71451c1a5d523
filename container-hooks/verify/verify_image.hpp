// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "container-hooks/oci/hook_settings.hpp"
#include "container-hooks/verify/verify.hpp"

namespace heddle::hook {

/// An image before it is started.
struct ImageToVerify {
  std::string bundle;              ///< an OCI bundle; empty: `rootfs`
  std::string rootfs;              ///< a root file system
  std::string program;             ///< in the container; empty: what the bundle starts
  std::chrono::seconds limit{30};  ///< for each run of its ld.so
  HookSettings hook;               ///< cache, mount point and MPI as the hook would be given them
};

/// What the container's own ld.so lists for the program once all is in place as the hook places it:
/// done in a container of ours (sandbox_container.hpp). Its plugins are listed with what each needs
/// in that program. Prints the finding. Result: the exit status, 0
/// swapped, 1 not.
Result<int> verify_image(const ImageToVerify& image, bool json);

/// What ld.so printed under LD_TRACE_LOADED_OBJECTS.
struct LoaderList {
  std::vector<MappedLibrary> libraries;  ///< from_host is not known yet
  std::vector<std::string> missing;
};
LoaderList parse_loader_list(const std::string& text);

}  // namespace heddle::hook
