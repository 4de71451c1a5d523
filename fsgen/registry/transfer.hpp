// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"
#include "fsgen/registry/reference.hpp"

namespace heddle::registry {

struct PushOptions {
  std::string type;       ///< media type of the content; also the artifactType
  std::string title;      ///< the file's name for people
  std::string attach_to;  ///< tag or digest of an image in the same repository; empty: none
};

/// Pushes `content` as an OCI artifact with one layer. Result: its manifest's digest. Fails as the
/// registry does; nothing is to be seen there before its manifest is.
Result<std::string> push(const Reference& to, const std::string& content,
                         const PushOptions& options);

/// The content of the artifact of media type `type` at `from`, or attached to the image there. Held
/// against its digests, kept in `cache` (a folder; empty: not kept) and taken from there when it is
/// known: a digest needs no registry then, a tag only when the registry cannot be reached, with a
/// warning.
Result<std::string> pull(const Reference& from, const std::string& type, const std::string& cache);

/// $XDG_CACHE_HOME/heddle/oci, or ~/.cache/heddle/oci; empty when there is neither.
std::string default_cache();

}  // namespace heddle::registry
