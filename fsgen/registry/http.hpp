// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace heddle::registry {

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::string> headers;
  std::string user, password;                     ///< basic authentication; empty: none
  const std::string* body = nullptr;              ///< of PUT and POST
  std::size_t most_bytes = std::size_t{4} << 20;  ///< of the answer; more is a failure
};

struct HttpAnswer {
  long status = 0;
  std::map<std::string, std::string> headers;  ///< names in lower case; the last redirection's
  std::string body;
};

/// libcurl's easy interface, the one place with it. Follows redirections (credentials stay with the
/// host they are for, https never becomes http), gives up on peers that do not answer or stall.
class Http {
 public:
  /// `authorities`: PEM, trusted beside the system's; may be empty.
  explicit Http(std::string authorities);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  /// Any status is an answer. Fails, naming the host, when there is none, or a part of one.
  Result<HttpAnswer> send(const HttpRequest& request);

 private:
  void* curl_;
  std::string authorities_;
};

}  // namespace heddle::registry
