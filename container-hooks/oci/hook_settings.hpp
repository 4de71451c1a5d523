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

/// The request for one container.
struct SwapRequest {
  bool host_mpi = false;
  OnFailure on_failure = OnFailure::enforce;
  std::string program;  ///< empty: the container's own first word
};

struct HookSettings {
  Stage stage = Stage::create_runtime;
  std::string cache;  ///< directory of decisions
  CacheLimits limits;
  std::string log;  ///< file that gets each message too, with the container's id; empty: none
  std::string mount_point = "/dev/heddle";
  std::string mpi = "auto";
  /// From the hook's arguments, which the administrator or the user writes (CDI, podman
  /// --hooks-dir, config.json) and no image can change.
  SwapRequest request;
  /// Annotations count only in bundles below one of these directories: podman copies an image's
  /// annotations into its containers.
  std::vector<std::string> allow_annotations;
  std::string node = kNodeDirectory;  ///< directory of fs-mount --node; empty: not used
  std::chrono::seconds limit{120};    ///< for all of a start; 0: none
  std::string hook_file;              ///< the file in hooks.d; empty: unknown
};

/// `request` as changed by annotations. An undocumented value is an error.
Result<SwapRequest> annotated(SwapRequest request,
                              const std::map<std::string, std::string>& annotations);

/// Whether there is an annotation of heddle's that would change the request. `swaps`: without
/// annotations the container is swapped, so "off" would.
bool asks_by_annotation(const std::map<std::string, std::string>& annotations, bool swaps);

/// The hook: a container's state on stdin. Result: the exit status for the runtime. Without a valid
/// request it ends at once and writes only to its log. A failure is one line on stderr and in the
/// log.
int oci_hook(const HookSettings& settings);

/// A runtime calls the hook by a CDI specification, a file in podman's hooks.d (oci-hooks(5)), or
/// an entry in a bundle's config.json.
struct InstallSettings {
  HookSettings hook;
  bool stage_given = false;
  std::string runtime = "podman";
  std::string directory;  ///< install: of hooks; bundle: the bundle
};

/// The system's for root, else below the home directory.
std::string default_cache();
std::string default_log();

/// podman: writes a CDI specification, or with --always or --allow-annotations a file for hooks.d.
/// runc and crun have neither: prints the entry of config.json.
Result<void> install_hook(const InstallSettings& settings);
Result<void> print_cdi(const InstallSettings& settings);
/// Adds the hook to a config.json, or replaces the one that it has.
Result<void> edit_bundle(const InstallSettings& settings);

}  // namespace heddle::hook
