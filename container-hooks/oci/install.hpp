// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "container-hooks/oci/hook_settings.hpp"

namespace heddle::hook {

// What makes a runtime call the hook: a CDI specification, a file in podman's hooks.d
// (oci-hooks(5)), or an entry in a bundle's config.json.

struct InstallSettings {
  HookSettings hook;
  bool stage_given = false;
  std::string runtime = "podman";
  std::string directory;  ///< install: of hooks; bundle: the bundle
};

/// Root's are the system's, a user's lie below the home directory.
std::string default_cache();
std::string default_log();

/// podman: writes a CDI specification, or with --always or --allow-annotations a file for hooks.d.
/// runc and crun have neither: prints what goes into config.json.
Result<void> install_hook(const InstallSettings& settings);
Result<void> print_cdi(const InstallSettings& settings);
/// Puts the hook into a config.json, once, in place of one that is there.
Result<void> edit_bundle(const InstallSettings& settings);

}  // namespace heddle::hook
