// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace heddle::registry {

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::string> headers;
  std::string user, password;                         ///< basic authentication; empty: none
  std::optional<std::string_view> body;               ///< of PUT and POST; borrowed
  std::uint64_t most_bytes = std::uint64_t{4} << 20;  ///< of the answer; more is a failure
  /// Gets the body of an answer 200 piece by piece, in place of HttpAnswer::body.
  std::function<Result<void>(std::string_view)> take;
};

struct HttpAnswer {
  long status = 0;
  /// Those of kHeaders, names in lower case; of several of one name the lines.
  std::map<std::string, std::string> headers;
  std::string body;
};

/// libcurl's easy interface, the one place with it. It follows no redirection, and gives up on
/// peers that do not answer, stall or trickle: what comes may be anybody's.
class Http {
 public:
  /// `authorities`: PEM, trusted beside the system's; may be empty. An answer may take `patience`,
  /// and a second for each 64 KiB that go or may come.
  Http(std::string authorities, std::chrono::seconds patience);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  /// Any status is an answer. Fails, naming the host, when there is none, or a part of one.
  Result<HttpAnswer> send(const HttpRequest& request);

 private:
  void* curl_;
  std::string authorities_;
  std::chrono::seconds patience_;
};

/// `host[:port]` of an absolute http or https URL; empty for any other, and for one with a user.
std::string host_of(const std::string& url);

/// Where `location` leads from `base` (RFC 3986); empty: nowhere.
std::string resolve_url(const std::string& base, const std::string& location);

}  // namespace heddle::registry
