// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

/// One packet of a SOCK_SEQPACKET unix socket: a text, and descriptors that came with it.
struct Packet {
  std::string text;
  std::vector<Fd> fds;
};

/// A packet must fit the socket's buffer (212,992 bytes, net.core.wmem_default).
inline constexpr std::size_t kLongestPacket = 128 * 1024;
/// Of descriptors in one packet (SCM_MAX_FD of linux/net/scm.h).
inline constexpr std::size_t kMostPacketFds = 253;

/// Sends one packet; `text` is cut at kLongestPacket. The descriptors stay the caller's; EINVAL
/// when they are more than kMostPacketFds. MSG_NOSIGNAL.
Result<void> send_packet(int socket, std::string_view text, std::span<const int> fds = {});
/// Waits for one packet; ETIMEDOUT after `limit`, ECONNRESET when the other end is gone.
Result<Packet> receive_packet(int socket, std::chrono::milliseconds limit);

}  // namespace heddle
