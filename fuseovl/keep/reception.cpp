// SPDX-License-Identifier: MIT
#include "fuseovl/keep/reception.hpp"

#include <fcntl.h>

#include "base/monotonic.hpp"
#include "base/run_directory.hpp"

namespace heddle {
namespace {

constexpr std::int64_t kPatienceMs = 5000;
constexpr std::size_t kMostSilent = 256;

}  // namespace

void Reception::add_to(std::vector<pollfd>& polled) const {
  listener_.add_to(polled);
  for (const auto& one : silent_) polled.push_back({one.socket.get(), POLLIN, 0});
}

std::int64_t Reception::wakes_at() const {
  const auto accept_at = listener_.wakes_at();
  if (silent_.empty()) return accept_at;
  return accept_at == 0 ? silent_.front().until : std::min(accept_at, silent_.front().until);
}

void Reception::accept() {
  // As many as there is room for: whoever connects faster than we look must not hold us here.
  for (std::size_t n = 0; n < kMostSilent; ++n) {
    Fd socket = listener_.accept();
    if (!socket) return;
    if (!is_trusted_peer(socket.get())) continue;
    (void)::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
    if (silent_.size() == kMostSilent) silent_.erase(silent_.begin());
    silent_.push_back({std::move(socket), monotonic_ms() + kPatienceMs});
  }
}

std::vector<Reception::Visitor> Reception::hear(const std::vector<pollfd>& polled) {
  std::vector<Visitor> out;
  for (auto& one : silent_) {
    if (!has_input(polled, one.socket)) {
      if (monotonic_ms() >= one.until) one.socket.reset();
      continue;
    }
    auto message = receive_message(one.socket.get(), std::chrono::milliseconds(0));
    if (message)
      out.push_back({std::move(one.socket), std::move(*message)});
    else if (message.error().code() == EPROTO)
      send_error(one.socket.get(), message.error());
    one.socket.reset();
  }
  std::erase_if(silent_, [](const Silent& one) { return !one.socket; });
  if (listener_.is_due(polled)) accept();
  return out;
}

}  // namespace heddle
