// SPDX-License-Identifier: MIT
#include "ship/registry/reference.hpp"

#include <arpa/inet.h>

#include <algorithm>

#include "base/content_hash.hpp"

namespace heddle::registry {
namespace {

bool all_of(std::string_view text, std::string_view allowed) {
  return text.find_first_not_of(allowed) == text.npos;
}

constexpr std::string_view kLower = "abcdefghijklmnopqrstuvwxyz0123456789";
constexpr std::string_view kTag =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

/// OCI distribution spec: lower-case words parted by '.', '_', '-' and '/'.
bool is_repository(std::string_view text) {
  if (text.empty() || !all_of(text, "abcdefghijklmnopqrstuvwxyz0123456789._-/")) return false;
  for (std::size_t at = 0; at <= text.size();) {
    const auto end = std::min(text.find('/', at), text.size());
    const auto word = text.substr(at, end - at);
    if (word.empty() || kLower.find(word.front()) == kLower.npos ||
        kLower.find(word.back()) == kLower.npos)
      return false;
    at = end + 1;
  }
  return true;
}

bool is_host(std::string_view text) {
  const auto colon = text.rfind(':');
  const bool port = colon != text.npos && !text.ends_with(']');
  const auto name = port ? text.substr(0, colon) : text;
  if (port && (colon + 1 == text.size() || !all_of(text.substr(colon + 1), "0123456789")))
    return false;
  const bool bracketed = name.starts_with('[') && name.ends_with(']') && name.size() > 2;
  if (bracketed) return all_of(name.substr(1, name.size() - 2), "0123456789abcdefABCDEF:.");
  return !name.empty() && all_of(name, kTag) && name.find('_') == name.npos &&
         (port || name == "localhost" || name.find('.') != name.npos);
}

}  // namespace

std::string digest_of(std::string_view data) { return "sha256:" + hash_bytes(data).hex(); }

bool is_digest(std::string_view text) {
  return text.size() == 71 && text.starts_with("sha256:") &&
         all_of(text.substr(7), "0123456789abcdef");
}

std::string Reference::scheme() const {
  const auto name = host.substr(0, host.ends_with(']') ? host.npos : host.rfind(':'));
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
  const auto wrong = [&](std::string_view reason) {
    return fail(Error::with_code(EINVAL, text, "no reference to a registry", reason,
                                 "HOST[:PORT]/REPOSITORY[:TAG][@sha256:...]"));
  };
  Reference out;
  const auto slash = text.find('/');
  if (slash == text.npos || !is_host(text.substr(0, slash))) return wrong("it names no host");
  out.host = text.substr(0, slash);
  auto rest = text.substr(slash + 1);
  if (const auto at = rest.find('@'); at != rest.npos) {
    out.digest = rest.substr(at + 1);
    if (!is_digest(out.digest)) return wrong("its digest is no sha256 one");
    rest = rest.substr(0, at);
  }
  if (const auto colon = rest.rfind(':'); colon != rest.npos) {
    out.tag = rest.substr(colon + 1);
    if (out.tag.empty() || out.tag.size() > 128 || !all_of(out.tag, kTag) || out.tag[0] == '.' ||
        out.tag[0] == '-')
      return wrong("its tag is not valid");
    out.tagged = true;
    rest = rest.substr(0, colon);
  }
  if (!is_repository(rest)) return wrong("its repository's name is not valid");
  out.repository = rest;
  if (out.tag.empty() && out.digest.empty()) out.tag = "latest";
  return out;
}

}  // namespace heddle::registry
