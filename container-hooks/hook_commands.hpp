// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "container-hooks/oci_hook.hpp"

namespace heddle {

struct HookFileSettings {
  HookSettings hook;
  bool stage_given = false;
  std::string runtime = "podman";
  std::string directory;  ///< install: of hooks; bundle: the bundle
};

/// Root's are the system's, a user's are below his home.
std::string default_cache();
std::string default_log();

// Each gives the exit status.

/// podman: writes a CDI specification, or with --always or --allow-annotations a file for hooks.d.
/// runc and crun have neither: prints what goes into config.json.
int install_hook(const HookFileSettings& settings);
int print_cdi(const HookFileSettings& settings);
int edit_bundle(const HookFileSettings& settings);

}  // namespace heddle
