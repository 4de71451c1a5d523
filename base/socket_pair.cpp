// SPDX-License-Identifier: MIT
#include "base/socket_pair.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

namespace heddle {
namespace {

constexpr std::size_t kLongestText = 4096;

union ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

}  // namespace

Result<SocketPair> make_socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
    return fail_errno("", "cannot make a socket pair");
  return SocketPair{Fd(fds[0]), Fd(fds[1])};
}

Result<void> send_fd(int socket, int fd) {
  char byte = 'f';
  iovec data{&byte, 1};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
    if (errno != EINTR) return fail_errno("", "cannot pass a descriptor on");
  return {};
}

void send_failure(int socket, const Error& error, FailureCode code) noexcept {
  // One packet: the message, a NUL, the hint, a NUL, the errno. Words are cut, the errno is not.
  char text[kLongestText];
  constexpr std::size_t kRoom = kLongestText - 2 - std::numeric_limits<int>::digits10 - 2;
  const auto message = std::string_view(error.message()).substr(0, kRoom);
  const auto hint = std::string_view(error.hint()).substr(0, kRoom - message.size());
  const auto end = fmt::format_to_n(text, sizeof(text), "{}{}{}{}{}", message, '\0', hint, '\0',
                                    code == FailureCode::sent ? error.code() : 0);
  // Nobody is left to tell when the other end is gone.
  (void)::send(socket, text, end.size, MSG_NOSIGNAL);
}

Error received_failure(std::string_view bytes) {
  const auto next = [&] {
    const auto end = std::min(bytes.find('\0'), bytes.size());
    const auto part = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    return part;
  };
  const auto message = next();
  const auto hint = next();
  int code = 0;
  const auto digits = next();
  std::from_chars(digits.begin(), digits.end(), code);
  return Error::with_code(code, "", message, {}, hint);
}

Result<Fd> receive_fd(int socket) {
  char text[kLongestText];
  iovec data{text, sizeof(text)};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  ssize_t n;
  do {
    n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return fail_errno("", "cannot receive a descriptor");
  if (n == 0) return fail_errno("", "cannot receive a descriptor", ECONNRESET);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
    return fail(received_failure({text, static_cast<std::size_t>(n)}));
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return Fd(fd);
}

}  // namespace heddle
