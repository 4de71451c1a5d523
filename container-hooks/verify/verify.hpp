// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "container-hooks/oci/hook_settings.hpp"

namespace heddle::hook {

/// A file that a process has mapped, or would map.
struct MappedLibrary {
  std::string path;        ///< as the process sees it
  bool from_host = false;  ///< it is of our mounts
  std::string name = {};   ///< it is asked for by; empty: not known
};

/// From the texts of /proc/PID/maps and mountinfo: libraries and ld.so, each once, in the order of
/// their addresses.
std::vector<MappedLibrary> mapped_libraries(const std::string& maps, const std::string& mountinfo);
/// Where our mount stands; empty: the process has none.
std::string heddle_mount_point(const std::string& mountinfo);

struct Finding {
  bool swapped = false;
  std::vector<std::string> lines;  ///< for people
};
/// What the process loads, compared with what was decided for it.
Finding compare_with_decision(const std::vector<MappedLibrary>& libraries,
                              const Decision& decision);

/// Prints the finding for a process. Result: the exit status, 0 swapped, 1 not.
Result<int> verify_process(pid_t pid, bool json);

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
/// in that program. Prints the finding. Result: the exit status, 0 swapped, 1 not.
Result<int> verify_image(ImageToVerify image, bool json);

/// What ld.so printed under LD_TRACE_LOADED_OBJECTS.
struct LoaderList {
  std::vector<MappedLibrary> libraries;  ///< from_host is not known yet
  std::vector<std::string> missing;
};
LoaderList parse_loader_list(const std::string& text);

}  // namespace heddle::hook
