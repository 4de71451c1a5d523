// SPDX-License-Identifier: MIT
#include "resolver/elf/worker_protocol.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

#include "resolver/elf/facts_codec.hpp"

namespace heddle {
namespace {

constexpr const char* kName = "elf-worker";

/// Room for exactly one descriptor, aligned as cmsg(3) wants it.
union FdMessage {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

std::uint64_t worker_protocol_version() { return (std::uint64_t{1} << 32) | kFactsCodecVersion; }

Result<void> send_request(int socket, const Request& request, int fd) {
  FdMessage control{};
  iovec data{const_cast<Request*>(&request), sizeof(request)};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  ssize_t n;
  do {
    n = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return fail_errno(kName, "cannot send a request");
  // Requests are far smaller than one socket buffer's unit: the kernel takes all or nothing.
  if (n != static_cast<ssize_t>(sizeof(request)))
    return fail(Error::with_code(EPIPE, kName, "cannot send a request", "short write"));
  return {};
}

Result<std::optional<ReceivedRequest>> receive_request(int socket) {
  ReceivedRequest received;
  FdMessage control{};
  std::size_t have = 0;
  while (have < sizeof(Request)) {
    iovec data{reinterpret_cast<char*>(&received.request) + have, sizeof(Request) - have};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(kName, "cannot receive a request");
    if (n == 0 && have == 0) return std::nullopt;
    if (n == 0) return fail(kName, "cannot receive a request", "cut off");
    have += static_cast<std::size_t>(n);
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h))
      if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(h), sizeof(int));
        received.file.reset(fd);
      }
  }
  if (!received.file) return fail(kName, "cannot receive a request", "no file came with it");
  return std::optional<ReceivedRequest>(std::move(received));
}

Result<void> send_frame(int socket, FrameKind kind, std::uint64_t id, std::string_view payload) {
  FrameHeader header{static_cast<std::uint32_t>(payload.size()), kind, id};
  iovec parts[2] = {{&header, sizeof(header)}, {const_cast<char*>(payload.data()), payload.size()}};
  std::size_t left = sizeof(header) + payload.size();
  while (left > 0) {
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(kName, "cannot send a reply");
    left -= static_cast<std::size_t>(n);
    auto sent = static_cast<std::size_t>(n);
    for (auto& part : parts) {
      const auto step = std::min(sent, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + step;
      part.iov_len -= step;
      sent -= step;
    }
  }
  return {};
}

}  // namespace heddle
