// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "container-hooks/json_text.hpp"

namespace heddle {

/// Where a hook finds the container's mount namespace.
enum class Stage : std::uint8_t {
  create_runtime,    ///< in the runtime's: the container's is entered by its pid
  create_container,  ///< in the container's own, before its root is changed
};

/// What a runtime writes to a hook's stdin (OCI runtime spec, "State").
struct ContainerState {
  std::string id;
  pid_t pid = 0;  ///< 1 or 0 inside the container's namespaces (createContainer)
  std::string bundle;
  std::map<std::string, std::string> annotations;
};

/// A file or folder of the host's in the container.
struct Volume {
  std::string source;
  std::string target;
};

/// What a hook wants of config.json.
struct ContainerConfig {
  std::string rootfs;  ///< absolute, as the host sees it
  std::map<std::string, std::string> annotations;
  std::vector<std::string> args;
  std::vector<std::string> environment;
  std::string cwd = "/";
  std::vector<Volume> volumes;         ///< bind mounts outside /dev, /proc, /sys
  std::vector<std::string> hook_args;  ///< of the fs-hook in it
};

/// Whether this hook of a config.json is an fs-hook.
bool is_fs_hook(const Json& hook);

/// More is no honest runtime's: podman's largest, with seccomp rules, is 0.1 MB.
inline constexpr std::size_t kStateLimit = 1U << 20;
inline constexpr std::size_t kConfigLimit = 8U << 20;

/// Nothing in either is believed to have the type it should; unknown members are passed over.
Result<ContainerState> parse_state(const std::string& text);
/// `bundle` is what a relative root.path counts from.
Result<ContainerConfig> parse_config(const std::string& text, const std::string& bundle);
/// `<bundle>/config.json`.
Result<ContainerConfig> read_config(const std::string& bundle);

}  // namespace heddle
