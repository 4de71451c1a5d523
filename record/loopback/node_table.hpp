// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fd.hpp"
#include "record/loopback/block_store.hpp"
#include "record/loopback/protocol.hpp"

namespace heddle::loopback {

/// What tells one file from all others, also from one that got its inode number later.
struct FileKey {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint32_t type = 0;  ///< S_IFMT part
  std::int64_t born_s = 0;
  std::uint32_t born_ns = 0;
  bool operator==(const FileKey&) const = default;
};
FileKey file_key(const struct statx& st);

/// When a file's content was last known: the kernel may keep its pages while this is unchanged.
struct ContentStamp {
  std::int64_t mtime_s = 0, ctime_s = 0;
  std::uint32_t mtime_ns = 0, ctime_ns = 0;
  std::uint64_t size = ~0ULL;
  bool operator==(const ContentStamp&) const = default;
};
ContentStamp content_stamp(const struct statx& st);

/// The files that the kernel knows, by the node ids it uses, with the names by which they were
/// reached. Files are found again by path, so that no descriptor is held for them; one that lost
/// its last name while known is held by an O_PATH descriptor until the kernel forgets it.
///
/// Nodes and names stand in the store, so that the table of one worker is that of the next; what
/// finds them is made anew. A worker that is killed halfway leaves a name too many or a look-up
/// counted twice: as if somebody outside had moved the file, or the kernel had forgotten one less.
/// All members lock; any thread.
class NodeTable {
 public:
  /// What stands in the store is known at once. `root` counts when nothing does.
  NodeTable(BlockStore& store, const FileKey& root);
  ~NodeTable();

  /// The absolute path of a node, as last known; nullopt: it has none (unlinked, never named).
  std::optional<std::string> path(std::uint64_t id) const;
  /// The path of `name` in the folder `id`.
  std::optional<std::string> path(std::uint64_t id, std::string_view name) const;

  /// `name` in `parent` is the file `key`: gives its id and counts one look-up of it.
  std::uint64_t bind(std::uint64_t parent, std::string_view name, const FileKey& key);
  /// A file without a name (O_TMPFILE).
  std::uint64_t bind_nameless(const FileKey& key);
  /// `name` is gone from `parent`.
  void unbind(std::uint64_t parent, std::string_view name);
  void rename(std::uint64_t from, std::string_view from_name, std::uint64_t to,
              std::string_view to_name, bool exchange);
  void forget(std::uint64_t id, std::uint64_t count);

  /// The node that `name` in `parent` is known as, 0 when none.
  std::uint64_t child(std::uint64_t parent, std::string_view name) const;
  /// Whether the file would be lost to us without its name `name` in `parent`.
  bool is_last_name(std::uint64_t parent, std::string_view name) const;
  /// Keeps the file reachable without a name; dropped with the node.
  void pin(std::uint64_t id, Fd path_fd);
  void add_handle(std::uint64_t id, int fd);
  void remove_handle(std::uint64_t id, int fd);
  /// A descriptor by which a file without name is still reached, -1 when none; valid as long as
  /// the node (or the handle) is not given up, which the kernel does not while it asks.
  int any_fd(std::uint64_t id) const;

  FileKey key(std::uint64_t id) const;
  /// Notes the content's stamp; true when it is the one noted before.
  bool same_content(std::uint64_t id, const ContentStamp& stamp);
  std::size_t size() const;
  /// Descriptors of the nodes in the store, for one who closes what nobody knows of.
  static std::vector<int> pins(const BlockStore& store);

 private:
  struct Node;
  struct NodeRecord;
  struct NameRecord;
  struct Name {
    Node* parent;
    NameRecord* record;  ///< its text is the key in parent's children
  };
  struct KeyHash {
    std::size_t operator()(const FileKey& key) const {
      return (key.inode * 0x9e3779b97f4a7c15ULL) ^ (key.device << 1U) ^
             static_cast<std::uint64_t>(key.born_ns);
    }
  };
  Node* find(std::uint64_t id) const;
  Node& know(NodeRecord& record);
  Node& make(const FileKey& key);
  void recover();
  NameRecord& make_name(const Node& node, const Node& parent, std::string_view name);
  void link(Node& node, Node& parent, NameRecord& record);
  void drop_name(Node& parent, std::string_view name);
  void release_if_unused(Node* node);
  bool append_path(const Node& node, std::string& out) const;

  BlockStore& store_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Node>> nodes_;
  std::unordered_map<FileKey, Node*, KeyHash> by_key_;
  std::uint64_t last_turn_ = 0;  ///< of names: the higher was used later
};

}  // namespace heddle::loopback
