// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "compat/verdict.hpp"

namespace heddle::compat {

struct AskOptions {
  std::string ca;     ///< PEM file of the authority behind the servers' certificates; empty: no TLS
  std::string token;  ///< empty: none
  std::string own_token;  ///< in place of that one, for servers that only this node reaches
  std::chrono::milliseconds connect{1500};
  std::chrono::milliseconds answer{30'000};
};

/// What the compat-server at `address` (HOST:PORT or unix:PATH) says of the artifact. Fails, naming
/// the address, when there is no server, within `connect`; when it gives no verdict; when it does
/// not answer in time.
Result<Judgement> ask(const std::string& address, const std::string& artifact,
                      const AskOptions& options);

/// Asks all of them at the same time; the results stand in their order.
std::vector<Result<Judgement>> ask_all(const std::vector<std::string>& addresses,
                                       const std::string& artifact, const AskOptions& options);

}  // namespace heddle::compat
