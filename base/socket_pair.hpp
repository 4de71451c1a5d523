// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "base/fd.hpp"

namespace heddle {

struct SocketPair {
  Fd one;
  Fd other;
};
/// A connected pair of SOCK_SEQPACKET unix sockets, close-on-exec.
Result<SocketPair> make_socket_pair();

/// Sends one byte with `fd` attached (SCM_RIGHTS); `fd` stays the caller's. MSG_NOSIGNAL.
Result<void> send_fd(int socket, int fd);
enum class FailureCode : std::uint8_t { left_out, sent };
/// Sends an error's text and hint, cut at 4 KiB, and code() if wanted, in place of the descriptor.
void send_failure(int socket, const Error& error,
                  FailureCode code = FailureCode::left_out) noexcept;
/// The error that send_failure() sent as these bytes; its code() is 0 where none was sent.
Error received_failure(std::string_view bytes);
/// Receives what send_fd() sent; ECONNRESET when the other end is gone; the other end's own error
/// when it sent that instead.
Result<Fd> receive_fd(int socket);

}  // namespace heddle
