// SPDX-License-Identifier: MIT
#include "compat/server/metrics_page.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <charconv>

namespace heddle::compat {

std::string metrics_text(const JudgePool& judges, const CompatServer& server) {
  std::string out;
  const auto put = [&](const char* name, const char* type, const char* help, auto value) {
    out += fmt::format(
        "# HELP heddle_compat_{0} {1}\n# TYPE heddle_compat_{0} {2}\n"
        "heddle_compat_{0} {3}\n",
        name, help, type, value);
  };
  const auto& i = judges.counters();
  const auto& s = server.counters();
  put("calls_total", "counter", "gRPC calls", s.calls.load());
  put("denied_total", "counter", "Calls without the token", s.denied.load());
  put("turned_away_total", "counter", "Calls beyond --max-checks", s.turned_away.load());
  put("under_way", "gauge", "Calls under way", s.under_way.load());
  put("checks_total", "counter", "Artifacts judged", i.checks.load());
  put("checks_kept_total", "counter", "Artifacts whose verdict was known", i.kept.load());
  put("incompatible_total", "counter", "Verdicts incompatible", i.incompatible.load());
  put("errors_total", "counter", "Artifacts without a verdict", i.errors.load());
  put("changes_total", "counter", "Changes of the node's libraries noticed",
      i.invalidations.load());
  put("generation", "gauge", "State of the node", judges.generation());
  put("killed_total", "counter", "Judges that died or were killed for lateness", i.killed.load());
  put("index_files", "gauge", "Libraries indexed at start", judges.libraries());
  return out;
}

Result<Fd> listen_for_metrics(const std::string& address) {
  const auto colon = address.rfind(':');
  sockaddr_in at{};
  at.sin_family = AF_INET;
  std::uint16_t port = 0;
  const auto* end = address.data() + address.size();
  if (colon == address.npos || std::from_chars(address.data() + colon + 1, end, port).ptr != end ||
      ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &at.sin_addr) != 1 ||
      (ntohl(at.sin_addr.s_addr) >> 24) != 127)
    return fail_errno(address, "cannot serve metrics", EINVAL,
                      "a loopback address: 127.0.0.1:PORT");
  at.sin_port = htons(port);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(fd.get(), 16) != 0)
    return fail_errno(address, "cannot serve metrics");
  return fd;
}

void answer_metrics(int listener, const std::string& page) {
  const Fd peer(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer) return;
  // The request is read so that closing does not reset the connection; its words do not matter.
  pollfd ready{peer.get(), POLLIN, 0};
  std::array<char, 4096> request;
  if (::poll(&ready, 1, 100) == 1)
    static_cast<void>(::recv(peer.get(), request.data(), request.size(), 0));
  const auto text = fmt::format(
      "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      page.size(), page);
  static_cast<void>(::send(peer.get(), text.data(), text.size(), MSG_NOSIGNAL));
  ::shutdown(peer.get(), SHUT_WR);
}

}  // namespace heddle::compat
