// SPDX-License-Identifier: MIT
#include "base/channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace heddle {
namespace {

constexpr const char* kCannotReceive = "cannot receive from the other process";
constexpr const char* kCannotSend = "cannot send to the other process";

union ControlBuffer {
  char bytes[CMSG_SPACE(kMostPacketFds * sizeof(int))];
  cmsghdr align;
};

std::vector<Fd> descriptors_of(msghdr& message) {
  std::vector<Fd> out;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::vector<int> fds((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
    for (const int fd : fds) out.emplace_back(fd);
  }
  return out;
}

}  // namespace

Result<SocketPair> make_socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
    return fail_errno("", "cannot make a socket pair");
  return SocketPair{Fd(fds[0]), Fd(fds[1])};
}

Result<bool> wait_for_input(int fd, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd entry{fd, POLLIN, 0};
    const int n = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (n >= 0) return n > 0;
    if (errno != EINTR) return fail_errno("", "cannot wait for another process");
  }
}

Result<void> send_packet(int socket, std::string_view text, std::span<const int> fds) {
  if (fds.size() > kMostPacketFds) return fail_errno("", kCannotSend, EINVAL);
  if (text.size() > kLongestPacket) return fail_errno("", kCannotSend, EMSGSIZE);
  iovec part{const_cast<char*>(text.data()), text.size()};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
    if (errno != EINTR) return fail_errno("", kCannotSend);
  return {};
}

Result<Packet> receive_packet(int socket, std::chrono::milliseconds limit) {
  if (limit != kNoLimit) {
    const bool in_time = TRY(wait_for_input(socket, limit));
    if (!in_time) return fail_errno("", kCannotReceive, ETIMEDOUT);
  }
  // Not a string: its pages would be cleared, for 0.1 ms.
  const auto buffer = std::make_unique_for_overwrite<char[]>(kLongestPacket);
  iovec data{buffer.get(), kLongestPacket};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  // ECONNRESET is returned once, before queued packets, when the other end closed with unread ones
  // (net/unix/af_unix.c, unix_release_sock).
  ssize_t n;
  do {
    n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && (errno == EINTR || errno == ECONNRESET));
  if (n < 0) return fail_errno("", kCannotReceive);
  Packet out{{}, descriptors_of(message)};
  if (n == 0) return fail_errno("", kCannotReceive, ECONNRESET);
  out.text.assign(buffer.get(), static_cast<std::size_t>(n));
  return out;
}

Result<void> send_fd(int socket, int fd) { return send_packet(socket, "f", {&fd, 1}); }

Error shortened(const Error& error) {
  constexpr std::size_t kMost = 16384;
  return Error::with_code(error.code(), {}, error.message().substr(0, kMost), {},
                          error.hint().substr(0, kMost))
      .because(error.cause());
}

void send_failure(int socket, const Error& error) { (void)send_record(socket, shortened(error)); }

Result<Fd> receive_fd(int socket) {
  auto packet = TRY(receive_packet(socket, kNoLimit));
  if (packet.fds.size() == 1) return std::move(packet.fds[0]);
  Error failure = TRY(decode_record<Error>(packet.text));
  return fail(std::move(failure));
}

}  // namespace heddle
