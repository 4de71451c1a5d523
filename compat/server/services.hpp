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

/// The gRPC server: compat-lib's service, ours, health and reflection.
class CompatServer {
 public:
  /// Answers from the moment this returns. Borrows `judges`. Fails when it cannot listen, or as
  /// check() does. `options` hold the files' contents: this process may not be able to read them.
  static Result<std::unique_ptr<CompatServer>> start(JudgePool& judges,
                                                     const ServerOptions& options);
  /// Fails for options that start() refuses, known before there is an index: an address beyond this
  /// node without TLS.
  static Result<void> check(const ServerOptions& options);
  virtual ~CompatServer() = default;

  /// Where it listens; with the port that `:0` was given.
  virtual const std::string& address() const = 0;
  /// Cuts streams that idle. To be called every second or so.
  virtual void tidy() = 0;
  /// Takes no more calls, waits `seconds` for those under way, then cuts them.
  virtual void stop(int seconds) = 0;

  struct Counters {
    std::atomic<std::uint64_t> calls{0}, denied{0}, turned_away{0};
    std::atomic<int> under_way{0};
  };
  Counters counters;
};

}  // namespace heddle::compat
