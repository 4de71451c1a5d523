// SPDX-License-Identifier: MIT
#include "resolver/search/link_maps.hpp"

#include <algorithm>

namespace heddle {

std::size_t LinkMaps::append(LinkMap map) {
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

std::size_t LinkMaps::first_in_chain(const std::vector<std::size_t>& candidates) const {
  if (!reordered_) return *std::min_element(candidates.begin(), candidates.end());
  // Rare: a filter has moved objects. What stands before the program (map 0) is not seen at all.
  for (std::size_t map = 0; map != kNone; map = maps_[map].next)
    if (std::find(candidates.begin(), candidates.end(), map) != candidates.end()) return map;
  return kNone;
}

std::size_t LinkMaps::find(const std::string& name) {
  const auto owners = by_name_.find(name);
  if (owners == by_name_.end()) return kNone;
  const auto map = first_in_chain(owners->second);
  if (map != kNone && name != maps_[map].name) add_name(map, name);
  return map;
}

std::size_t LinkMaps::find(const FileId& id) const {
  const auto owners = by_id_.find(id);
  return owners == by_id_.end() ? kNone : first_in_chain(owners->second);
}

void LinkMaps::add_name(std::size_t map, const std::string& name) {
  auto& names = maps_[map].names;
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  names.push_back(name);
  auto& owners = by_name_[name];
  if (std::find(owners.begin(), owners.end(), map) == owners.end()) owners.push_back(map);
}

void LinkMaps::unlink(std::size_t map) {
  auto& own = maps_[map];
  if (own.prev != kNone) maps_[own.prev].next = own.next;
  if (own.next != kNone) maps_[own.next].prev = own.prev;
  if (last_ == map) last_ = own.prev;
  own.prev = own.next = kNone;
}

void LinkMaps::move_before(std::size_t map, std::size_t other) {
  reordered_ = true;
  unlink(map);
  const auto before = maps_[other].prev;
  maps_[map].prev = before;
  maps_[other].prev = map;
  if (before != kNone) maps_[before].next = map;
  maps_[map].next = other;
}

void LinkMaps::insert_after(std::size_t map, std::size_t other) {
  const auto after = maps_[other].next;
  maps_[map].prev = other;
  maps_[map].next = after;
  maps_[other].next = map;
  if (after != kNone)
    maps_[after].prev = map;
  else
    last_ = map;
}

}  // namespace heddle
