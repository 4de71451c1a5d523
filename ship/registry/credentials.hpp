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

/// The credentials that `podman login` or `docker login` stored for `host`/`repository`, from the
/// first that has some: $REGISTRY_AUTH_FILE, $XDG_RUNTIME_DIR/containers/auth.json,
/// ~/.config/containers/auth.json, $DOCKER_CONFIG/config.json, ~/.docker/config.json. Credential
/// helpers are programs, and are not started.
std::optional<Credentials> find_credentials(const std::string& host, const std::string& repository);

/// `docker-credential-NAME of FILE`, which one of these files names for `host`; empty: none does.
std::string find_credential_helper(const std::string& host);

/// find_credentials() in one file's text: the most specific entry.
std::optional<Credentials> credentials_in(std::string_view text, const std::string& host,
                                          const std::string& repository);

/// Whether the credentials of the registry `host` may be sent to the URL `realm`: to the same host,
/// to one of its site (registry.example.org and auth.example.org), or one in $HEDDLE_TOKEN_HOSTS.
bool may_have_credentials(const std::string& realm, const std::string& host);

/// The certificates (PEM) of the authorities for `host` (with its port):
/// `certs.d/HOST[:PORT]/*.crt` in the first of ~/.config/containers, /etc/containers and
/// /etc/docker that has one (containers-certs.d(5)). Empty: none. Client certificates are ignored.
std::string find_authorities(const std::string& host);

}  // namespace heddle::registry
