// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ship/registry/reference.hpp"

namespace heddle::registry {

/// A [[registry]] of a registries.conf.
struct RegistryEntry {
  std::string prefix;  ///< `host`, `host:port`, `host/path[:tag]` or `*.site`; no slash at its end
  std::string location;  ///< replaces the prefix; may be empty
  bool insecure = false;
  bool blocked = false;
  bool operator==(const RegistryEntry&) const = default;
};

/// The entries of a containers-registries.conf(5), version 2. Mirrors, aliases and what else it may
/// hold are ignored. Warns of lines that may be a registry's and are not understood; `name`: the
/// file's, for that.
std::vector<RegistryEntry> registry_entries(std::string_view text,
                                            const std::string& name = "registries.conf");

/// Where a reference leads.
struct Location {
  Reference at;           ///< as the site names it: credentials and certificates are kept by it
  std::string host;       ///< that answers requests
  bool insecure = false;  ///< http, or TLS with any certificate, will do
};

/// `reference` by the longest prefix of `entries`, of equal ones the last. Docker Hub is found as
/// docker.io/NAME. EACCES: it is blocked.
Result<Location> locate(const Reference& reference, const std::vector<RegistryEntry>& entries);

/// The entries of $CONTAINERS_REGISTRIES_CONF, or of ~/.config/containers/registries.conf (else
/// that of /etc) and the directories registries.conf.d of both.
std::vector<RegistryEntry> site_entries();

}  // namespace heddle::registry
