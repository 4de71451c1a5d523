// SPDX-License-Identifier: MIT
#pragma once

// Typed messages with descriptors between heddle's processes, over SOCK_SEQPACKET unix sockets: one
// record of base/coder.hpp per packet. Both ends are of one build unless a format's page says
// otherwise. The peer may be hostile: a packet that is not exactly one record is EPROTO.

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/coder.hpp"
#include "base/fd.hpp"
#include "base/try.hpp"

namespace heddle {

struct SocketPair {
  Fd one;
  Fd other;
};
/// A connected pair of SOCK_SEQPACKET unix sockets, close-on-exec.
Result<SocketPair> make_socket_pair();

struct Packet {
  std::string text;
  std::vector<Fd> fds;
};

/// A packet must fit the socket's buffer (212,992 bytes, net.core.wmem_default).
inline constexpr std::size_t kLongestPacket = 128 * 1024;
/// Descriptors in one packet (SCM_MAX_FD of linux/net/scm.h).
inline constexpr std::size_t kMostPacketFds = 253;
/// No time limit.
inline constexpr std::chrono::milliseconds kNoLimit = std::chrono::milliseconds::max();

/// Whether poll(2) finds input or an end of file at `fd` within `limit`.
Result<bool> wait_for_input(int fd, std::chrono::milliseconds limit);

/// Sends one packet, without SIGPIPE. The descriptors stay the caller's. EMSGSIZE: longer than
/// kLongestPacket; EINVAL: more than kMostPacketFds.
Result<void> send_packet(int socket, std::string_view text, std::span<const int> fds = {});
/// Waits for one packet; ETIMEDOUT after `limit`, ECONNRESET when the other end is gone.
Result<Packet> receive_packet(int socket, std::chrono::milliseconds limit);

/// send_packet() of `message`.
template <class T>
Result<void> send_record(int socket, const T& message, std::span<const int> fds = {}) {
  Encoder coder;
  coder(message);
  return send_packet(socket, coder.take(), fds);
}

/// The record of type T in `bytes`; EPROTO: they are not exactly one.
template <class T>
Result<T> decode_record(std::string_view bytes) {
  T out{};
  Decoder coder(bytes);
  coder(out);
  if (!coder.complete())
    return fail_errno("", "invalid message from the other process", EPROTO,
                      "are both programs of one version?");
  return out;
}

template <class T>
struct Received {
  T message;
  std::vector<Fd> fds;
};

/// Waits for one message of type T; failures as of receive_packet(), and EPROTO.
template <class T>
Result<Received<T>> receive_record(int socket, std::chrono::milliseconds limit) {
  Packet packet = TRY(receive_packet(socket, limit));
  T message = TRY(decode_record<T>(packet.text));
  return Received<T>{std::move(message), std::move(packet.fds)};
}

// The result of a step: a descriptor, or an error.

Result<void> send_fd(int socket, int fd);
/// Does nothing when the receiver is gone.
void send_failure(int socket, const Error& error);
/// The descriptor of send_fd(), or the error of send_failure(); ECONNRESET when the other end is
/// gone.
Result<Fd> receive_fd(int socket);

/// `error` with texts cut so that it fits a packet.
Error shortened(const Error& error);

}  // namespace heddle
