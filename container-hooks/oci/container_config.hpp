// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "container-hooks/oci/json_text.hpp"

namespace heddle::hook {

/// Where a hook finds the container's mount namespace.
enum class Stage : std::uint8_t {
  create_runtime,    ///< in the runtime's: the container's is entered by its pid
  create_container,  ///< in the container's own, before its root is changed
};

/// What a runtime writes to a hook's stdin (OCI runtime specification, "State").
struct ContainerState {
  std::string id;
  pid_t pid = 0;  ///< 1 or 0 inside the container's namespaces (createContainer)
  std::string bundle;
  std::map<std::string, std::string> annotations;
};

/// A file or directory of the host in the container.
struct Volume {
  std::string source;
  std::string target;
};

/// What a hook uses of config.json.
struct ContainerConfig {
  std::string rootfs;  ///< absolute, on the host
  std::map<std::string, std::string> annotations;
  std::vector<std::string> args;
  std::vector<std::string> environment;
  std::string cwd = "/";
  std::vector<Volume> volumes;         ///< bind mounts outside /dev, /proc, /sys
  std::vector<std::string> hook_args;  ///< of the fs-hook among its hooks
};

/// Whether this hook of a config.json is an fs-hook.
bool is_fs_hook(const Json& hook);

/// podman's config.json with seccomp rules has 0.1 MB.
inline constexpr std::size_t kStateLimit = 1U << 20;
inline constexpr std::size_t kConfigLimit = 8U << 20;

/// Members of another type than the specification's count as absent; unknown ones are ignored.
Result<ContainerState> parse_state(const std::string& text);
/// A relative root.path is relative to `bundle`.
Result<ContainerConfig> parse_config(const std::string& text, const std::string& bundle);
/// `<bundle>/config.json`, the rootfs free of symbolic links.
Result<ContainerConfig> read_config(const std::string& bundle);
/// A container's root directory `path`, free of symbolic links.
Result<std::string> real_root(const std::string& path);

/// The value of NAME in the container's environment; empty: it is not set.
std::string variable_of(const ContainerConfig& config, const std::string& name);

}  // namespace heddle::hook
