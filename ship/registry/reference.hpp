// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace heddle::registry {

/// `HOST[:PORT]/REPOSITORY[:TAG][@DIGEST]`, as docker and podman write it. The host is required: a
/// short name means another registry on each machine.
struct Reference {
  std::string host;        ///< with its port, if it has one
  std::string repository;  ///< "lammps/compat"
  std::string tag;         ///< "latest" when there is neither tag nor digest
  bool tagged = false;     ///< the text names a tag
  std::string digest;      ///< "sha256:<64 hex digits>", or empty

  /// The digest, else the tag.
  const std::string& version() const { return digest.empty() ? tag : digest; }
  /// `http` for a loopback host, as docker has it; else `https`.
  std::string scheme() const;
  std::string text() const;
};

/// EINVAL: `text` is not such a reference.
Result<Reference> parse_reference(std::string_view text);

/// `sha256:` and the SHA-256 of `data` in hex.
std::string digest_of(std::string_view data);
/// Whether `text` is `sha256:` and 64 lower-case hex digits.
bool is_digest(std::string_view text);

/// `host[:port]` of an absolute http or https URL; empty for any other, or one with a user.
std::string host_of(const std::string& url);
/// `host` of `host[:port]`.
std::string without_port(const std::string& host);

}  // namespace heddle::registry
