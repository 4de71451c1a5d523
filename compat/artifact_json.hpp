// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"
#include "compat/artifact.hpp"

namespace heddle::compat {

/// No artifact is larger: a reader refuses it unread. Bytes.
inline constexpr std::size_t kMaxArtifact = std::size_t{64} << 20;

/// The artifact as docs/formats/artifact.md has it, with a newline at its end: the same artifact
/// always gives the same bytes.
std::string to_json(const Artifact& artifact);

/// Reads what to_json() wrote. Fails, naming `where` and the key, on anything else: no JSON
/// (ENOEXEC), no `heddle` part (ENOTSUP: one that only compat-lib's tool wrote), another format
/// version (ENOTSUP), a key of the wrong kind (EBADMSG). Unknown keys are passed over.
Result<Artifact> parse_artifact(std::string_view text, const std::string& where);

}  // namespace heddle::compat
