// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "container-hooks/cache/decision.hpp"
#include "container-hooks/oci/json_text.hpp"

namespace heddle::hook {

/// A file that a process has mapped, or would map.
struct MappedLibrary {
  std::string path;        ///< as the process sees it
  bool from_host = false;  ///< it is of our mounts
  std::string name = {};   ///< it is asked for by; empty: not known
};

/// Devices of our mounts and of the copies of their files.
std::set<dev_t> heddle_devices(const std::string& mountinfo);
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

/// Prints the finding; `about` leads the JSON form. Exit status: 0 swapped, 1 not.
int print_finding(const Finding& finding, const std::vector<MappedLibrary>& libraries,
                  const Decision& decision, Json about, bool json);

/// Prints the finding for a process. Result: the exit status, 0 swapped, 1 not.
Result<int> verify_process(pid_t pid, bool json);

}  // namespace heddle::hook
