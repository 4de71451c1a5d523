// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heddle::registry {

struct Credentials {
  std::string user;
  std::string password;
  std::string identity_token;  ///< instead of the two: an OAuth2 refresh token
};

/// What `podman login` or `docker login` left for `host`/`repository`: $REGISTRY_AUTH_FILE,
/// $XDG_RUNTIME_DIR/containers/auth.json, ~/.config/containers/auth.json,
/// $DOCKER_CONFIG/config.json, ~/.docker/config.json, the first that has it. Credential helpers are
/// programs, and are not started.
std::optional<Credentials> find_credentials(const std::string& host, const std::string& repository);

/// The same, in one file's text: of several entries that fit the most special one.
std::optional<Credentials> credentials_in(std::string_view text, const std::string& host,
                                          const std::string& repository);

/// RFC 4648; nullopt when `text` is none.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace heddle::registry
