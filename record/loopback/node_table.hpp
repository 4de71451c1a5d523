// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fd.hpp"
#include "record/loopback/request.hpp"

namespace heddle::loopback {

/// Identifies a file on one mount (Linux 5.8), and not a later file with the same inode number.
struct FileKey {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t mount = 0;  ///< 0: unknown
  std::uint32_t type = 0;   ///< S_IFMT part
  std::int64_t born_s = 0;
  std::uint32_t born_ns = 0;
  bool operator==(const FileKey&) const = default;
};
FileKey file_key(const struct statx& st);

/// The files that the kernel knows, by node id. A node is an O_PATH descriptor, opened at its
/// lookup, so that its operations reach that file wherever it is moved and whatever replaces it.
/// Files that stat(2) looked up have none, and beyond a limit the least recently used nodes lose
/// it; they are found again by name and key, or are stale. Names serve the trace and this search
/// only. Thread-safe.
class NodeTable {
 public:
  /// A node's descriptor, open as long as it is referenced.
  using File = std::shared_ptr<const Fd>;

  /// `most_open`: descriptors of nodes.
  NodeTable(Fd root, const FileKey& key, std::size_t most_open);

  /// The last known absolute path of a node, or of `name` in it; empty: it has no name.
  std::string path(std::uint64_t id, std::string_view name = {}) const;

  /// Names the file `key` and counts one lookup. `fd`: the file, or invalid if the node has a
  /// descriptor or needs none. Result: its id.
  std::uint64_t bind(std::uint64_t parent, std::string_view name, const FileKey& key, Fd fd);
  /// The same for a file without a name (O_TMPFILE).
  std::uint64_t bind_nameless(const FileKey& key, Fd fd);
  void unbind(std::uint64_t parent, std::string_view name);
  void rename(std::uint64_t from, std::string_view from_name, std::uint64_t to,
              std::string_view to_name, bool exchange);
  void forget(std::uint64_t id, std::uint64_t count);

  /// nullptr: the node has no descriptor, or does not exist.
  File file(std::uint64_t id);
  /// How to find a node without descriptor: from one with a descriptor, name by name.
  struct Step {
    std::uint64_t id;
    std::string name;
    FileKey key;
  };
  struct Way {
    File from;
    std::vector<Step> steps;
  };
  /// nullopt: the node has no name.
  std::optional<Way> way_to(std::uint64_t id);
  /// Sets the node's descriptor.
  File warm(std::uint64_t id, Fd fd);
  /// Closes half of the descriptors, when the process is out of them.
  void cool();

  struct Child {
    std::uint64_t id = 0;  ///< 0: unknown
    FileKey key;
    bool is_open = false;
  };
  /// The node of `name` in `parent`, as last known.
  Child child(std::uint64_t parent, std::string_view name) const;
  FileKey key(std::uint64_t id) const;
  /// Adds to the node's open handles. A node with any does not lose its descriptor.
  void count_handle(std::uint64_t id, int more);
  bool has_handles(std::uint64_t id) const;
  /// Stores the file's size and times. True when they are unchanged, so that cached pages are
  /// valid. A change within the last 50 ms never counts as unchanged: the clock of file systems
  /// ticks every 1 to 10 ms, and the next change may have the same time.
  bool same_content(std::uint64_t id, const struct statx& st);
  std::size_t size() const;

 private:
  struct Node;
  struct Name {
    Node* parent;
    const std::string* text;  ///< the key in parent's children
  };
  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>()(name);
    }
  };
  struct Node {
    std::uint64_t id = 0;
    FileKey key;
    std::uint64_t lookups = 0;
    int handles = 0;
    File file;
    std::list<Node*>::iterator place;  ///< in warm_, while there is a file
    std::vector<Name> names;           ///< most recently used last
    std::unordered_map<std::string, Node*, NameHash, std::equal_to<>> children;
    std::array<std::int64_t, 5> stamp{-1};  ///< of the content
  };
  struct KeyHash {
    std::size_t operator()(const FileKey& key) const {
      return (key.inode * 0x9e3779b97f4a7c15ULL) ^ (key.device << 1U) ^ (key.mount << 17U) ^
             static_cast<std::uint64_t>(key.born_ns);
    }
  };
  using Files = std::vector<File>;

  Node* find(std::uint64_t id);
  const Node* find(std::uint64_t id) const { return const_cast<NodeTable*>(this)->find(id); }
  Node& make(const FileKey& key);
  const File& set_file(Node& node, Fd fd, Files& closed);
  void cool_beyond(std::size_t most, Files& closed);
  void link(Node& node, Node& parent, std::string_view name);
  void drop_name(Node& parent, std::string_view name);
  void release_if_unused(Node* node, Files& closed);

  mutable std::mutex mutex_;
  const std::size_t most_open_;
  std::unordered_map<std::uint64_t, Node> nodes_;
  std::unordered_map<FileKey, Node*, KeyHash> by_key_;
  std::list<Node*> warm_;  ///< those with a descriptor, most recently used last
  std::uint64_t last_id_ = 0;
};

/// One constant st_ino for each (device, inode), unique over all devices: the loopback has one
/// st_dev, and ld.so takes two libraries of equal (dev, ino) for one (elf/dl-load.c).
///
/// The root's device keeps its numbers; each further device has its own range of 2^48. Numbers
/// beyond 2^48 (some network and stacked file systems) are mapped to a separate range.
class InodeNumbers {
 public:
  explicit InodeNumbers(std::uint64_t root_device) : root_device_(root_device) {
    devices_[root_device] = 0;
  }

  std::uint64_t of(std::uint64_t device, std::uint64_t inode) {
    if (device == root_device_ && inode < kRange) return inode;
    const std::lock_guard lock(mutex_);
    const auto index = devices_.try_emplace(device, devices_.size()).first->second;
    if (inode < kRange && index < kForeign) return index << kShift | inode;
    const auto next = (kForeign << kShift) + foreign_.size();
    return foreign_.try_emplace({device, inode}, next).first->second;
  }

 private:
  static constexpr unsigned kShift = 48;
  static constexpr std::uint64_t kRange = 1ULL << kShift;
  static constexpr std::uint64_t kForeign = 0x7fff;
  const std::uint64_t root_device_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> devices_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> foreign_;
};

}  // namespace heddle::loopback
