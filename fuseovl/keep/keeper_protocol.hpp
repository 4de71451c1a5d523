// SPDX-License-Identifier: MIT
#pragma once

// What an fs-gen and the daemon of a kept mount (fs-mount --keep) say to each other: one message a
// packet, over a SOCK_SEQPACKET unix socket. An fs-gen holds the mount as long as its connection
// stands, so nothing has to be undone after a kill -9.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace heddle {

enum class KeeperWord : char {
  hello = 'h',     ///< to the daemon: asks for the mount
  folder = 'f',    ///< to the daemon: text is a folder to remove when this connection ends
  warm = 'w',      ///< to the daemon: everything that can be kept has been asked for
  bye = 'b',       ///< to the daemon: the mount is not held by this connection any more
  mounted = 'm',   ///< the mount stands: a MountedNotice; with a detached mount when it is private
  counters = 's',  ///< answer to bye: holders that are left, a space, the JSON of `.heddle/stats`
  unfit = 'd',   ///< an error's text: the map cannot be served on this node, however it is mounted
  failed = 'e',  ///< an error's text: no mount could be made
};

struct KeeperMessage {
  KeeperWord word{};
  std::string text;
  Fd descriptor;  ///< that came with it, or none
};

/// Sends one message, `descriptor` attached when it is one. MSG_NOSIGNAL.
Result<void> send_message(int socket, KeeperWord word, std::string_view text, int descriptor = -1);
/// Waits for one message; ETIMEDOUT after `limit`, ECONNRESET when the other end is gone.
Result<KeeperMessage> receive_message(int socket, std::chrono::milliseconds limit);

/// The text of KeeperWord::mounted.
struct MountedNotice {
  bool warm = false;             ///< everything that can be kept has been asked for already
  std::uint64_t requests = 0;    ///< answered so far
  std::uint64_t bytes_read = 0;  ///< handed out so far
  std::string mount_point;
};
std::string to_text(const MountedNotice& notice);
Result<MountedNotice> parse_mounted_notice(const std::string& text);

/// Whether the process at the other end is of our own user (SO_PEERCRED).
bool is_own_user(int socket);

}  // namespace heddle
