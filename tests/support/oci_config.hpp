// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace heddle::test {

/// config.json of a read-only container with nothing but /proc and an empty /dev in its root, which
/// runc and crun of every version take.
nlohmann::json oci_config(const std::string& rootfs, const std::vector<std::string>& args);

/// Entries of its "mounts".
nlohmann::json oci_bind(const std::string& source, const std::string& target,
                        const std::string& access = "ro");
nlohmann::json oci_tmpfs(const std::string& target);

/// fs-hook as an entry of its "hooks", with `options` of `fs-hook oci`.
nlohmann::json oci_hook_entry(const std::string& program, const std::vector<std::string>& options);

}  // namespace heddle::test
