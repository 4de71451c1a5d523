// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle::compat {

/// The file with compat-server's token for clients of the same user: $RUNTIME_DIRECTORY/token (a
/// systemd unit's), /run/heddle/compat-server.token (root's), else
/// $XDG_RUNTIME_DIR/heddle/compat-server.token or ~/.cache/heddle/compat-server.token. Empty: none.
std::string default_token_file();

/// The token in the file at `path`, without the newline. Fails when it is shorter than 16
/// characters.
Result<std::string> read_token(const std::string& path);

/// read_token(); a missing file is made first, mode 0600, with 256 random bits. EPERM: the file
/// belongs to another user, or others may read or write it.
Result<std::string> read_or_make_token(const std::string& path);

/// Whether only this node can reach `address` (a loopback address or a unix socket).
bool is_local(const std::string& address);

}  // namespace heddle::compat
