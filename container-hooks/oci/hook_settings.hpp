// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/mount_service.hpp"
#include "container-hooks/cache/decision_cache.hpp"
#include "container-hooks/oci/container_config.hpp"

namespace heddle::hook {

enum class OnFailure : std::uint8_t {
  enforce,  ///< no container
  warn,     ///< the container as it is, and a line in the log
};

/// What is asked for one container.
struct SwapRequest {
  bool host_mpi = false;
  OnFailure on_failure = OnFailure::enforce;
  std::string program;  ///< empty: the container's own first word
};

struct HookSettings {
  Stage stage = Stage::create_runtime;
  std::string cache;  ///< directory of decisions
  CacheLimits limits;
  std::string log;  ///< file that gets each line too, with the container's id; empty: none
  std::string mount_point = "/dev/heddle";
  std::string mpi = "auto";
  /// By the hook's arguments, which are the administrator's or the user's own (CDI, podman
  /// --hooks-dir, config.json): no image has a part in them.
  SwapRequest request;
  /// Directories: annotations count in bundles below one of them. podman copies an image's own
  /// annotations into its container, so elsewhere they may be the image's.
  std::vector<std::string> allow_annotations;
  std::string node = kNodeDirectory;  ///< where fs-mount --node serves; empty: not asked
  std::chrono::seconds limit{120};    ///< for all of a start; 0: none
  std::string hook_file;              ///< that podman starts the hook by; empty: not known
};

/// `request` as changed by annotations. A value that is not documented is an error.
Result<SwapRequest> annotated(SwapRequest request,
                              const std::map<std::string, std::string>& annotations);

/// Whether there is an annotation of heddle other than "off".
bool asks_by_annotation(const std::map<std::string, std::string>& annotations);

/// The hook: a container's state on stdin. Result: the exit status for the runtime. Unless it was
/// asked for in a way that counts, it ends at once and has touched nothing but its log. A failure
/// is one line on stderr and in the log.
int oci_hook(const HookSettings& settings);

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
