// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "container-hooks/oci/container_config.hpp"

namespace heddle::hook {

enum class Volumes : std::uint8_t {
  inert,    ///< read-only, nosuid, nodev
  as_host,  ///< as on the host
};

/// Makes `rootfs` (canonical), in this process's mount namespace, a container's root as before its
/// program starts: with volumes and an empty /dev. The image is read-only, nosuid and nodev.
/// Targets of volumes that it lacks, and `directory`, are made in memory.
Result<void> make_container_root(const std::string& rootfs, const std::vector<Volume>& volumes,
                                 Volumes kind, const std::string& directory = "/");

/// Shows the host's devices in the empty /dev of make_container_root().
Result<void> show_devices(const std::string& rootfs);

/// pivot_root(2), "pivot_root(".", ".")": this namespace no longer has the host's file tree.
bool change_root(const std::string& rootfs);

}  // namespace heddle::hook
