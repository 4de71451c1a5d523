// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>

#include "resolver/policy/glibc_choice.hpp"
#include "resolver/policy/side_choice.hpp"

namespace heddle {

/// What the mount has of the host: a flat folder of libraries, and their plugin folders below it.
struct ServedNames {
  std::map<std::string, std::string> files;    ///< name below the mount -> host's file
  std::map<std::string, std::string> sonames;  ///< a name asked for -> name below the mount
};
ServedNames served_names(const SideChoice& sides, const GlibcChoice& glibc,
                         const GlibcFamily& family);

/// Whether a name below the mount is a plugin's.
bool is_plugin_name(const std::string& name);

}  // namespace heddle
