// SPDX-License-Identifier: MIT
#include "ship/registry/credentials.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "base/escape.hpp"
#include "base/fd.hpp"
#include "ship/registry/reference.hpp"
#include "ship/registry/registry_client.hpp"

namespace heddle::registry {
namespace {

constexpr const char* kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";

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

/// The length of an entry's key if it fits, else 0. A key is a host, or a host and the first
/// components of a repository's path (containers-auth.json(5)); docker writes `https://host/v1/`
/// too.
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

}  // namespace

std::optional<Credentials> credentials_in(std::string_view text, const std::string& host,
                                          const std::string& repository) {
  const auto json = parse_json(text);
  std::optional<Credentials> best;
  std::size_t best_fit = 0;
  if (!json.is_object() || !json.contains("auths")) return best;
  for (const auto& [key, entry] : json["auths"].items()) {
    const auto fits = fit(key, host, repository);
    Credentials out{text_member(entry, "auth"), text_member(entry, "identitytoken")};
    if (out.basic.find_first_not_of(kBase64) != out.basic.npos) continue;
    if (fits <= best_fit || (out.basic.empty() && out.identity_token.empty())) continue;
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
  // `docker login` without a host stores this name.
  return host == "docker.io" ? find_credentials("index.docker.io", repository) : std::nullopt;
}

std::string find_credential_helper(const std::string& host) {
  for (const auto& file : files()) {
    const auto json = parse_json(read_file(file, 1 << 20).value_or(""));
    auto helper = text_member(json, "credsStore");
    if (json.is_object() && json.contains("credHelpers"))
      if (auto own = text_member(json["credHelpers"], host.c_str()); !own.empty()) helper = own;
    if (!helper.empty()) return escape_for_terminal("docker-credential-" + helper + " of " + file);
  }
  return "";
}

bool may_have_credentials(const std::string& realm, const std::string& host) {
  const auto realm_host = host_of(realm);
  if (realm_host.empty()) return false;
  const auto own = without_port(host), other = without_port(realm_host);
  if (own == other) return true;
  const char* allowed = std::getenv("HEDDLE_TOKEN_HOSTS");
  std::istringstream hosts(allowed == nullptr ? "" : allowed);
  for (std::string one; std::getline(hosts, one, ',');)
    if (one == realm_host || one == other) return true;
  // An IP address has no site.
  if (own.find_first_not_of("0123456789.") == own.npos || own.starts_with('[')) return false;
  const auto above = own.substr(std::min(own.find('.'), own.size() - 1) + 1);
  const auto site = above.find('.') == above.npos ? own : above;
  return other == site || other.ends_with("." + site);
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
