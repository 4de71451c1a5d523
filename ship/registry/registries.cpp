// SPDX-License-Identifier: MIT
#include "ship/registry/registries.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/try.hpp"

namespace heddle::registry {
namespace {

constexpr std::size_t kLargestFile = 1 << 20;

std::string_view trim(std::string_view text) {
  constexpr const char* kBlanks = " \t\r";
  const auto begin = std::min(text.find_first_not_of(kBlanks), text.size());
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

/// Whether `text`, the rest of a line, is blank or a comment.
bool is_blank(std::string_view text) {
  text = trim(text);
  return text.empty() || text[0] == '#';
}

/// Takes "TEXT", 'TEXT' or WORD off the front of `rest`, with the blanks around. nullopt: there is
/// none, or it has escapes.
std::optional<std::string> take_word(std::string_view& rest) {
  rest = trim(rest);
  const bool quoted = rest.starts_with('"') || rest.starts_with('\'');
  const auto end =
      quoted ? rest.find(rest[0], 1) : std::min(rest.find_first_of(" \t=#]"), rest.size());
  if (end == rest.npos || end == 0) return std::nullopt;
  std::string word(rest.substr(quoted, end - quoted));
  if (rest[0] == '"' && word.find('\\') != word.npos) return std::nullopt;
  rest = trim(rest.substr(end + quoted));
  return word;
}

/// The two words of KEY = VALUE, which a comment may follow.
std::optional<std::pair<std::string, std::string>> setting_of(std::string_view line) {
  auto key = take_word(line);
  if (!key || !line.starts_with('=')) return std::nullopt;
  line.remove_prefix(1);
  auto value = take_word(line);
  if (!value || !is_blank(line)) return std::nullopt;
  return std::pair(std::move(*key), std::move(*value));
}

/// Whether `line` is [[registry]].
bool is_registry_head(std::string_view line) {
  if (!line.starts_with("[[")) return false;
  line.remove_prefix(2);
  return take_word(line) == "registry" && line.starts_with("]]") && is_blank(line.substr(2));
}

/// Whether the reference `text` lies below `prefix`: a port, tag or digest may follow as well as a
/// path.
bool is_below(const std::string& text, const std::string& prefix) {
  if (prefix.starts_with("*.")) {
    const auto host = text.substr(0, text.find('/'));
    return host.ends_with(prefix.substr(1)) || without_port(host).ends_with(prefix.substr(1));
  }
  return text.starts_with(prefix) &&
         (text.size() == prefix.size() ||
          std::string_view("/:@").find(text[prefix.size()]) != std::string_view::npos);
}

void add_file(std::vector<RegistryEntry>& entries, const std::string& path) {
  const auto text = read_file(path, kLargestFile);
  if (!text && text.error().code() != ENOENT) warn(text.error());
  const auto more = registry_entries(text.value_or(""), path);
  entries.insert(entries.end(), more.begin(), more.end());
}

}  // namespace

std::vector<RegistryEntry> registry_entries(std::string_view text, const std::string& name) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::vector<RegistryEntry> entries;
  enum class In : std::uint8_t { top, registry, other } in = In::top;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string whole; std::getline(lines, whole);) {
    ++number;
    auto line = trim(whole);
    if (line.starts_with('[')) {
      in = is_registry_head(line) ? In::registry : In::other;
      if (in == In::registry) entries.emplace_back();
    } else if (in == In::registry && !is_blank(line)) {
      const auto setting = setting_of(line);
      const auto& [key, value] = setting.value_or(std::pair<std::string, std::string>());
      const bool is_switch = key == "insecure" || key == "blocked";
      if (key == "prefix") entries.back().prefix = value;
      if (key == "location") entries.back().location = value;
      if (key == "insecure") entries.back().insecure = value == "true";
      if (key == "blocked") entries.back().blocked = value == "true";
      // What is not understood may block a registry.
      if (!setting || (is_switch && value != "true" && value != "false"))
        warn(Error(name + ":" + std::to_string(number), "ignored", "not KEY = VALUE in one line"));
    } else if (in == In::top && take_word(line) == "registry" && line.starts_with('=')) {
      warn(Error(name + ":" + std::to_string(number), "ignored", "not a table [[registry]]"));
    }
  }
  for (auto& entry : entries) {
    for (auto* place : {&entry.prefix, &entry.location})
      while (place->ends_with('/')) place->pop_back();
    if (entry.prefix.empty()) entry.prefix = entry.location;
  }
  std::erase_if(entries, [](const RegistryEntry& entry) { return entry.prefix.empty(); });
  return entries;
}

Result<Location> locate(const Reference& reference, const std::vector<RegistryEntry>& entries) {
  constexpr const char* kHub = "docker.io";
  Location out{reference, "", false};
  auto& at = out.at;
  if (at.host == kHub || at.host == "index.docker.io") {
    at.host = kHub;
    if (at.repository.find('/') == std::string::npos) at.repository = "library/" + at.repository;
  }
  const auto text = at.text();
  const RegistryEntry* best = nullptr;
  for (const auto& entry : entries)
    if (is_below(text, entry.prefix) &&
        (best == nullptr || entry.prefix.size() >= best->prefix.size()))
      best = &entry;
  if (best != nullptr && best->blocked)
    return fail(Error::with_code(EACCES, reference.text(), "cannot be used",
                                 "registries.conf blocks " + best->prefix));
  out.insecure = best != nullptr && best->insecure;
  if (best != nullptr && !best->location.empty() && !best->prefix.starts_with("*.")) {
    // Read as a whole: a location may hold the first components of the repository.
    at = TRY(parse_reference(best->location + text.substr(best->prefix.size())));
    at.tagged = reference.tagged;
  }
  out.host = at.host == kHub ? "registry-1.docker.io" : at.host;
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
