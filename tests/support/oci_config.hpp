// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace heddle::test {

/// Entries of the "mounts" of a config.json.
inline nlohmann::json oci_bind(const std::string& source, const std::string& target,
                               const std::string& access = "ro") {
  return {{"destination", target},
          {"type", "bind"},
          {"source", source},
          {"options", nlohmann::json::array({"rbind", access})}};
}
inline nlohmann::json oci_tmpfs(const std::string& target) {
  return {{"destination", target}, {"type", "tmpfs"}, {"source", "tmpfs"}};
}

/// config.json of a read-only container with nothing but /proc and an empty /dev in its root, which
/// runc and crun of every version take.
inline nlohmann::json oci_config(const std::string& rootfs, const std::vector<std::string>& args) {
  auto dev = oci_tmpfs("/dev");
  dev["options"] = {"nosuid", "strictatime", "mode=755", "size=65536k"};
  return {
      {"ociVersion", "1.0.2"},
      {"process",
       {{"terminal", false},
        {"user", {{"uid", 0}, {"gid", 0}}},
        {"cwd", "/"},
        {"args", args},
        {"env", nlohmann::json::array({"PATH=/usr/bin:/bin"})},
        {"noNewPrivileges", true}}},
      {"root", {{"path", rootfs}, {"readonly", true}}},
      {"annotations", {{"heddle.mpi", "host"}}},
      {"mounts", nlohmann::json::array(
                     {{{"destination", "/proc"}, {"type", "proc"}, {"source", "proc"}}, dev})},
      {"linux", {{"namespaces", nlohmann::json::array({{{"type", "mount"}}, {{"type", "pid"}}})}}}};
}

/// fs-hook as an entry of its "hooks", with `options` of `fs-hook oci`.
inline nlohmann::json oci_hook_entry(const std::string& program,
                                     const std::vector<std::string>& options) {
  // What is annotated here is the test's own, whatever directory its bundle lies in.
  auto args = nlohmann::json::array({"fs-hook", "oci", "--allow-annotations", "/"});
  for (const auto& option : options) args.push_back(option);
  return {
      {"path", program}, {"args", args}, {"env", nlohmann::json::array({"PATH=/usr/bin:/bin"})}};
}

}  // namespace heddle::test
