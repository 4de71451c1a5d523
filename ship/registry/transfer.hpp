// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "ship/registry/reference.hpp"

namespace heddle::registry {

struct PushOptions {
  std::string type;       ///< media type of the content; also the artifactType
  std::string title;      ///< the file's name for people
  std::string attach_to;  ///< tag or digest of an image in the same repository; empty: none
};

/// No content is larger, whoever says so.
inline constexpr std::uint64_t kMostContent = std::uint64_t{4} << 30;

/// Pushes the file `content` as an OCI artifact with one layer. Result: its manifest's digest. What
/// is attached to an image gets a tag only where `to` names one. Fails as the registry does, and
/// with EEXIST where the tag names something else, an image as a rule; nothing is to be seen there
/// before its manifest is.
Result<std::string> push(const Reference& to, int content, const PushOptions& options);

/// The content, at its begin, of the artifact of media type `type` at `from`, or attached to the
/// image there. Held against its digests, kept in `cache` (a folder; empty: not kept) and taken
/// from there when it is known: a digest needs no registry then, a tag only when the registry
/// cannot be reached, with a warning.
Result<Fd> pull(const Reference& from, const std::string& type, const std::string& cache);

/// A file without a name in $TMPDIR.
Result<Fd> make_scratch_file();

/// $XDG_CACHE_HOME/heddle/oci, or ~/.cache/heddle/oci; empty when there is neither.
std::string default_cache();

}  // namespace heddle::registry
