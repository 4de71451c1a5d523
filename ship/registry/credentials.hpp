// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heddle::registry {

struct Credentials {
  std::string basic;           ///< "user:password" in base64, as HTTP sends it
  std::string identity_token;  ///< instead: an OAuth2 refresh token
};

/// What `podman login` or `docker login` left for `host`/`repository`: $REGISTRY_AUTH_FILE,
/// $XDG_RUNTIME_DIR/containers/auth.json, ~/.config/containers/auth.json,
/// $DOCKER_CONFIG/config.json, ~/.docker/config.json, the first that has it. Credential helpers are
/// programs, and are not started.
std::optional<Credentials> find_credentials(const std::string& host, const std::string& repository);

/// The same, in one file's text: of several entries that fit the most specific one.
std::optional<Credentials> credentials_in(std::string_view text, const std::string& host,
                                          const std::string& repository);

/// Whether `realm`, an URL, is where the credentials of the registry `host` may go: to the same
/// host, or to one of its site (registry.example.org and auth.example.org), or to one that
/// $HEDDLE_TOKEN_HOSTS names.
bool may_have_credentials(const std::string& realm, const std::string& host);

/// The certificates (PEM) of the authorities that a site named for `host` (with its port), in the
/// first of ~/.config/containers, /etc/containers and /etc/docker that has
/// `certs.d/HOST[:PORT]/*.crt`, as podman and docker look for them (containers-certs.d(5)). Empty:
/// none. Client certificates are not looked for.
std::string find_authorities(const std::string& host);

}  // namespace heddle::registry
