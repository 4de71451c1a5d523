// SPDX-License-Identifier: MIT
#include "base/notify_ready.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <string_view>

#include "base/fd.hpp"

namespace heddle {

// The protocol is stable (sd_notify(3), "Notes"). Managers of a system and of a user have no
// abstract socket ('@').
void notify_ready() {
  const char* variable = std::getenv("NOTIFY_SOCKET");
  const std::string_view path = variable != nullptr ? variable : "";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!path.starts_with('/') || path.size() >= sizeof(address.sun_path)) return;
  path.copy(address.sun_path, path.size());
  const Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  constexpr std::string_view kReady = "READY=1";
  (void)::sendto(socket.get(), kReady.data(), kReady.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

}  // namespace heddle
