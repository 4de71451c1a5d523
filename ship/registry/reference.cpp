// SPDX-License-Identifier: MIT
#include "ship/registry/reference.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <optional>

#include "base/content_hash.hpp"

namespace heddle::registry {

namespace {

constexpr std::string_view kAny = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr std::string_view kSmall = kAny.substr(0, 36);
constexpr std::string_view kDigits = kAny.substr(0, 10);
constexpr std::size_t kLongestTag = 128;

/// Shortens `text` to what is before the first `separator`. Result: what is after it; nullopt:
/// none.
std::optional<std::string_view> cut(std::string_view& text, char separator) {
  const auto at = text.find(separator);
  if (at == text.npos) return std::nullopt;
  const auto rest = text.substr(at + 1);
  text = text.substr(0, at);
  return rest;
}

/// Whether `text` has characters, all of them in `more` or `letters`.
bool consists_of(std::string_view text, std::string_view letters, std::string_view more = "") {
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return letters.find(c) != letters.npos || more.find(c) != more.npos;
  });
}

/// Whether `text` is HOST[:PORT]; a host without a port is known by a dot, or is localhost.
bool is_host(std::string_view text) {
  const bool is_ipv6 = text.starts_with('[');
  const auto end = is_ipv6 ? text.find(']') + 1 : std::min(text.find(':'), text.size());
  const auto name = text.substr(0, end);
  const auto port = text.substr(end);
  return (is_ipv6 ? end > 2 && consists_of(name.substr(1, end - 2), kDigits, "abcdefABCDEF:.")
                  : consists_of(name, kAny, ".-")) &&
         (port.empty() || (port[0] == ':' && consists_of(port.substr(1), kDigits))) &&
         (text == "localhost" || text.find_first_of(".:") != text.npos);
}

/// Whether `text` is PART[/PART]...
bool is_repository(std::string_view text) {
  for (std::optional<std::string_view> rest = text; rest;) {
    text = *rest;
    rest = cut(text, '/');
    if (!consists_of(text, kSmall, "._-") || !consists_of(text.substr(0, 1), kSmall) ||
        !consists_of(text.substr(text.size() - 1), kSmall))
      return false;
  }
  return true;
}

}  // namespace

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
  // OCI distribution spec.
  auto host = text;
  const auto digest = cut(host, '@');
  auto repository = cut(host, '/').value_or("");
  const auto tag = cut(repository, ':');
  if (!is_host(host) || !is_repository(repository) || (digest && !is_digest(*digest)) ||
      (tag && (tag->size() > kLongestTag || !consists_of(tag->substr(0, 1), kAny, "_") ||
               !consists_of(*tag, kAny, "_.-"))))
    return fail(Error::with_code(EINVAL, text, "not a registry reference", "",
                                 "HOST[:PORT]/REPOSITORY[:TAG][@sha256:...]"));
  Reference out{std::string(host), std::string(repository), std::string(tag.value_or("")),
                tag.has_value(), std::string(digest.value_or(""))};
  if (out.tag.empty() && out.digest.empty()) out.tag = "latest";
  return out;
}

}  // namespace heddle::registry
