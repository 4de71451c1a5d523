// SPDX-License-Identifier: MIT
#include "resolver/search/search_path.hpp"

#include <algorithm>
#include <numeric>

#include <xxhash.h>

namespace heddle {

namespace {

/// The length of the token `name` at the start of `text`, which follows a '$'; 0: it is not there.
/// The gABI specifies the longest identifier: $LIBRARY is not $LIB.
std::size_t token_length(std::string_view text, std::string_view name) {
  const bool curly = text.starts_with('{');
  if (curly) text.remove_prefix(1);
  if (!text.starts_with(name)) return 0;
  const char next = text.size() > name.size() ? text[name.size()] : '\0';
  if (curly) return next == '}' ? name.size() + 2 : 0;
  const bool goes_on = (next >= 'A' && next <= 'Z') || (next >= 'a' && next <= 'z') ||
                       (next >= '0' && next <= '9') || next == '_';
  return goes_on ? 0 : name.size();
}

}  // namespace

EntryName::EntryName(std::string_view name)
    : text(name), hash(XXH3_64bits(name.data(), name.size())) {}

bool has_token(std::string_view text) {
  for (auto at = text.find('$'); at != text.npos; at = text.find('$', at + 1)) {
    const auto rest = text.substr(at + 1);
    if (token_length(rest, "ORIGIN") || token_length(rest, "PLATFORM") || token_length(rest, "LIB"))
      return true;
  }
  return false;
}

std::string expand_tokens(std::string_view text, const TokenValues& values) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] != '$') {
      out += text[i++];
      continue;
    }
    const auto rest = text.substr(i + 1);
    std::string_view value;
    std::size_t length = 0;
    if ((length = token_length(rest, "ORIGIN")) != 0) {
      value = values.origin;
    } else if ((length = token_length(rest, "PLATFORM")) != 0) {
      value = values.platform;
    } else if ((length = token_length(rest, "LIB")) != 0) {
      value = values.lib;
    } else {
      out += '$';
      ++i;
      continue;
    }
    if (value.empty()) return {};
    out += value;
    i += 1 + length;
  }
  return out;
}

SearchDirs::SearchDirs(World& world, const LoaderProfile& loader)
    : world_(world), defaults_(loader.default_directories) {
  // elf/dl-hwcaps.c, _dl_important_hwcaps: new levels, then the legacy power set, the directory
  // last.
  for (const auto& level : loader.hwcaps) capabilities_.push_back("glibc-hwcaps/" + level + "/");
  for (const auto& legacy : loader.legacy_hwcaps) capabilities_.push_back(legacy + "/");
  capabilities_.emplace_back();
}

SearchDir* SearchDirs::intern(std::string_view name) {
  auto& slot = dirs_[std::string(name)];
  if (!slot) {
    slot = std::make_unique<SearchDir>();
    slot->name = name;
    // A relative directory is never ruled out: the current directory may change.
    slot->status.assign(capabilities_.size(), name.starts_with('/') ? SearchDir::Status::unknown
                                                                    : SearchDir::Status::existing);
    slot->live.resize(capabilities_.size());
    std::iota(slot->live.begin(), slot->live.end(), std::uint16_t{0});
    slot->handles.assign(capabilities_.size(), SearchDir::kNoHandle);
  }
  return slot.get();
}

void SearchDirs::fill(SearchList& list, std::string_view text, std::string_view separators,
                      const TokenValues& values) {
  for (std::size_t start = 0; start <= text.size();) {
    const auto end = std::min(text.find_first_of(separators, start), text.size());
    const auto element = text.substr(start, end - start);
    start = end + 1;
    std::string name;  // stays empty for an empty element: the current directory
    if (!element.empty()) {
      name = expand_tokens(element, values);
      if (name.empty()) continue;
      while (name.size() > 1 && name.ends_with('/')) name.pop_back();
      if (!name.ends_with('/')) name += '/';
    }
    auto* dir = intern(name);
    if (std::find(list.dirs.begin(), list.dirs.end(), dir) == list.dirs.end())
      list.dirs.push_back(dir);
  }
}

SearchList SearchDirs::default_list() {
  SearchList list;
  for (const auto& dir : defaults_) list.dirs.push_back(intern(dir));
  return list;
}

World::DirId SearchDirs::handle(SearchDir& dir, std::size_t capability) {
  auto& own = dir.handles[capability];
  if (own == SearchDir::kNoHandle) {
    auto& base = dir.handles.back();
    if (base == SearchDir::kNoHandle) base = world_.directory(dir.name);
    if (!capabilities_[capability].empty())
      own = world_.subdirectory(base, capabilities_[capability]);
  }
  return own;
}

const std::vector<std::uint16_t>& SearchDirs::present(SearchDir& dir) {
  if (!dir.present) {
    dir.present.emplace();
    for (std::uint16_t i = 0; i < capabilities_.size(); ++i)
      if (world_.state(handle(dir, i)).is_directory) dir.present->push_back(i);
  }
  return *dir.present;
}

}  // namespace heddle
