// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "container-hooks/json_text.hpp"
#include "container-hooks/oci_hook.hpp"

namespace heddle {

/// `createRuntime`, as config.json and hooks.d spell it.
const char* stage_name(Stage stage);

/// One hook as OCI, podman's hooks.d and CDI write it: absolute path, arguments, an environment of
/// its own (without one runc would give it the image's), a timeout.
Json hook_entry(const std::string& program, const HookSettings& settings);

/// podman's hooks.d/*.json (oci-hooks(5)): for every container where the settings say so, else for
/// those with the annotation heddle.mpi.
Json podman_hook(const std::string& program, const HookSettings& settings);
/// A CDI specification: device heddle/mpi=host. A container gets it by `podman run --device` alone:
/// what an image says (annotations, labels, ENV) has no part in it.
Json cdi_spec(const std::string& program, const HookSettings& settings);
/// A config.json with our hook in it, once, whatever was there before.
Result<Json> with_hook(Json config, const std::string& program, const HookSettings& settings);

}  // namespace heddle
