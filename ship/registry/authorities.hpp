// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace heddle::registry {

/// The certificates (PEM) of the authorities that a site named for `host` (with its port), in the
/// first of ~/.config/containers, /etc/containers and /etc/docker that has
/// `certs.d/HOST[:PORT]/*.crt`, as podman and docker look for them (containers-certs.d(5)). Empty:
/// none. Client certificates are not looked for.
std::string find_authorities(const std::string& host);

}  // namespace heddle::registry
