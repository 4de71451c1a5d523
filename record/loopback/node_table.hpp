// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "record/loopback/protocol.hpp"
#include "record/loopback/worker_memory.hpp"

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
/// All of it stands in the memory, so that the table of one worker is that of the next. Where that
/// was killed in the midst of a change, it is made anew from its nodes and names, of which there
/// may be a name too many or a look-up counted twice: as if somebody outside had moved the file, or
/// the kernel had forgotten one less. All members lock; any thread.
class NodeTable {
 public:
  /// What stands in the memory is known at once. `root` counts when nothing does.
  NodeTable(WorkerMemory& memory, const FileKey& root);

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
  /// There are none, until add_handle() says so.
  void forget_handles(std::uint64_t id);
  /// A descriptor by which a file without name is still reached, -1 when none; valid as long as
  /// the node (or the handle) is not given up, which the kernel does not while it asks.
  int any_fd(std::uint64_t id) const;

  FileKey key(std::uint64_t id) const;
  /// Notes the content's stamp; true when it is the one noted before.
  bool same_content(std::uint64_t id, const ContentStamp& stamp);
  std::size_t size() const;
  /// Descriptors of the nodes, for one who closes what nobody knows of.
  static std::vector<int> pins(const WorkerMemory& memory);

 private:
  struct Node;
  struct NodeRecord;
  struct NameRecord;
  struct Pin;
  struct Tables;
  Node* find(std::uint64_t id) const;
  Node& know(NodeRecord& record);
  Node& make(const FileKey& key);
  void make_anew();
  void find_pins();
  void give_up(Pin& pin);
  NameRecord& make_name(const Node& node, const Node& parent, std::string_view name);
  void link(Node& node, Node& parent, NameRecord& record);
  void drop_name(Node& parent, std::string_view name);
  void release_if_unused(Node* node);
  bool append_path(const Node& node, std::string& out) const;

  WorkerMemory& memory_;
  mutable std::mutex mutex_;
  Tables* tables_;
};

}  // namespace heddle::loopback
