// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace heddle {

/// What a script sets so that the programs it starts are guided through a standing mount. Nothing
/// of GLIBC_TUNABLES: that depends on the program, and the audit library starts one anew that needs
/// it.
struct MountEnvironment {
  std::string audit_library;  ///< goes before what LD_AUDIT holds, once
  std::string index_path;     ///< HEDDLE_INDEX
};

enum class ShellKind : std::uint8_t {
  sh,          ///< POSIX, bash, zsh: for eval
  fish,        ///< for source
  modulefile,  ///< Tcl, of Environment Modules and Lmod
  json,
};

/// The text that sets `environment`; any byte in a path is quoted.
std::string to_shell_text(const MountEnvironment& environment, ShellKind shell);

/// The environment for the mount of `map` at `directory`; nullopt, with the reason in `why_not`,
/// when there is no heddle mount, one of another map, or one that programs would not find where its
/// index says it is.
Result<std::optional<MountEnvironment>> mount_environment(const std::string& map,
                                                          const std::string& directory,
                                                          std::string& why_not);

/// fs-gen --print-env: writes to stdout; exit_no when the mount is not there.
int print_env(const std::string& map, const std::string& directory, ShellKind shell);

}  // namespace heddle
