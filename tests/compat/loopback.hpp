// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/fd.hpp"
#include "tests/support/run.hpp"

namespace heddle::test {

/// A socket bound to a free loopback port.
struct BoundSocket {
  Fd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port = 0;
};
inline BoundSocket bind_loopback() {
  BoundSocket out;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ::bind(out.fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at);
  ::getsockname(out.fd.get(), reinterpret_cast<sockaddr*>(&at), &size);
  out.port = ntohs(at.sin_port);
  return out;
}
inline int free_port() { return bind_loopback().port; }

/// No descriptor when no socket listens.
inline Fd connect_to(int port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) fd.reset();
  return fd;
}

/// A self-signed certificate for the address and localhost.
inline void make_certificate(const std::string& address, const std::string& key,
                             const std::string& certificate) {
  run_checked({"openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
               "/CN=" + address, "-addext", "subjectAltName=DNS:localhost,IP:" + address, "-keyout",
               key, "-out", certificate});
}

}  // namespace heddle::test
