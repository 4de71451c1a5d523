// SPDX-License-Identifier: MIT
#include "record/loopback/node_table.hpp"

#include <time.h>

#include <algorithm>

namespace heddle::loopback {

FileKey file_key(const struct statx& st) {
  const bool born = (st.stx_mask & STATX_BTIME) != 0;
  return {(static_cast<std::uint64_t>(st.stx_dev_major) << 32U) | st.stx_dev_minor,
          st.stx_ino,
          (st.stx_mask & STATX_MNT_ID) != 0 ? st.stx_mnt_id : 0,
          st.stx_mode & static_cast<unsigned>(S_IFMT),
          born ? st.stx_btime.tv_sec : 0,
          born ? st.stx_btime.tv_nsec : 0};
}

// Descriptors are closed without the lock, because the last one of an unlinked file frees its
// blocks.
NodeTable::NodeTable(Fd root, const FileKey& key, std::size_t most_open)
    : most_open_(std::max<std::size_t>(most_open, 16)) {
  Node& node = make(key);
  node.lookups = 1;  // the kernel never forgets it
  Files none;
  set_file(node, std::move(root), none);
}

NodeTable::Node* NodeTable::find(std::uint64_t id) {
  const auto at = nodes_.find(id);
  return at == nodes_.end() ? nullptr : &at->second;
}

NodeTable::Node& NodeTable::make(const FileKey& key) {
  Node& node = nodes_[++last_id_];
  node.id = last_id_;
  node.key = key;
  by_key_[key] = &node;
  return node;
}

const NodeTable::File& NodeTable::set_file(Node& node, Fd fd, Files& closed) {
  if (!fd) return node.file;
  auto file = std::make_shared<const Fd>(std::move(fd));
  if (node.file) {
    closed.push_back(std::move(file));
    return node.file;
  }
  node.file = std::move(file);
  node.place = warm_.insert(warm_.end(), &node);
  cool_beyond(most_open_, closed);
  return node.file;
}

void NodeTable::cool_beyond(std::size_t most, Files& closed) {
  // Skips nodes that could not be found again, but not an unlimited number each time.
  std::size_t tries = warm_.size() > most ? warm_.size() - most + 16 : 0;
  for (; warm_.size() > most && tries > 0; --tries) {
    Node& node = *warm_.front();
    if (node.id == FUSE_ROOT_ID || node.names.empty() || node.handles > 0) {
      warm_.splice(warm_.end(), warm_, warm_.begin());
      continue;
    }
    closed.push_back(std::move(node.file));
    node.file.reset();
    warm_.pop_front();
  }
}

void NodeTable::cool() {
  Files closed;
  const std::lock_guard lock(mutex_);
  cool_beyond(warm_.size() / 2, closed);
}

NodeTable::File NodeTable::file(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  Node* node = find(id);
  if (!node || !node->file) return nullptr;
  warm_.splice(warm_.end(), warm_, node->place);
  return node->file;
}

std::optional<NodeTable::Way> NodeTable::way_to(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  Way way;
  Node* node = find(id);
  for (; node && !node->file; node = node->names.back().parent) {
    if (node->names.empty()) return std::nullopt;
    way.steps.push_back({node->id, *node->names.back().text, node->key});
  }
  if (!node) return std::nullopt;
  way.from = node->file;
  std::reverse(way.steps.begin(), way.steps.end());
  return way;
}

NodeTable::File NodeTable::warm(std::uint64_t id, Fd fd) {
  Files closed;
  const std::lock_guard lock(mutex_);
  Node* node = find(id);
  return node ? set_file(*node, std::move(fd), closed) : nullptr;
}

std::string NodeTable::path(std::uint64_t id, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Node* node = find(id);
  if (!node) return {};
  // No recursion, because trees may be very deep.
  std::vector<std::string_view> parts;
  if (!name.empty()) parts.push_back(name);
  for (; node->id != FUSE_ROOT_ID; node = node->names.back().parent) {
    if (node->names.empty()) return {};
    parts.push_back(*node->names.back().text);
  }
  std::string out;
  out.reserve(128);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    out += '/';
    out += *part;
  }
  return out.empty() ? "/" : out;
}

void NodeTable::link(Node& node, Node& parent, std::string_view name) {
  // Directories moved by other processes may have been seen below each other. The one between them
  // loses its name, or the way up would be a cycle.
  for (Node* at = &parent; at->id != FUSE_ROOT_ID && !at->names.empty();) {
    const Name up = at->names.back();
    if (up.parent == &node) {
      drop_name(node, std::string(*up.text));
      break;
    }
    at = up.parent;
  }
  const auto made = parent.children.insert_or_assign(std::string(name), &node).first;
  node.names.push_back({&parent, &made->first});
}

std::uint64_t NodeTable::bind(std::uint64_t parent_id, std::string_view name, const FileKey& key,
                              Fd fd) {
  Files closed;
  const std::lock_guard lock(mutex_);
  const auto known = by_key_.find(key);
  Node& node = known != by_key_.end() ? *known->second : make(key);
  ++node.lookups;
  Node* parent = find(parent_id);
  // A directory bind-mounted in itself is not its own parent.
  if (parent && parent != &node && node.id != FUSE_ROOT_ID) {
    const auto at = parent->children.find(name);
    if (at != parent->children.end() && at->second == &node) {
      const auto here = std::find_if(node.names.begin(), node.names.end(), [&](const Name& n) {
        return n.parent == parent && *n.text == name;
      });
      std::rotate(here, here + 1, node.names.end());
    } else {
      drop_name(*parent, name);  // of a file that another process replaced
      // A directory has one name; the one before is where another process moved it from.
      if (S_ISDIR(key.type))
        while (!node.names.empty()) {
          Node* old = node.names.back().parent;
          drop_name(*old, std::string(*node.names.back().text));
          if (old != parent) release_if_unused(old, closed);
        }
      link(node, *parent, name);
    }
  }
  set_file(node, std::move(fd), closed);
  return node.id;
}

std::uint64_t NodeTable::bind_nameless(const FileKey& key, Fd fd) {
  Files closed;
  const std::lock_guard lock(mutex_);
  Node& node = make(key);
  ++node.lookups;
  set_file(node, std::move(fd), closed);
  return node.id;
}

void NodeTable::drop_name(Node& parent, std::string_view name) {
  const auto at = parent.children.find(name);
  if (at == parent.children.end()) return;
  auto& names = at->second->names;
  std::erase_if(names, [&](const Name& n) { return n.text == &at->first; });
  parent.children.erase(at);
}

void NodeTable::unbind(std::uint64_t parent_id, std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (Node* parent = find(parent_id)) drop_name(*parent, name);
}

void NodeTable::rename(std::uint64_t from_id, std::string_view from_name, std::uint64_t to_id,
                       std::string_view to_name, bool exchange) {
  const std::lock_guard lock(mutex_);
  Node* from = find(from_id);
  Node* to = find(to_id);
  if (!from || !to) return;
  const auto known_as = [](const Node& parent, std::string_view name) -> Node* {
    const auto at = parent.children.find(name);
    return at == parent.children.end() ? nullptr : at->second;
  };
  Node* moved = known_as(*from, from_name);
  Node* other = known_as(*to, to_name);
  // rename(2) of two names of one file does nothing.
  if (moved && moved == other) return;
  drop_name(*from, from_name);
  drop_name(*to, to_name);
  if (moved) link(*moved, *to, to_name);
  if (exchange && other) link(*other, *from, from_name);
}

void NodeTable::forget(std::uint64_t id, std::uint64_t count) {
  Files closed;
  const std::lock_guard lock(mutex_);
  Node* node = find(id);
  if (!node || id == FUSE_ROOT_ID) return;
  node->lookups -= std::min(node->lookups, count);
  release_if_unused(node, closed);
}

void NodeTable::release_if_unused(Node* first, Files& closed) {
  std::vector<std::uint64_t> candidates{first->id};
  while (!candidates.empty()) {
    Node* node = find(candidates.back());
    candidates.pop_back();
    if (!node || node->id == FUSE_ROOT_ID || node->lookups != 0 || !node->children.empty())
      continue;
    while (!node->names.empty()) {
      Node* parent = node->names.back().parent;
      candidates.push_back(parent->id);  // it may have waited for this child
      drop_name(*parent, std::string(*node->names.back().text));
    }
    const auto known = by_key_.find(node->key);
    if (known != by_key_.end() && known->second == node) by_key_.erase(known);
    if (node->file) {
      closed.push_back(std::move(node->file));
      warm_.erase(node->place);
    }
    nodes_.erase(node->id);
  }
}

NodeTable::Child NodeTable::child(std::uint64_t parent_id, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Node* parent = find(parent_id);
  if (!parent) return {};
  const auto at = parent->children.find(name);
  if (at == parent->children.end()) return {};
  return {at->second->id, at->second->key, at->second->file != nullptr};
}

FileKey NodeTable::key(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const Node* node = find(id);
  return node ? node->key : FileKey{};
}

bool NodeTable::has_handles(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const Node* node = find(id);
  return node && node->handles > 0;
}

void NodeTable::count_handle(std::uint64_t id, int more) {
  const std::lock_guard lock(mutex_);
  if (Node* node = find(id)) node->handles += more;
}

bool NodeTable::same_content(std::uint64_t id, const struct statx& st) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto age_ns = (now.tv_sec - st.stx_ctime.tv_sec) * 1'000'000'000 + now.tv_nsec -
                      static_cast<std::int64_t>(st.stx_ctime.tv_nsec);
  constexpr std::int64_t kTicks = 50'000'000;
  const std::array<std::int64_t, 5> stamp = {st.stx_mtime.tv_sec, st.stx_mtime.tv_nsec,
                                             st.stx_ctime.tv_sec, st.stx_ctime.tv_nsec,
                                             static_cast<std::int64_t>(st.stx_size)};
  const std::lock_guard lock(mutex_);
  Node* node = find(id);
  if (!node) return false;
  const bool same = node->stamp == stamp;
  node->stamp = age_ns > kTicks ? stamp : std::array<std::int64_t, 5>{-1};
  return same;
}

std::size_t NodeTable::size() const {
  const std::lock_guard lock(mutex_);
  return nodes_.size();
}

}  // namespace heddle::loopback
