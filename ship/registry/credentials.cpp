// SPDX-License-Identifier: MIT
#include "ship/registry/credentials.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/fd.hpp"
#include "ship/registry/http.hpp"

namespace heddle::registry {
namespace {

std::vector<std::string> files() {
  std::vector<std::string> out;
  const auto add = [&](const char* variable, const char* rest) {
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0')
      out.push_back(std::string(value) + rest);
  };
  add("REGISTRY_AUTH_FILE", "");
  add("XDG_RUNTIME_DIR", "/containers/auth.json");
  add("HOME", "/.config/containers/auth.json");
  add("DOCKER_CONFIG", "/config.json");
  add("HOME", "/.docker/config.json");
  return out;
}

/// How well an entry's key fits, in characters; 0: not at all. A key is a host, or a host and the
/// head of a repository's path (containers-auth.json(5)); docker writes `https://host/v1/`, too.
std::size_t fit(std::string key, const std::string& host, const std::string& repository) {
  if (const auto scheme = key.find("://"); scheme != key.npos) {
    key = key.substr(scheme + 3);
    key = key.substr(0, key.find('/'));
  }
  while (key.ends_with('/')) key.pop_back();
  if (key == host || key == host + "/v1" || key == host + "/v2") return host.size();
  return (host + "/" + repository + "/").starts_with(key + "/") && key.size() > host.size()
             ? key.size()
             : 0;
}

/// RFC 4648; nullopt when `text` is none.
std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const auto value = kDigits.find(c);
    if (value == kDigits.npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xFF);
  }
  return out;
}

/// Without the port.
std::string_view bare_host(std::string_view host) {
  return host.ends_with(']') ? host : host.substr(0, host.rfind(':'));
}

}  // namespace

std::optional<Credentials> credentials_in(std::string_view text, const std::string& host,
                                          const std::string& repository) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("auths") || !json["auths"].is_object())
    return std::nullopt;
  const auto word = [](const nlohmann::json& entry, const char* key) {
    const auto found = entry.find(key);
    return found != entry.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  std::optional<Credentials> best;
  std::size_t best_fit = 0;
  for (const auto& [key, entry] : json["auths"].items()) {
    const auto fits = fit(key, host, repository);
    if (fits <= best_fit || !entry.is_object()) continue;
    Credentials out;
    out.identity_token = word(entry, "identitytoken");
    out.user = word(entry, "username");
    out.password = word(entry, "password");
    if (const auto both = decode_base64(word(entry, "auth")); both && !both->empty()) {
      out.user = both->substr(0, both->find(':'));
      out.password = both->substr(std::min(both->size(), out.user.size() + 1));
    }
    if (out.identity_token.empty() && out.user.empty()) continue;
    best = std::move(out);
    best_fit = fits;
  }
  return best;
}

std::optional<Credentials> find_credentials(const std::string& host,
                                            const std::string& repository) {
  for (const auto& file : files())
    if (const auto text = read_file(file, 1 << 20))
      if (auto found = credentials_in(*text, host, repository)) return found;
  return std::nullopt;
}

bool may_have_credentials(const std::string& realm, const std::string& host) {
  const auto realm_host = host_of(realm);
  if (realm_host.empty()) return false;
  const auto own = bare_host(host), other = bare_host(realm_host);
  if (own == other) return true;
  if (const char* allowed = std::getenv("HEDDLE_TOKEN_HOSTS")) {
    std::string_view rest = allowed;
    while (!rest.empty()) {
      const auto one = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
      if (one == realm_host || one == other) return true;
    }
  }
  // A number is no part of a site.
  if (own.find_first_not_of("0123456789.") == own.npos || own.starts_with('[')) return false;
  const auto first = own.find('.');
  const auto above = first == own.npos ? std::string_view() : own.substr(first + 1);
  const auto site = above.find('.') == above.npos ? own : above;
  return other == site || other.ends_with("." + std::string(site));
}

std::string find_authorities(const std::string& host) {
  namespace fs = std::filesystem;
  std::vector<std::string> roots = {"/etc/containers", "/etc/docker"};
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    roots.insert(roots.begin(), std::string(home) + "/.config/containers");
  for (const auto& root : roots) {
    std::vector<std::string> files;
    std::error_code error;
    for (fs::directory_iterator at(root + "/certs.d/" + host, error), end; !error && at != end;
         at.increment(error))
      if (at->path().extension() == ".crt") files.push_back(at->path().string());
    std::sort(files.begin(), files.end());
    std::string pem;
    for (const auto& file : files) pem += read_file(file, 1 << 20).value_or("") + "\n";
    if (!files.empty()) return pem;
  }
  return "";
}

}  // namespace heddle::registry
