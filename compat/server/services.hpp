// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "compat/server/judge_pool.hpp"

namespace heddle::compat {

struct ServerOptions {
  std::string listen = "127.0.0.1:50051";  ///< or unix:/path
  std::string tls_certificate, tls_key;    ///< PEM; both or none
  std::string token;                       ///< clients must show it; never empty
  std::size_t most_request_bytes = std::size_t{8} << 20;
  int most_checks = 64;                       ///< at once; more are turned away
  std::chrono::seconds stream_idle{60};       ///< a stream that waits longer for its client is cut
  std::chrono::seconds connection_grace{15};  ///< calls of a connection that is a minute old have
};

/// The gRPC server: the ancestor's service, ours, health and reflection. Answers from the moment
/// start() returns.
class CompatServer {
 public:
  /// Borrows `judges`. Fails when it cannot listen, or may not: wider than this node without TLS.
  /// `options` hold what the files have: this process may not be able to read them any more.
  static Result<std::unique_ptr<CompatServer>> start(JudgePool& judges,
                                                     const ServerOptions& options);
  /// What start() would refuse `options` for, known before there is an index.
  static Result<void> check(const ServerOptions& options);
  ~CompatServer();
  CompatServer(const CompatServer&) = delete;
  CompatServer& operator=(const CompatServer&) = delete;

  /// Where it listens; with the port that `:0` was given.
  const std::string& address() const;
  /// Cuts streams that idle. To be called every second or so.
  void tidy();
  /// Takes no more calls, waits `seconds` for those under way, then cuts them.
  void stop(int seconds);

  struct Counters {
    std::atomic<std::uint64_t> calls{0}, denied{0}, turned_away{0};
    std::atomic<int> under_way{0};
  };
  const Counters& counters() const;

 private:
  struct State;
  explicit CompatServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace heddle::compat
