// SPDX-License-Identifier: MIT
#include "fuseovl/keeper_protocol.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace heddle {
namespace {

// Counters with a long list of drifted files are the largest; a packet must fit the socket's buffer
// (212,992 bytes, net.core.wmem_default).
constexpr std::size_t kLongest = 128 * 1024;

union ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

}  // namespace

Result<void> send_message(int socket, KeeperWord word, std::string_view text, int descriptor) {
  char kind = static_cast<char>(word);
  text = text.substr(0, kLongest - 1);
  iovec parts[2] = {{&kind, 1}, {const_cast<char*>(text.data()), text.size()}};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (descriptor >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
    if (errno != EINTR) return fail_errno("fs-mount", "cannot talk to it");
  return {};
}

Result<KeeperMessage> receive_message(int socket, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd entry{socket, POLLIN, 0};
    const int n = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (n > 0) break;
    if (n == 0) return fail_errno("fs-mount", "cannot hear from it", ETIMEDOUT);
    if (errno != EINTR) return fail_errno("fs-mount", "cannot hear from it");
  }
  std::string text(kLongest, '\0');
  iovec data{text.data(), text.size()};
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
  if (n < 0) return fail_errno("fs-mount", "cannot hear from it");
  if (n == 0) return fail_errno("fs-mount", "cannot hear from it", ECONNRESET);
  KeeperMessage out;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    out.descriptor = Fd(fd);
  }
  out.word = static_cast<KeeperWord>(text[0]);
  out.text = text.substr(1, static_cast<std::size_t>(n) - 1);
  return out;
}

std::string to_text(const MountedNotice& notice) {
  return std::string(notice.warm ? "warm " : "cold ") + std::to_string(notice.requests) + " " +
         std::to_string(notice.bytes_read) + " " + notice.mount_point;
}

Result<MountedNotice> parse_mounted_notice(const std::string& text) {
  char state[5] = {};
  unsigned long long requests = 0;
  unsigned long long bytes = 0;
  int end = 0;
  if (std::sscanf(text.c_str(), "%4s %llu %llu %n", state, &requests, &bytes, &end) != 3 ||
      end <= 0 || text[static_cast<std::size_t>(end)] != '/')
    return fail("fs-mount", "cannot understand it", "is it of another version?");
  return MountedNotice{std::string_view(state) == "warm", requests, bytes,
                       text.substr(static_cast<std::size_t>(end))};
}

bool is_own_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

}  // namespace heddle
