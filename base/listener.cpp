// SPDX-License-Identifier: MIT
#include "base/listener.hpp"

#include <sys/socket.h>

#include <algorithm>

#include "base/monotonic.hpp"

namespace heddle {
namespace {

constexpr std::int64_t kRestMs = 50;

}  // namespace

bool has_input(const std::vector<pollfd>& polled, const Fd& fd) {
  return fd && std::any_of(polled.begin(), polled.end(), [&](const pollfd& entry) {
           return entry.fd == fd.get() && entry.revents != 0;
         });
}

void Listener::add_to(std::vector<pollfd>& polled) const {
  if (socket_ && monotonic_ms() >= rests_until_) polled.push_back({get(), POLLIN, 0});
}

bool Listener::is_due(const std::vector<pollfd>& polled) const {
  return has_input(polled, socket_) || (rests_until_ != 0 && monotonic_ms() >= rests_until_);
}

Fd Listener::accept() {
  rests_until_ = 0;
  // The socket may block, and be another process's too: its flags stay what they are.
  pollfd entry{get(), POLLIN, 0};
  if (!socket_ || ::poll(&entry, 1, 0) <= 0) return Fd();
  Fd client(::accept4(get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!client) rests_until_ = monotonic_ms() + kRestMs;
  return client;
}

}  // namespace heddle
