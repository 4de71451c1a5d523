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
  bool from_host = false;  ///< on one of heddle's mounts
  std::string name = {};   ///< as in DT_NEEDED; empty: unknown
};

/// From the texts of /proc/PID/maps and mountinfo: libraries and ld.so, each once, in the order of
/// their addresses.
std::vector<MappedLibrary> mapped_libraries(const std::string& maps, const std::string& mountinfo);
/// heddle's mount point; empty: the process has none.
std::string heddle_mount_point(const std::string& mountinfo);

struct Finding {
  bool swapped = false;
  std::vector<std::string> lines;  ///< for people
};
/// Compares the libraries that a process loads with the decision for it.
Finding compare_with_decision(const std::vector<MappedLibrary>& libraries,
                              const Decision& decision);

/// Prints the finding for a process. Result: the exit status, 0 swapped, 1 not.
Result<int> verify_process(pid_t pid, bool json);

struct ImageToVerify {
  std::string bundle;              ///< an OCI bundle; empty: `rootfs`
  std::string rootfs;              ///< a root file system
  std::string program;             ///< in the container; empty: what the bundle starts
  std::chrono::seconds limit{30};  ///< for each run of its ld.so
  HookSettings hook;               ///< cache, mount point and MPI, as for the hook
};

/// Runs the image's ld.so on the program, and on the plugins as if the program had loaded them, in
/// a sandbox (sandbox_container.hpp) after the hook's mounts. Prints the finding. Result: the exit
/// status, 0 swapped, 1 not.
Result<int> verify_image(ImageToVerify image, bool json);

/// The output of ld.so under LD_TRACE_LOADED_OBJECTS.
struct LoaderList {
  std::vector<MappedLibrary> libraries;  ///< from_host is not set
  std::vector<std::string> missing;
};
LoaderList parse_loader_list(const std::string& text);

}  // namespace heddle::hook
