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

/// Binds what an MPI program needs of the host's /dev, and /sys.
inline void bind_host_devices(nlohmann::json& config) {
  for (const char* path : {"/dev/null", "/dev/urandom", "/dev/shm", "/sys"})
    config["mounts"].push_back(oci_bind(path, path, "rw"));
}

/// Lets the container's device cgroup allow /dev/fuse.
inline void allow_fuse_device(nlohmann::json& config) {
  config["linux"]["resources"]["devices"] = nlohmann::json::array({nlohmann::json{
      {"allow", true}, {"type", "c"}, {"major", 10}, {"minor", 229}, {"access", "rw"}}});
}

/// Adds a user namespace, in which `host_id` is uid and gid 0.
inline void add_user_namespace(nlohmann::json& config, unsigned host_id, unsigned size = 1) {
  config["linux"]["namespaces"].push_back({{"type", "user"}});
  for (const char* map : {"uidMappings", "gidMappings"})
    config["linux"][map] = {{{"containerID", 0}, {"hostID", host_id}, {"size", size}}};
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
  // The test's bundles may lie anywhere.
  auto args = nlohmann::json::array({"fs-hook", "oci", "--allow-annotations", "/"});
  for (const auto& option : options) args.push_back(option);
  return {
      {"path", program}, {"args", args}, {"env", nlohmann::json::array({"PATH=/usr/bin:/bin"})}};
}

}  // namespace heddle::test
