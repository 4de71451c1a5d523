// SPDX-License-Identifier: MIT
#include "ship/registry/registries.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <sstream>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/try.hpp"

namespace heddle::registry {
namespace {

constexpr std::size_t kLongestLine = 1024;  // std::regex recurses with the length of its input
constexpr std::size_t kLargestFile = 1 << 20;

/// Whether `name` (host and repository) lies below `prefix`.
bool is_below(const std::string& name, const std::string& prefix) {
  if (prefix.starts_with("*.")) {
    const auto host = name.substr(0, name.find('/'));
    return host.size() >= prefix.size() && host.ends_with(prefix.substr(1));
  }
  return name.starts_with(prefix) && (name.size() == prefix.size() || name[prefix.size()] == '/');
}

void add_file(std::vector<RegistryEntry>& entries, const std::string& path) {
  const auto text = read_file(path, kLargestFile);
  if (!text && text.error().code() != ENOENT) warn(text.error());
  const auto more = registry_entries(text.value_or(""));
  entries.insert(entries.end(), more.begin(), more.end());
}

}  // namespace

std::vector<RegistryEntry> registry_entries(std::string_view text) {
  static const std::regex kSetting(
      R"re(\s*([a-z-]+)\s*=\s*(?:"([^"\\]*)"|'([^']*)'|(true|false))\s*(?:#.*)?)re");
  static const std::regex kTable(R"(\s*\[\s*\[\s*registry\s*\]\s*\]\s*(?:#.*)?)");
  std::vector<RegistryEntry> entries;
  bool inside = false;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > kLongestLine) continue;
    std::smatch parts;
    if (const auto first = line.find_first_not_of(" \t");
        first != line.npos && line[first] == '[') {
      inside = std::regex_match(line, kTable);
      if (inside) entries.emplace_back();
    } else if (inside && std::regex_match(line, parts, kSetting)) {
      const auto key = parts.str(1), value = parts.str(2) + parts.str(3);
      if (key == "prefix") entries.back().prefix = value;
      if (key == "location") entries.back().location = value;
      if (key == "insecure") entries.back().insecure = parts.str(4) == "true";
      if (key == "blocked") entries.back().blocked = parts.str(4) == "true";
    }
  }
  for (auto& entry : entries)
    if (entry.prefix.empty()) entry.prefix = entry.location;
  std::erase_if(entries, [](const RegistryEntry& entry) { return entry.prefix.empty(); });
  return entries;
}

Result<Location> locate(const Reference& reference, const std::vector<RegistryEntry>& entries) {
  const auto name = reference.host + "/" + reference.repository;
  const RegistryEntry* best = nullptr;
  for (const auto& entry : entries)
    if (is_below(name, entry.prefix) &&
        (best == nullptr || entry.prefix.size() >= best->prefix.size()))
      best = &entry;
  Location out{reference, "", best != nullptr && best->insecure};
  if (best != nullptr && best->blocked)
    return fail(Error::with_code(EACCES, reference.text(), "cannot be used",
                                 "registries.conf blocks " + best->prefix));
  if (best != nullptr && !best->location.empty() && !best->prefix.starts_with("*.")) {
    // Read as a whole: a location may hold the first components of the repository.
    const auto version = reference.text().substr(name.size());
    out.at = TRY(parse_reference(best->location + name.substr(best->prefix.size()) + version));
    out.at.tagged = reference.tagged;
  }
  out.host = out.at.host;
  if (out.at.host == "docker.io" || out.at.host == "index.docker.io") {
    out.at.host = "docker.io";
    out.host = "registry-1.docker.io";
    if (out.at.repository.find('/') == std::string::npos)
      out.at.repository = "library/" + out.at.repository;
  }
  return out;
}

std::vector<RegistryEntry> site_entries() {
  namespace fs = std::filesystem;
  std::vector<RegistryEntry> entries;
  if (const char* file = std::getenv("CONTAINERS_REGISTRIES_CONF"); file != nullptr) {
    add_file(entries, file);
    return entries;
  }
  std::vector<std::string> roots = {"/etc/containers"};
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    roots.push_back(std::string(home) + "/.config/containers");
  std::error_code ignored;
  const bool own = roots.size() > 1 && fs::exists(roots[1] + "/registries.conf", ignored);
  add_file(entries, roots[own ? 1 : 0] + "/registries.conf");
  for (const auto& root : roots) {
    std::vector<std::string> files;
    std::error_code error;
    for (fs::directory_iterator at(root + "/registries.conf.d", error), end; !error && at != end;
         at.increment(error))
      if (at->path().extension() == ".conf") files.push_back(at->path().string());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) add_file(entries, file);
  }
  return entries;
}

}  // namespace heddle::registry
