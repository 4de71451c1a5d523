// SPDX-License-Identifier: MIT
#include "resolver/search/process_image.hpp"

// _dl_map_object_deps of glibc's elf/dl-deps.c: breadth first, a filtee before its filter.

namespace heddle {

namespace {

/// The kernel's object is in the chain from the start (elf/setup-vdso.h), by its soname, and is no
/// file: vdso(7).
bool is_vdso(std::string_view name) {
  return name == "linux-vdso.so.1" || name == "linux-gate.so.1" || name == "linux-vdso64.so.1" ||
         name == "linux-vdso32.so.1";
}

}  // namespace

std::size_t ProcessImage::add_node(std::size_t map) {
  const auto node = nodes_.size();
  nodes_.push_back({map});
  if (tail_ != kNone) nodes_[tail_].next = node;
  tail_ = node;
  maps_[map].reserved = true;
  return node;
}

void ProcessImage::take_needed(std::size_t requester, const std::string& name) {
  if (is_vdso(name)) return;
  std::string reason;
  const auto map = load(name, requester, false, reason);
  if (map == kNone) {
    closure_.missing.push_back({name, requester, reason});
    return;
  }
  maps_[requester].needs.push_back(map);
  auto& own = maps_[map];
  if (!own.needed_by && own.found_by == FoundBy::interpreter) own.needed_by = requester;
  if (!own.reserved) add_node(map);
}

std::size_t ProcessImage::take_filtee(std::size_t node, const Dependency& dependency,
                                      const std::string& name) {
  const auto requester = nodes_[node].map;
  std::string reason;
  const auto filtee = load(name, requester, false, reason);
  if (filtee == kNone) {
    if (dependency.kind == Dependency::Kind::auxiliary)
      closure_.warnings.push_back(name + ": auxiliary library of " + maps_[requester].name + ": " +
                                  reason + ": ld.so goes on without it");
    else
      closure_.missing.push_back({name, requester, reason});
    return node;
  }
  maps_[requester].needs.push_back(filtee);
  // The filtee goes before its filter. There are no back links, so the filter's node gets the
  // filtee and the filter moves to a new node behind it.
  const auto behind = nodes_.size();
  const auto saved = nodes_[node];
  nodes_.push_back(saved);
  nodes_[node].done = false;
  nodes_[node].map = filtee;
  if (maps_[filtee].reserved) {
    auto late = behind;
    while (nodes_[late].next != kNone && nodes_[nodes_[late].next].map != filtee)
      late = nodes_[late].next;
    if (nodes_[late].next == kNone) {
      nodes_[node] = saved;  // it stands before the filter already
      nodes_.pop_back();
      return node;
    }
    nodes_[node].next = behind;
    const auto old = nodes_[late].next;
    if (tail_ == old) tail_ = late;
    nodes_[late].next = nodes_[old].next;
  } else {
    nodes_[node].next = behind;
    maps_[filtee].reserved = true;
  }
  maps_.move_before(filtee, requester);
  if (node == tail_) tail_ = behind;
  return behind;
}

void ProcessImage::load_dependencies() {
  for (std::size_t run = 0; run != kNone;) {
    nodes_[run].done = true;
    auto node = run;
    const auto map = nodes_[run].map;
    search_->prefetch(map);
    const auto dependencies = maps_[map].file.elf.dependencies;
    for (const auto& dependency : dependencies) {
      auto name = dependency.name;
      if (has_token(name)) {
        name = expand_tokens(name, search_->tokens(map));
        if (name.empty()) {
          closure_.warnings.push_back(dependency.name +
                                      ": a token in it has no value: ld.so ignores it");
          continue;
        }
      }
      if (dependency.kind == Dependency::Kind::needed)
        take_needed(map, name);
      else
        node = take_filtee(node, dependency, name);
    }
    if (nodes_[run].done) do
        run = nodes_[run].next;
      while (run != kNone && nodes_[run].done);
  }
}

}  // namespace heddle
