// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle::compat {

/// Where compat-server leaves its token for clients of its user, and these look for it:
/// $RUNTIME_DIRECTORY/token (a systemd unit's), /run/heddle/compat-server.token (root's), else
/// $XDG_RUNTIME_DIR/heddle/compat-server.token or ~/.cache/heddle/compat-server.token. Empty:
/// nowhere.
std::string default_token_file();

/// The token in the file at `path`, without the newline. Fails when it is shorter than 16
/// characters.
Result<std::string> read_token(const std::string& path);

/// read_token(); where there is no file, one is made first, mode 0600, with 256 random bits. EPERM:
/// others than its owner, who must be us, may read or write it.
Result<std::string> read_or_make_token(const std::string& path);

/// Whether only this node can reach `address` (a loopback address or a unix socket).
bool is_local(const std::string& address);

}  // namespace heddle::compat
