// SPDX-License-Identifier: MIT
#include "tests/support/oci_config.hpp"

namespace heddle::test {

using Json = nlohmann::json;

Json oci_config(const std::string& rootfs, const std::vector<std::string>& args) {
  auto dev = oci_tmpfs("/dev");
  dev["options"] = {"nosuid", "strictatime", "mode=755", "size=65536k"};
  return {{"ociVersion", "1.0.2"},
          {"process",
           {{"terminal", false},
            {"user", {{"uid", 0}, {"gid", 0}}},
            {"cwd", "/"},
            {"args", args},
            {"env", Json::array({"PATH=/usr/bin:/bin"})},
            {"noNewPrivileges", true}}},
          {"root", {{"path", rootfs}, {"readonly", true}}},
          {"annotations", {{"heddle.mpi", "host"}}},
          {"mounts",
           Json::array({{{"destination", "/proc"}, {"type", "proc"}, {"source", "proc"}}, dev})},
          {"linux", {{"namespaces", Json::array({{{"type", "mount"}}, {{"type", "pid"}}})}}}};
}

Json oci_bind(const std::string& source, const std::string& target, const std::string& access) {
  return {{"destination", target},
          {"type", "bind"},
          {"source", source},
          {"options", Json::array({"rbind", access})}};
}

Json oci_tmpfs(const std::string& target) {
  return {{"destination", target}, {"type", "tmpfs"}, {"source", "tmpfs"}};
}

Json oci_hook_entry(const std::string& program, const std::vector<std::string>& options) {
  // What is annotated here is the test's own, whatever directory its bundle lies in.
  auto args = Json::array({"fs-hook", "oci", "--allow-annotations", "/"});
  for (const auto& option : options) args.push_back(option);
  return {{"path", program}, {"args", args}, {"env", Json::array({"PATH=/usr/bin:/bin"})}};
}

}  // namespace heddle::test
