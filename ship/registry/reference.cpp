// SPDX-License-Identifier: MIT
#include "ship/registry/reference.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <regex>

#include "base/content_hash.hpp"

namespace heddle::registry {

constexpr std::size_t kLongest = 1024;  // std::regex recurses with the length of its input

std::string digest_of(std::string_view data) { return "sha256:" + hash_bytes(data).hex(); }

bool is_digest(std::string_view text) {
  return text.size() == 71 && text.starts_with("sha256:") &&
         text.find_first_not_of("0123456789abcdef", 7) == text.npos;
}

std::string host_of(const std::string& url) {
  const auto scheme = url.starts_with("https://") ? 8 : url.starts_with("http://") ? 7 : 0;
  if (scheme == 0) return {};
  const auto end = std::min(url.find_first_of("/?#", scheme), url.size());
  auto host = url.substr(scheme, end - scheme);
  return host.find_first_of("@\\") == host.npos ? host : std::string();
}

std::string without_port(const std::string& host) {
  return host.ends_with(']') ? host : host.substr(0, host.rfind(':'));
}

std::string Reference::scheme() const {
  const auto name = without_port(host);
  in_addr number{};
  const bool here = name == "localhost" || name == "[::1]" ||
                    (::inet_pton(AF_INET, name.c_str(), &number) == 1 &&
                     (ntohl(number.s_addr) >> 24) == 127);  // a name may begin with 127. as well
  return here ? "http" : "https";
}

std::string Reference::text() const {
  return host + "/" + repository + (digest.empty() ? ":" + tag : "@" + digest);
}

Result<Reference> parse_reference(std::string_view text) {
  // OCI distribution spec; a host without a port is known by a dot, or is localhost.
  static const std::regex kForm(
      R"(((?:\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9.-]+)(?::[0-9]+)?)/)"
      R"(([a-z0-9](?:[a-z0-9._-]*[a-z0-9])?(?:/[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)*))"
      R"((?::([a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?)");
  std::cmatch parts;
  if (text.size() > kLongest || !std::regex_match(text.begin(), text.end(), parts, kForm) ||
      (parts.str(1) != "localhost" && parts.str(1).find_first_of(".:") == std::string::npos))
    return fail(Error::with_code(EINVAL, text, "not a registry reference", "",
                                 "HOST[:PORT]/REPOSITORY[:TAG][@sha256:...]"));
  Reference out{parts.str(1), parts.str(2), parts.str(3), parts[3].matched, parts.str(4)};
  if (out.tag.empty() && out.digest.empty()) out.tag = "latest";
  return out;
}

}  // namespace heddle::registry
