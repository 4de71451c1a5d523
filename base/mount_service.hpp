// SPDX-License-Identifier: MIT
#pragma once

// What a client and a service of mounts say to each other (docs/formats/mount-service.md): one
// message a packet, over a SOCK_SEQPACKET unix socket. A map is named by the hash of its content
// and comes as a descriptor, a mount comes back as a descriptor; no message holds a path or a
// program of the sender's that the receiver would act on.

#include <chrono>
#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace heddle {

enum class MountWord : char {
  // To the service.
  want = 'w',  ///< a mount of the map whose hash is the text; that map's file comes along
  warm = 'k',  ///< everything that the kernel can keep of the mount has been asked for
  bye = 'b',   ///< this connection holds the mount no longer
  // From it.
  mounted = 'm',   ///< a detached mount comes along, unless it stands where all can see it
  counters = 'c',  ///< answer to bye
  failed = 'e',    ///< an error: error_text()
};

struct MountMessage {
  MountWord word{};
  std::string text;
  Fd descriptor;  ///< that came with it, or none
};

/// Sends one message, `descriptor` attached when it is one. MSG_NOSIGNAL.
Result<void> send_message(int socket, MountWord word, std::string_view text, int descriptor = -1);
/// Sends `failed`; that nobody takes it is no matter.
void send_error(int socket, const Error& error);
/// Waits for one message; ETIMEDOUT after `limit`, ECONNRESET when the other end is gone, EPROTO
/// when it makes no sense: another version's, cut, with descriptors that no message has.
Result<MountMessage> receive_message(int socket, std::chrono::milliseconds limit);

/// The error that came as `failed`; its code() is 0, or ESTALE when the map cannot be served on
/// this node in any way, ETIMEDOUT when a file system does not answer.
Error error_of(const MountMessage& message);

}  // namespace heddle
