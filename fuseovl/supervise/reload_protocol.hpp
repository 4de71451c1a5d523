// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "base/fd.hpp"

namespace heddle {

// What an `fs-mount --reload` and the supervisor of a mount say to each other: CBOR in one packet
// each way, over a SOCK_SEQPACKET unix socket. Either may be the newer.

struct ReloadRequest {
  std::optional<std::string> map_path;  ///< absolute; nullopt: the map stays
  Fd map;                               ///< open, when there is a path
  Fd program;                           ///< the fs-mount that is to go on
};
Result<void> send_request(int socket, const ReloadRequest& request);
/// One that is there. Fails when it makes no sense, ECONNRESET when the other end is gone.
Result<ReloadRequest> receive_request(int socket);

struct ReloadReply {
  bool done = false;
  std::string text;  ///< what changed, or the error
  std::string hint;
  std::string warnings;  ///< lines
  bool map_exchanged = false;
};
Result<void> send_reply(int socket, const ReloadReply& reply);
/// Waits for it. ECONNRESET when the other end is gone.
Result<ReloadReply> receive_reply(int socket);

/// A socket that is connected to `name`.
Result<Fd> connect_abstract(const std::string& name);
/// One that listens there; EADDRINUSE.
Result<Fd> listen_abstract(const std::string& name);

/// As many of the text's lines as go into a packet with other words; how many more there are is
/// said in their place.
std::string lines_for_packet(const std::string& text);

}  // namespace heddle
