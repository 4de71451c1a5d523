// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "resolver/search/search_path.hpp"

namespace heddle {

inline constexpr std::size_t kNone = ~std::size_t{0};

/// One loaded object: ld.so's struct link_map, fields named like its own without the "l_".
struct LinkMap {
  std::string name;                ///< the path it was opened by; empty for the program
  std::vector<std::string> names;  ///< requested names (l_libname)
  FileFacts file;
  std::string origin;
  std::size_t loader = kNone;
  std::size_t prev = kNone;
  std::size_t next = kNone;
  bool has_id = true;  ///< false for the program and ld.so: ld.so never compares their (dev, ino)
  bool reserved = false;  ///< in the breadth-first list already
  std::optional<SearchList> rpath;
  std::optional<SearchList> runpath;

  FoundBy found_by = FoundBy::program;
  std::optional<std::size_t> searched_by;
  std::optional<std::size_t> needed_by;
  std::string requested_as;
  std::vector<std::size_t> needs;
};

/// All objects of one process, and the chain (l_next, l_prev) that look-ups by name and identity
/// search.
class LinkMaps {
 public:
  /// Adds at the chain's end. The first is the program.
  std::size_t append(LinkMap map) {
    const auto index = maps_.size();
    map.prev = last_;
    map.next = kNone;
    if (last_ != kNone) maps_[last_].next = index;
    last_ = index;
    const auto enter = [&](const std::string& name) {
      auto& owners = by_name_[name];
      if (owners.empty() || owners.back() != index) owners.push_back(index);
    };
    enter(map.name);
    for (const auto& name : map.names) enter(name);
    if (map.file.elf.soname) enter(*map.file.elf.soname);
    if (map.has_id) by_id_[map.file.stamp.id].push_back(index);
    maps_.push_back(std::move(map));
    return index;
  }
  LinkMap& operator[](std::size_t i) { return maps_[i]; }
  const LinkMap& operator[](std::size_t i) const { return maps_[i]; }
  std::size_t size() const { return maps_.size(); }

  /// The chain's first object with that path, requested name or soname; records `name`.
  std::size_t find(const std::string& name) {
    const auto owners = by_name_.find(name);
    if (owners == by_name_.end()) return kNone;
    const auto map = first_in_chain(owners->second);
    if (map != kNone && name != maps_[map].name) add_name(map, name);
    return map;
  }
  std::size_t find(const FileId& id) const {
    const auto owners = by_id_.find(id);
    return owners == by_id_.end() ? kNone : first_in_chain(owners->second);
  }
  /// As find(), for any object, without recording `name`.
  bool is_known(const std::string& name) const { return by_name_.contains(name); }
  void add_name(std::size_t map, const std::string& name) {
    auto& names = maps_[map].names;
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    names.push_back(name);
    auto& owners = by_name_[name];
    if (std::find(owners.begin(), owners.end(), map) == owners.end()) owners.push_back(map);
  }
  /// Moves `map` in the chain before `other` (filters, elf/dl-deps.c).
  void move_before(std::size_t map, std::size_t other) {
    reordered_ = true;
    unlink(map);
    const auto before = maps_[other].prev;
    maps_[map].prev = before;
    maps_[other].prev = map;
    if (before != kNone) maps_[before].next = map;
    maps_[map].next = other;
  }
  void unlink(std::size_t map) {
    auto& own = maps_[map];
    if (own.prev != kNone) maps_[own.prev].next = own.next;
    if (own.next != kNone) maps_[own.next].prev = own.prev;
    if (last_ == map) last_ = own.prev;
    own.prev = own.next = kNone;
  }
  void insert_after(std::size_t map, std::size_t other) {
    const auto after = maps_[other].next;
    maps_[map].prev = other;
    maps_[map].next = after;
    maps_[other].next = map;
    if (after != kNone)
      maps_[after].prev = map;
    else
      last_ = map;
  }

 private:
  std::size_t first_in_chain(const std::vector<std::size_t>& candidates) const {
    if (!reordered_) return *std::min_element(candidates.begin(), candidates.end());
    // Rare: a filter has moved objects. Those before the program (map 0) are not found.
    for (std::size_t map = 0; map != kNone; map = maps_[map].next)
      if (std::find(candidates.begin(), candidates.end(), map) != candidates.end()) return map;
    return kNone;
  }

  std::deque<LinkMap> maps_;
  std::size_t last_ = kNone;
  bool reordered_ = false;
  std::unordered_map<std::string, std::vector<std::size_t>> by_name_;
  std::unordered_map<FileId, std::vector<std::size_t>> by_id_;
};

}  // namespace heddle
