// SPDX-License-Identifier: MIT
#include "record/loopback/node_table.hpp"

#include <algorithm>
#include <unordered_map>

namespace heddle::loopback {

struct NodeTable::NodeRecord {
  std::uint64_t id = 0;
  FileKey key;
  std::atomic<std::uint64_t> lookups = 0;
  ContentStamp stamp;
};

struct NodeTable::NameRecord {
  std::uint64_t node;
  std::uint64_t parent;
  std::atomic<std::uint64_t> turn;
  std::size_t length;
  char* bytes() { return reinterpret_cast<char*>(this + 1); }
  std::string_view text() { return {bytes(), length}; }
};

/// In the store, where there are few blocks: the supervisor looks for descriptors.
struct NodeTable::Pin {
  std::uint64_t node;
  int fd;
};

struct NodeTable::Node {
  struct Name {
    Node* parent;
    NameRecord* record;  ///< its text is the key in parent's children
  };
  using Child = std::pair<const std::string_view, Node*>;

  Node(NodeRecord& r, TableMemory& memory)
      : record(r), names(memory), children(memory), handles(memory) {}
  NodeRecord& record;
  Pin* pin = nullptr;
  std::vector<Name, TableAllocator<Name>> names;  ///< the one used last stands last
  std::unordered_map<std::string_view, Node*, std::hash<std::string_view>, std::equal_to<>,
                     TableAllocator<Child>>
      children;
  std::vector<int, TableAllocator<int>> handles;
};

struct NodeTable::Tables {
  struct KeyHash {
    std::size_t operator()(const FileKey& key) const {
      return (key.inode * 0x9e3779b97f4a7c15ULL) ^ (key.device << 1U) ^
             static_cast<std::uint64_t>(key.born_ns);
    }
  };
  using ById = std::pair<const std::uint64_t, Node>;
  using ByKey = std::pair<const FileKey, Node*>;

  explicit Tables(TableMemory& memory) : nodes(memory), by_key(memory) {}
  std::unordered_map<std::uint64_t, Node, std::hash<std::uint64_t>, std::equal_to<>,
                     TableAllocator<ById>>
      nodes;
  std::unordered_map<FileKey, Node*, KeyHash, std::equal_to<>, TableAllocator<ByKey>> by_key;
  std::uint64_t last_turn = 0;  ///< of names: the higher was used later
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

NodeTable::NodeTable(WorkerMemory& memory, const FileKey& root)
    : memory_(memory), tables_(memory.tables.root<Tables>(TableMemory::Root::nodes)) {
  if (tables_) return;
  const TableMemory::Change change(memory_.tables);
  tables_ = &memory_.tables.make_root<Tables>(TableMemory::Root::nodes);
  make_anew();
  if (tables_->nodes.empty()) make(root).record.lookups = 1;  // the kernel never forgets it
}

NodeTable::Node* NodeTable::find(std::uint64_t id) const {
  const auto at = tables_->nodes.find(id);
  return at == tables_->nodes.end() ? nullptr : &at->second;
}

NodeTable::Node& NodeTable::know(NodeRecord& record) {
  Node& node = tables_->nodes.try_emplace(record.id, record, memory_.tables).first->second;
  tables_->by_key[record.key] = &node;
  return node;
}

NodeTable::Node& NodeTable::make(const FileKey& key) {
  auto* record = new (memory_.nodes.make(sizeof(NodeRecord))) NodeRecord;
  record->id = memory_.nodes.next(Counter::node);
  record->key = key;
  BlockStore::commit(record, BlockKind::node);
  return know(*record);
}

NodeTable::NameRecord& NodeTable::make_name(const Node& node, const Node& parent,
                                            std::string_view name) {
  auto* record = new (memory_.nodes.make(sizeof(NameRecord) + name.size()))
      NameRecord{node.record.id, parent.record.id, ++tables_->last_turn, name.size()};
  std::copy(name.begin(), name.end(), record->bytes());
  BlockStore::commit(record, BlockKind::name);
  return *record;
}

void NodeTable::link(Node& node, Node& parent, NameRecord& record) {
  parent.children[record.text()] = &node;
  node.names.push_back({&parent, &record});
}

/// What a killed worker left: of two files under one name, and of two names of a folder, the later
/// counts.
void NodeTable::make_anew() {
  std::vector<NodeRecord*> nodes;
  std::vector<NameRecord*> names;
  memory_.nodes.each(BlockKind::node,
                     [&](void* block) { nodes.push_back(static_cast<NodeRecord*>(block)); });
  memory_.nodes.each(BlockKind::name,
                     [&](void* block) { names.push_back(static_cast<NameRecord*>(block)); });
  tables_->nodes.reserve(nodes.size());
  tables_->by_key.reserve(nodes.size());
  for (NodeRecord* record : nodes) know(*record);
  find_pins();
  std::sort(names.begin(), names.end(),
            [](const NameRecord* a, const NameRecord* b) { return a->turn < b->turn; });
  for (NameRecord* record : names) {
    tables_->last_turn = record->turn;
    Node* parent = find(record->parent);
    Node* node = find(record->node);
    if (!parent || !node) {
      memory_.nodes.give_up(record);
      continue;
    }
    drop_name(*parent, record->text());
    if (S_ISDIR(node->record.key.type))
      while (!node->names.empty())
        drop_name(*node->names.back().parent, node->names.back().record->text());
    link(*node, *parent, *record);
  }
  std::vector<std::uint64_t> unused;
  for (const auto& [id, node] : tables_->nodes)
    if (node.record.lookups == 0) unused.push_back(id);
  for (const auto id : unused)
    if (Node* node = find(id)) release_if_unused(node);
}

void NodeTable::find_pins() {
  memory_.store.each(BlockKind::pin, [&](void* block) {
    auto* pin = static_cast<Pin*>(block);
    Node* node = find(pin->node);
    if (node && !node->pin) {
      node->pin = pin;
    } else {
      give_up(*pin);
    }
  });
}

void NodeTable::give_up(Pin& pin) {
  const Fd fd(pin.fd);
  memory_.store.give_up(&pin);  // before the descriptor goes: the number may be another's at once
}

std::vector<int> NodeTable::pins(const WorkerMemory& memory) {
  std::vector<int> out;
  memory.store.each(BlockKind::pin,
                    [&](void* block) { out.push_back(static_cast<Pin*>(block)->fd); });
  return out;
}

bool NodeTable::append_path(const Node& node, std::string& out) const {
  if (node.record.id == FUSE_ROOT_ID) return true;
  // Up first, then the names from the top down; no recursion, because trees may be very deep.
  std::vector<std::string_view> parts;
  for (const Node* at = &node; at->record.id != FUSE_ROOT_ID; at = at->names.back().parent) {
    if (at->names.empty()) return false;
    parts.push_back(at->names.back().record->text());
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    out += '/';
    out += *part;
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
  const TableMemory::Change change(memory_.tables);
  const auto known = tables_->by_key.find(key);
  Node& node = known != tables_->by_key.end() ? *known->second : make(key);
  ++node.record.lookups;
  Node* parent = find(parent_id);
  if (!parent || node.record.id == FUSE_ROOT_ID) return node.record.id;
  const auto at = parent->children.find(name);
  if (at != parent->children.end() && at->second == &node) {
    if (const auto& last = node.names.back(); last.parent == parent && last.record->text() == name)
      return node.record.id;
    const auto here = std::find_if(node.names.begin(), node.names.end(), [&](const Node::Name& n) {
      return n.parent == parent && n.record->text() == name;
    });
    here->record->turn = ++tables_->last_turn;
    std::rotate(here, here + 1, node.names.end());
    return node.record.id;
  }
  NameRecord& record = make_name(node, *parent, name);
  drop_name(*parent, name);  // another file had the name: it was taken outside
  // A folder has one name: what it had before is where it was moved from, outside.
  if (S_ISDIR(key.type))
    while (!node.names.empty()) {
      const Node::Name old = node.names.back();
      drop_name(*old.parent, old.record->text());
      if (old.parent != parent) release_if_unused(old.parent);
    }
  link(node, *parent, record);
  return node.record.id;
}

std::uint64_t NodeTable::bind_nameless(const FileKey& key) {
  const std::lock_guard lock(mutex_);
  const TableMemory::Change change(memory_.tables);
  Node& node = make(key);
  ++node.record.lookups;
  return node.record.id;
}

void NodeTable::drop_name(Node& parent, std::string_view name) {
  const auto at = parent.children.find(name);
  if (at == parent.children.end()) return;
  auto& names = at->second->names;
  const auto here = std::find_if(names.begin(), names.end(), [&](const Node::Name& n) {
    return n.parent == &parent && n.record->text() == name;
  });
  NameRecord* record = here->record;
  names.erase(here);
  parent.children.erase(at);
  memory_.nodes.give_up(record);  // last: `name` may be its text
}

void NodeTable::unbind(std::uint64_t parent_id, std::string_view name) {
  const std::lock_guard lock(mutex_);
  const TableMemory::Change change(memory_.tables);
  if (Node* parent = find(parent_id)) drop_name(*parent, name);
}

void NodeTable::rename(std::uint64_t from_id, std::string_view from_name, std::uint64_t to_id,
                       std::string_view to_name, bool exchange) {
  const std::lock_guard lock(mutex_);
  const TableMemory::Change change(memory_.tables);
  Node* from = find(from_id);
  Node* to = find(to_id);
  if (!from || !to) return;
  const auto known_as = [](const Node& parent, std::string_view name) -> Node* {
    const auto at = parent.children.find(name);
    return at == parent.children.end() ? nullptr : at->second;
  };
  Node* moved = known_as(*from, from_name);
  Node* other = known_as(*to, to_name);
  if (moved == other) {
    if (!exchange) drop_name(*from, from_name);
    return;
  }
  // The new names come first: a worker killed in between leaves one too many.
  NameRecord* moved_name = moved ? &make_name(*moved, *to, to_name) : nullptr;
  NameRecord* other_name = exchange && other ? &make_name(*other, *from, from_name) : nullptr;
  drop_name(*from, from_name);
  drop_name(*to, to_name);
  if (moved) link(*moved, *to, *moved_name);
  if (other_name) link(*other, *from, *other_name);
}

void NodeTable::forget(std::uint64_t id, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  const TableMemory::Change change(memory_.tables);
  Node* node = find(id);
  if (!node || id == FUSE_ROOT_ID) return;
  const std::uint64_t had = node->record.lookups;
  node->record.lookups = had - std::min(had, count);
  release_if_unused(node);
}

void NodeTable::release_if_unused(Node* first) {
  std::vector<std::uint64_t> candidates{first->record.id};
  while (!candidates.empty()) {
    Node* node = find(candidates.back());
    candidates.pop_back();
    if (!node || node->record.id == FUSE_ROOT_ID || node->record.lookups != 0 ||
        !node->children.empty())
      continue;
    while (!node->names.empty()) {
      const Node::Name name = node->names.back();
      candidates.push_back(name.parent->record.id);  // it may have waited for this child
      drop_name(*name.parent, name.record->text());
    }
    NodeRecord& record = node->record;
    const auto known = tables_->by_key.find(record.key);
    if (known != tables_->by_key.end() && known->second == node) tables_->by_key.erase(known);
    Pin* pin = node->pin;
    tables_->nodes.erase(record.id);
    if (pin) give_up(*pin);
    memory_.nodes.give_up(&record);
  }
}

std::uint64_t NodeTable::child(std::uint64_t parent_id, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Node* parent = find(parent_id);
  if (!parent) return 0;
  const auto at = parent->children.find(name);
  return at == parent->children.end() ? 0 : at->second->record.id;
}

bool NodeTable::is_last_name(std::uint64_t parent_id, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Node* parent = find(parent_id);
  if (!parent) return false;
  const auto at = parent->children.find(name);
  if (at == parent->children.end()) return false;
  const Node& node = *at->second;
  return node.names.size() <= 1 && node.handles.empty() && !node.pin;
}

void NodeTable::pin(std::uint64_t id, Fd path_fd) {
  const std::lock_guard lock(mutex_);
  const TableMemory::Change change(memory_.tables);
  Node* node = find(id);
  if (!node || node->pin) return;
  auto* pin = new (memory_.store.make(sizeof(Pin))) Pin{id, path_fd.get()};
  BlockStore::commit(pin, BlockKind::pin);
  (void)path_fd.release();
  node->pin = pin;
}

void NodeTable::add_handle(std::uint64_t id, int fd) {
  const std::lock_guard lock(mutex_);
  const TableMemory::Change change(memory_.tables);
  if (Node* node = find(id)) node->handles.push_back(fd);
}

void NodeTable::remove_handle(std::uint64_t id, int fd) {
  const std::lock_guard lock(mutex_);
  const TableMemory::Change change(memory_.tables);
  if (Node* node = find(id)) std::erase(node->handles, fd);
}

void NodeTable::forget_handles(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const TableMemory::Change change(memory_.tables);
  if (Node* node = find(id)) node->handles.clear();
}

int NodeTable::any_fd(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const Node* node = find(id);
  if (!node) return -1;
  if (!node->handles.empty()) return node->handles.back();
  return node->pin ? node->pin->fd : -1;
}

FileKey NodeTable::key(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const Node* node = find(id);
  return node ? node->record.key : FileKey{};
}

bool NodeTable::same_content(std::uint64_t id, const ContentStamp& stamp) {
  const std::lock_guard lock(mutex_);
  Node* node = find(id);
  if (!node) return false;
  const bool same = node->record.stamp == stamp;
  node->record.stamp = stamp;
  return same;
}

std::size_t NodeTable::size() const {
  const std::lock_guard lock(mutex_);
  return tables_->nodes.size();
}

}  // namespace heddle::loopback
