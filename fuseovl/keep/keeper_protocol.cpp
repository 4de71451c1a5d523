// SPDX-License-Identifier: MIT
#include "fuseovl/keep/keeper_protocol.hpp"

#include <sys/socket.h>

#include <cstdio>

#include "base/packet.hpp"

namespace heddle {

Result<void> send_message(int socket, KeeperWord word, std::string_view text, int descriptor) {
  std::string packet(1, static_cast<char>(word));
  packet += text;
  if (descriptor < 0) return send_packet(socket, packet);
  return send_packet(socket, packet, {&descriptor, 1});
}

Result<KeeperMessage> receive_message(int socket, std::chrono::milliseconds limit) {
  auto packet = receive_packet(socket, limit);
  if (!packet) return fail(std::move(packet.error()));
  KeeperMessage out;
  if (!packet->fds.empty()) out.descriptor = std::move(packet->fds.front());
  out.word = static_cast<KeeperWord>(packet->text[0]);
  out.text = packet->text.substr(1);
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
