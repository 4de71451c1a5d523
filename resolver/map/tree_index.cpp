// SPDX-License-Identifier: MIT
#include "resolver/map/tree_index.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <map>
#include <utility>

namespace heddle {
namespace {

constexpr std::array<char, 8> kMagic = {'H', 'E', 'D', 'D', 'T', 'R', 'E', 'E'};
constexpr std::size_t kMaxTreeText = std::size_t{1} << 30;
constexpr std::size_t kMaxName = 255;
constexpr std::size_t kMaxPath = PATH_MAX - 1;  ///< of a path within the tree, and a link's target
constexpr std::uint8_t kHole = 1;

struct Head {
  std::array<char, 8> magic;
  std::uint32_t nodes;
  std::uint32_t text;  ///< bytes of text behind the nodes
};
static_assert(sizeof(Head) == 16);

/// A node as it is stored, at any alignment. The texts follow the nodes in their order.
struct Raw {
  std::uint32_t text;  ///< where the name starts; a link's target follows it
  std::uint32_t parent;
  std::uint64_t size;
  std::int64_t mtime_ns;
  std::int64_t ctime_ns;
  std::uint32_t uid;
  std::uint32_t gid;
  std::uint32_t links;
  std::uint32_t same_as;
  std::uint32_t first_child;
  std::uint32_t child_count;
  std::uint16_t mode;
  std::uint16_t target_size;
  std::uint8_t name_size;
  std::uint8_t flags;
  std::uint16_t zero;
};
static_assert(sizeof(Raw) == 64);

Raw raw_node(std::string_view bytes, TreeNodeId id) {
  Raw out;
  std::memcpy(&out, bytes.data() + sizeof(Head) + std::size_t{id} * sizeof(Raw), sizeof out);
  return out;
}

std::string_view text_of(std::string_view bytes, std::uint32_t count) {
  return bytes.substr(sizeof(Head) + std::size_t{count} * sizeof(Raw));
}

bool is_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

/// What type, mode, target and flags say together.
bool is_consistent(const Raw& raw, std::string_view target) {
  const auto type = raw.mode & S_IFMT;
  if (raw.flags > kHole || raw.zero != 0 || raw.size > INT64_MAX) return false;
  if (raw.child_count > 0 ? type != S_IFDIR || raw.flags != 0 : raw.first_child != 0) return false;
  if (type == S_IFLNK)
    return raw.flags == 0 && raw.size == target.size() && !target.empty() &&
           target.size() <= kMaxPath && target.find('\0') == target.npos;
  if (!target.empty()) return false;
  return type == S_IFDIR || (type == S_IFREG && (raw.mode & (S_ISUID | S_ISGID)) == 0);
}

}  // namespace

// One pass, in the order of the numbers. A node's parent has a smaller number, so that what is read
// of it has been checked.
Result<TreeIndex> TreeIndex::of(std::string_view bytes) {
  const auto damaged = [](std::string_view why, std::uint32_t id) {
    return fail(Error::with_code(EBADMSG, {}, "damaged directory tree",
                                 fmt::format("entry {} {}", id, why)));
  };
  Head head{};
  if (bytes.size() >= sizeof head) std::memcpy(&head, bytes.data(), sizeof head);
  if (head.magic != kMagic || head.nodes == 0 || head.nodes > kMostTreeNodes ||
      bytes.size() - sizeof head != std::size_t{head.nodes} * sizeof(Raw) + head.text)
    return fail(Error::with_code(EBADMSG, {}, "damaged directory tree", "its head is invalid"));
  const auto text = text_of(bytes, head.nodes);
  std::vector<std::uint16_t> path_sizes(head.nodes);
  std::size_t used = 0;    // of the text
  std::uint32_t next = 1;  // the first node that is no child yet
  std::string_view before;
  for (std::uint32_t id = 0; id < head.nodes; ++id) {
    const Raw raw = raw_node(bytes, id);
    const std::size_t size = std::size_t{raw.name_size} + raw.target_size;
    if (raw.text != used || text.size() - used < size) return damaged("has no text", id);
    const auto name = text.substr(used, raw.name_size);
    const auto target = text.substr(used + raw.name_size, raw.target_size);
    used += size;
    if (!is_consistent(raw, target)) return damaged("is inconsistent", id);
    if (raw.child_count > 0) {
      if (raw.first_child != next || raw.child_count > head.nodes - next)
        return damaged("has other children", id);
      next += raw.child_count;
    }
    if (id == kTreeRoot) {
      if (!name.empty() || raw.parent != kTreeRoot || raw.same_as != kTreeRoot ||
          (raw.mode & S_IFMT) != S_IFDIR || raw.flags != 0)
        return damaged("is no root", id);
      continue;
    }
    if (raw.parent >= id || !is_name(name)) return damaged("has no parent or name", id);
    const Raw parent = raw_node(bytes, raw.parent);
    if (id < parent.first_child || id - parent.first_child >= parent.child_count)
      return damaged("has another parent", id);
    if (id != parent.first_child && name <= before) return damaged("is out of order", id);
    before = name;
    const std::size_t path_size = path_sizes[raw.parent] + (raw.parent ? 1U : 0U) + name.size();
    if (path_size > kMaxPath) return damaged("has too long a path", id);
    path_sizes[id] = static_cast<std::uint16_t>(path_size);
    if (raw.same_as == id) continue;
    const Raw same = raw_node(bytes, std::min(raw.same_as, id));
    if (raw.same_as > id || same.same_as != raw.same_as || (raw.mode & S_IFMT) == S_IFDIR ||
        raw.flags != 0 || same.flags != 0 || same.mode != raw.mode || same.size != raw.size)
      return damaged("is not the file that it links to", id);
  }
  if (next != head.nodes || used != text.size()) return damaged("is missing", next);
  TreeIndex out;
  out.bytes_ = bytes;
  out.count_ = head.nodes;
  return out;
}

TreeNode TreeIndex::node(TreeNodeId id) const {
  const Raw raw = raw_node(bytes_, id);
  const auto text = text_of(bytes_, count_).substr(raw.text);
  return {.name = text.substr(0, raw.name_size),
          .parent = raw.parent,
          .mode = raw.mode,
          .uid = raw.uid,
          .gid = raw.gid,
          .links = raw.links,
          .size = raw.size,
          .mtime_ns = raw.mtime_ns,
          .ctime_ns = raw.ctime_ns,
          .same_as = raw.same_as,
          .hole = raw.flags == kHole,
          .target = text.substr(raw.name_size, raw.target_size),
          .first_child = raw.first_child,
          .child_count = raw.child_count};
}

std::optional<TreeNodeId> TreeIndex::find(TreeNodeId directory, std::string_view name) const {
  const Raw raw = raw_node(bytes_, directory);
  const auto text = text_of(bytes_, count_);
  TreeNodeId low = raw.first_child;
  TreeNodeId high = low + raw.child_count;
  while (low < high) {
    const TreeNodeId middle = low + (high - low) / 2;
    const Raw child = raw_node(bytes_, middle);
    const int order = text.substr(child.text, child.name_size).compare(name);
    if (order == 0) return middle;
    if (order < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return std::nullopt;
}

std::optional<TreeNodeId> TreeIndex::find_path(std::string_view path) const {
  if (path.empty()) return kTreeRoot;
  for (TreeNodeId at = kTreeRoot;;) {
    const auto end = path.find('/');
    const auto found = find(at, path.substr(0, end));
    if (!found || end == path.npos) return found;
    at = *found;
    path.remove_prefix(end + 1);
  }
}

std::string TreeIndex::path(TreeNodeId id) const {
  std::vector<std::string_view> names;
  for (; id != kTreeRoot; id = node(id).parent) names.push_back(node(id).name);
  std::reverse(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, "/"));
}

Result<std::string> TreeIndexWriter::encode(Entry root) {
  std::vector<std::pair<Entry*, TreeNodeId>> order{{&root, kTreeRoot}};  // with its parent
  std::vector<Raw> nodes;
  std::string text;
  std::map<std::pair<std::uint64_t, std::uint64_t>, TreeNodeId> linked;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const auto [entry, parent] = order[at];
    const auto id = static_cast<TreeNodeId>(at);
    if (entry->name.size() > kMaxName || entry->target.size() > kMaxPath)
      return fail_errno(entry->name, "too long for a map", EINVAL);
    auto& children = entry->children;
    std::ranges::sort(children, {}, &Entry::name);
    Raw raw{};
    raw.text = static_cast<std::uint32_t>(text.size());
    raw.parent = parent;
    raw.first_child = children.empty() ? 0 : static_cast<std::uint32_t>(order.size());
    raw.child_count = static_cast<std::uint32_t>(children.size());
    raw.target_size = static_cast<std::uint16_t>(entry->target.size());
    raw.name_size = static_cast<std::uint8_t>(entry->name.size());
    raw.flags = entry->hole ? kHole : 0;
    raw.same_as = id;
    if (entry->links > 1 && !S_ISDIR(entry->mode) && !entry->hole)
      raw.same_as = linked.try_emplace({entry->dev, entry->ino}, id).first->second;
    // A file has one set of attributes, also when it changed between two of its names.
    const Entry& of = *order[raw.same_as].first;
    raw.size = of.size;
    raw.mtime_ns = of.mtime_ns;
    raw.ctime_ns = of.ctime_ns;
    raw.uid = of.uid;
    raw.gid = of.gid;
    raw.links = of.links;
    raw.mode = of.mode;
    nodes.push_back(raw);
    text.append(entry->name).append(entry->target);
    for (Entry& child : children) order.emplace_back(&child, id);
    if (order.size() > kMostTreeNodes || text.size() > kMaxTreeText)
      return fail_errno("", "the tree is too large for a map", EFBIG);
  }
  const Head head{kMagic, static_cast<std::uint32_t>(nodes.size()),
                  static_cast<std::uint32_t>(text.size())};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.append(reinterpret_cast<const char*>(nodes.data()), nodes.size() * sizeof(Raw));
  bytes += text;
  if (const auto good = TreeIndex::of(bytes); !good)
    return fail_errno("", good.error().message(), EINVAL);
  return bytes;
}

}  // namespace heddle
