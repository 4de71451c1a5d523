// SPDX-License-Identifier: MIT
#pragma once

// Typed messages, with descriptors, between processes of heddle: one record of base/coder.hpp a
// packet. Both ends are of one build unless a format's page says otherwise; whatever arrives may
// still be hostile, so a packet that does not decode to exactly one record is EPROTO.

#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "base/coder.hpp"
#include "base/packet.hpp"
#include "base/try.hpp"

namespace heddle {

/// Sends `message` as one packet, EMSGSIZE when it is longer than kLongestPacket; the descriptors
/// stay the caller's.
template <class T>
Result<void> send_record(int socket, const T& message, std::span<const int> fds = {}) {
  Encoder coder;
  coder(message);
  const std::string bytes = coder.take();
  if (bytes.size() > kLongestPacket)
    return fail_errno("", "cannot talk to the other process", EMSGSIZE);
  return send_packet(socket, bytes, fds);
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
  Received<T> out{};
  Decoder coder(packet.text);
  coder(out.message);
  if (!coder.complete())
    return fail_errno("", "cannot understand the other process", EPROTO,
                      "are both programs of one version?");
  out.fds = std::move(packet.fds);
  return out;
}

}  // namespace heddle
