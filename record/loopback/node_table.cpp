// SPDX-License-Identifier: MIT
#include "record/loopback/node_table.hpp"

#include <algorithm>

namespace heddle::loopback {

struct NodeTable::Node {
  std::uint64_t id = 0;
  FileKey key;
  std::uint64_t lookups = 0;
  std::vector<Name> names;  ///< the one used last stands last
  std::unordered_map<std::string, Node*> children;
  std::vector<int> handles;
  Fd pin;
  ContentStamp stamp;
};

FileKey file_key(const struct statx& st) {
  const bool born = (st.stx_mask & STATX_BTIME) != 0;
  return {(static_cast<std::uint64_t>(st.stx_dev_major) << 32U) | st.stx_dev_minor, st.stx_ino,
          st.stx_mode & static_cast<unsigned>(S_IFMT), born ? st.stx_btime.tv_sec : 0,
          born ? st.stx_btime.tv_nsec : 0};
}

ContentStamp content_stamp(const struct statx& st) {
  return {st.stx_mtime.tv_sec, st.stx_ctime.tv_sec, st.stx_mtime.tv_nsec, st.stx_ctime.tv_nsec,
          st.stx_size};
}

NodeTable::NodeTable(const FileKey& root) {
  make(root).lookups = 1;  // the kernel never forgets it
}
NodeTable::~NodeTable() = default;

NodeTable::Node* NodeTable::find(std::uint64_t id) const {
  const auto at = nodes_.find(id);
  return at == nodes_.end() ? nullptr : at->second.get();
}

NodeTable::Node& NodeTable::make(const FileKey& key) {
  auto node = std::make_unique<Node>();
  node->id = next_id_++;
  node->key = key;
  Node& made = *node;
  nodes_.emplace(made.id, std::move(node));
  by_key_[key] = &made;
  return made;
}

bool NodeTable::append_path(const Node& node, std::string& out) const {
  if (node.id == FUSE_ROOT_ID) return true;
  // Up first, then the names from the top down; no recursion, because trees may be very deep.
  std::vector<const std::string*> parts;
  for (const Node* at = &node; at->id != FUSE_ROOT_ID; at = at->names.back().parent) {
    if (at->names.empty()) return false;
    parts.push_back(at->names.back().name);
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    out += '/';
    out += **part;
  }
  return true;
}

std::optional<std::string> NodeTable::path(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const Node* node = find(id);
  std::string out;
  if (!node || !append_path(*node, out)) return std::nullopt;
  if (out.empty()) out.push_back('/');
  return out;
}

std::optional<std::string> NodeTable::path(std::uint64_t id, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Node* node = find(id);
  std::string out;
  out.reserve(128);
  if (!node || !append_path(*node, out)) return std::nullopt;
  out += '/';
  out += name;
  return out;
}

std::uint64_t NodeTable::bind(std::uint64_t parent_id, std::string_view name, const FileKey& key) {
  const std::lock_guard lock(mutex_);
  const auto known = by_key_.find(key);
  Node& node = known != by_key_.end() ? *known->second : make(key);
  ++node.lookups;
  Node* parent = find(parent_id);
  if (!parent || node.id == FUSE_ROOT_ID) return node.id;
  auto [at, is_new] = parent->children.try_emplace(std::string(name), &node);
  if (!is_new && at->second != &node) {
    drop_name(*parent, at->first);  // another file took the name, outside
    at = parent->children.try_emplace(std::string(name), &node).first;
    is_new = true;
  }
  const std::string* stored = &at->first;
  if (is_new) {
    // A folder has one name: what it had before is where it was moved from, outside.
    if (S_ISDIR(key.type))
      while (!node.names.empty()) {
        const Name old = node.names.back();
        drop_name(*old.parent, *old.name);
        if (old.parent != parent) release_if_unused(old.parent);
      }
    node.names.push_back({parent, stored});
  } else if (node.names.back().name != stored) {
    auto here = std::find_if(node.names.begin(), node.names.end(),
                             [&](const Name& n) { return n.name == stored; });
    std::rotate(here, here + 1, node.names.end());
  }
  return node.id;
}

std::uint64_t NodeTable::bind_nameless(const FileKey& key) {
  const std::lock_guard lock(mutex_);
  Node& node = make(key);
  ++node.lookups;
  return node.id;
}

void NodeTable::drop_name(Node& parent, const std::string& name) {
  const auto at = parent.children.find(name);
  if (at == parent.children.end()) return;
  Node& node = *at->second;
  const std::string* stored = &at->first;
  std::erase_if(node.names, [&](const Name& n) { return n.name == stored; });
  parent.children.erase(at);
}

void NodeTable::unbind(std::uint64_t parent_id, std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (Node* parent = find(parent_id)) drop_name(*parent, std::string(name));
}

void NodeTable::rename(std::uint64_t from_id, std::string_view from_name, std::uint64_t to_id,
                       std::string_view to_name, bool exchange) {
  const std::lock_guard lock(mutex_);
  Node* from = find(from_id);
  Node* to = find(to_id);
  if (!from || !to) return;
  const std::string old_name(from_name), new_name(to_name);
  const auto take = [&](Node& parent, const std::string& name) -> Node* {
    const auto at = parent.children.find(name);
    if (at == parent.children.end()) return nullptr;
    Node* node = at->second;
    drop_name(parent, name);
    return node;
  };
  const auto put = [](Node* node, Node& parent, const std::string& name) {
    if (!node) return;
    const auto at = parent.children.insert_or_assign(name, node).first;
    node->names.push_back({&parent, &at->first});
  };
  Node* moved = take(*from, old_name);
  Node* other = take(*to, new_name);
  if (moved == other && !exchange) other = nullptr;
  put(moved, *to, new_name);
  if (exchange) put(other, *from, old_name);
}

void NodeTable::forget(std::uint64_t id, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  Node* node = find(id);
  if (!node || id == FUSE_ROOT_ID) return;
  node->lookups -= std::min(node->lookups, count);
  release_if_unused(node);
}

void NodeTable::release_if_unused(Node* first) {
  std::vector<std::uint64_t> candidates{first->id};
  while (!candidates.empty()) {
    Node* node = find(candidates.back());
    candidates.pop_back();
    if (!node || node->id == FUSE_ROOT_ID || node->lookups != 0 || !node->children.empty())
      continue;
    while (!node->names.empty()) {
      const Name name = node->names.back();
      candidates.push_back(name.parent->id);  // it may have waited for this child
      drop_name(*name.parent, *name.name);
    }
    const auto known = by_key_.find(node->key);
    if (known != by_key_.end() && known->second == node) by_key_.erase(known);
    nodes_.erase(node->id);
  }
}

std::uint64_t NodeTable::child(std::uint64_t parent_id, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Node* parent = find(parent_id);
  if (!parent) return 0;
  const auto at = parent->children.find(std::string(name));
  return at == parent->children.end() ? 0 : at->second->id;
}

bool NodeTable::is_last_name(std::uint64_t parent_id, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Node* parent = find(parent_id);
  if (!parent) return false;
  const auto at = parent->children.find(std::string(name));
  if (at == parent->children.end()) return false;
  const Node& node = *at->second;
  return node.names.size() <= 1 && node.handles.empty() && !node.pin;
}

void NodeTable::pin(std::uint64_t id, Fd path_fd) {
  const std::lock_guard lock(mutex_);
  if (Node* node = find(id); node && !node->pin) node->pin = std::move(path_fd);
}

void NodeTable::add_handle(std::uint64_t id, int fd) {
  const std::lock_guard lock(mutex_);
  if (Node* node = find(id)) node->handles.push_back(fd);
}

void NodeTable::remove_handle(std::uint64_t id, int fd) {
  const std::lock_guard lock(mutex_);
  if (Node* node = find(id)) std::erase(node->handles, fd);
}

int NodeTable::any_fd(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const Node* node = find(id);
  if (!node) return -1;
  if (!node->handles.empty()) return node->handles.back();
  return node->pin.get();
}

FileKey NodeTable::key(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const Node* node = find(id);
  return node ? node->key : FileKey{};
}

bool NodeTable::same_content(std::uint64_t id, const ContentStamp& stamp) {
  const std::lock_guard lock(mutex_);
  Node* node = find(id);
  if (!node) return false;
  const bool same = node->stamp == stamp;
  node->stamp = stamp;
  return same;
}

std::size_t NodeTable::size() const {
  const std::lock_guard lock(mutex_);
  return nodes_.size();
}

}  // namespace heddle::loopback
