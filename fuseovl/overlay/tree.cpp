// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/tree.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "base/escape.hpp"
#include "base/try.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

constexpr std::size_t kNameMax = 255;  // as statfs says; the kernel's FUSE_NAME_MAX is 1024

bool is_usable_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameMax && name != "." && name != ".." &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

/// Collects names into directories, then numbers the directories.
class TreeBuilder {
 public:
  TreeBuilder(const MapContent& content, const MapDirectories& maps, std::vector<TreeIndex> trees)
      : content_(content), maps_(maps) {
    tree_.trees_ = std::move(trees);
    next_ = Tree::kFirstGenerated + content.generated.size();
    tree_.generated_count_ = content.generated.size();
    tree_.objects_.resize(content.objects.size());
    for (auto& object : tree_.objects_) object.ino = next_++;
  }

  Result<Tree> build() {
    const bool single = content_.views.size() == 1;
    if (!maps_.id.empty()) {
      map_names_ = std::string(kMapsDirectory) + "/" + maps_.id + "/";
      directories_[std::string(kMapsDirectory) + "/"];
      directories_[map_names_];
    }
    for (const auto& view : content_.views) {
      // A file of the only view, which is in the root too, hides the view's directory.
      const bool hidden = single && has_name(view, view.name);
      if (!hidden) {
        if (!is_usable_name(view.name) || view.name.find('/') != std::string::npos)
          return fail_name(view.name, "a view cannot have this name");
        if (view.name == kOwnDirectory || view.name == kMapsDirectory ||
            view.name == kTreesDirectory)
          return fail_name(view.name, "the name is heddle's own");
        TRY(add_view(view, view.name + "/"));
      }
      if (single) TRY(add_view(view, ""));
      if (!map_names_.empty()) TRY(add_view(view, map_names_ + (single ? "" : view.name + "/")));
    }
    add_own_files();
    add_trees();
    TRY(add_maps());
    return number();
  }

 private:
  using Entries = std::vector<TreeEntry>;

  static bool has_name(const MapView& view, std::string_view name) {
    return std::any_of(view.names.begin(), view.names.end(), [&](const auto& entry) {
      return entry.first == name || entry.first.starts_with(std::string(name) + "/");
    });
  }

  static tl::unexpected<Error> fail_name(std::string_view name, std::string_view what) {
    return fail(Error(name, "cannot be served", what));
  }

  void add(Entries& directory, std::string_view name, InodeNumber ino) {
    directory.push_back({tree_.names_.emplace_back(name), ino});
  }

  void add_own_files() {
    auto& root = directories_[""];
    auto& own = directories_[std::string(kOwnPrefix)];
    add(own, "index", Tree::kIndex);
    add(own, "map", Tree::kMap);
    InodeNumber ino = Tree::kFirstGenerated;
    for (const auto& [name, bytes] : content_.generated) {
      if (name.starts_with(kOwnPrefix))
        add(own, name.substr(kOwnPrefix.size()), ino);
      else
        add(root, name, ino);
      if (name == ".heddle/ld.so.cache") add(root, kShortCache, ino);
      ++ino;
    }
  }

  void add_trees() {
    if (tree_.trees_.empty()) return;
    auto& directory = directories_[kTreesPath];
    for (std::size_t i = 0; i < tree_.trees_.size(); ++i)
      if (tree_.trees_[i].size() > 0)
        add(directory, std::to_string(i), Tree::inode(Tree::TreePlace{i, kTreeRoot}));
  }

  Result<void> add_maps() {
    const auto directory = std::string(kMapsDirectory) + "/";
    for (const auto& map : maps_.previous)
      for (const auto& [name, target] : map.names) {
        std::string_view rest = name;
        auto at = directory + map.id + "/";
        directories_[at];
        TRY(enter_directories(at, rest));
        add_link(at, rest, target);
      }
    return {};
  }

  void add_link(const std::string& directory, std::string_view name, std::string target) {
    add(directories_[directory], name, next_);
    tree_.links_.push_back({next_++, std::move(target)});
  }

  /// Makes the directories of `name` below `directory`, which becomes the last of them; `name`
  /// becomes its last part.
  Result<void> enter_directories(std::string& directory, std::string_view& name) {
    const auto whole = name;
    for (auto slash = name.find('/'); slash != name.npos; slash = name.find('/')) {
      if (!is_usable_name(name.substr(0, slash))) return fail_name(whole, "not a usable path");
      directory.append(name.substr(0, slash + 1));
      name.remove_prefix(slash + 1);
      directories_[directory];
    }
    if (!is_usable_name(name)) return fail_name(whole, "not a usable name");
    return {};
  }

  Result<void> add_view(const MapView& view, const std::string& prefix) {
    Entries& flat = directories_[prefix];
    flat.reserve(flat.size() + view.names.size());
    for (const auto& [name, object] : view.names) {
      if (object >= content_.objects.size()) return fail_name(name, "its object is not in the map");
      std::string_view rest = name;
      std::string directory = prefix;
      TRY(enter_directories(directory, rest));
      add(directory == prefix ? flat : directories_[directory], rest, tree_.inode(object));
      // Names for guided programs are not counted.
      if (map_names_.empty() || !prefix.starts_with(map_names_)) ++tree_.objects_[object].links;
    }
    return {};
  }

  Result<Tree> number() {
    auto& directories = tree_.directories_;
    std::map<std::string_view, std::size_t> places;
    directories.reserve(directories_.size());
    // A parent's path sorts before its children's.
    for (auto& [path, entries] : directories_) {
      const InodeNumber ino = path.empty()         ? Tree::kRoot
                              : path == kOwnPrefix ? Tree::kOwnDirectory
                              : path == map_names_ ? Tree::kMapNames
                              : path == kTreesPath ? Tree::kTrees
                                                   : next_++;
      places[path] = directories.size();
      const auto trees = ino == Tree::kTrees ? static_cast<std::uint32_t>(entries.size()) : 0;
      directories.push_back({path, ino, Tree::kRoot, std::move(entries), 2 + trees});
      if (path.empty()) continue;
      const auto slash = path.rfind('/', path.size() - 2);
      const auto begin = slash == path.npos ? 0 : slash + 1;
      auto& above = directories[places.at(std::string_view(path).substr(0, begin))];
      directories.back().parent = above.ino;
      add(above.entries, std::string_view(path).substr(begin, path.size() - begin - 1), ino);
      ++above.links;
    }
    for (auto& directory : directories) {
      auto& entries = directory.entries;
      std::ranges::sort(entries, {}, &TreeEntry::name);
      const auto twice = std::ranges::adjacent_find(entries, {}, &TreeEntry::name);
      if (twice != entries.end()) return fail_name(twice->name, "two files have this name");
      entries.shrink_to_fit();
    }
    tree_.make_nodes();
    return std::move(tree_);
  }

  static inline const std::string kTreesPath = std::string(kTreesDirectory) + "/";

  const MapContent& content_;
  const MapDirectories& maps_;
  /// By path with a trailing slash (the root's is empty), so that their order is that of paths.
  std::map<std::string, Entries> directories_;
  std::string map_names_;  ///< the directory of the map's names for guided programs; empty: none
  InodeNumber next_ = 0;
  Tree tree_;
};

Result<Tree> Tree::build(const MapContent& content, const MapDirectories& maps,
                         std::vector<TreeIndex> trees) {
  return TreeBuilder(content, maps, std::move(trees)).build();
}

void Tree::make_nodes() {
  nodes_.clear();
  const auto add = [this](InodeNumber ino, NodeKind kind, std::size_t index) {
    nodes_.push_back({ino, kind, static_cast<std::uint32_t>(index)});
  };
  for (std::size_t i = 0; kIndex + i < kFirstGenerated + generated_count_; ++i)
    add(kIndex + i, NodeKind::own, i);
  for (std::size_t i = 0; i < objects_.size(); ++i) add(objects_[i].ino, NodeKind::object, i);
  for (std::size_t i = 0; i < links_.size(); ++i) add(links_[i].ino, NodeKind::link, i);
  for (std::size_t i = 0; i < directories_.size(); ++i)
    add(directories_[i].ino, NodeKind::directory, i);
  std::ranges::sort(nodes_, {}, &Node::ino);
}

const Tree::Node* Tree::find(InodeNumber ino) const {
  const auto found = std::ranges::lower_bound(nodes_, ino, {}, &Node::ino);
  return found != nodes_.end() && found->ino == ino ? &*found : nullptr;
}

const Tree::Directory* Tree::directory(InodeNumber ino) const {
  const Node* node = find(ino);
  return node && node->kind == NodeKind::directory ? &directories_[node->index] : nullptr;
}

std::optional<Tree::TreePlace> Tree::tree_place(InodeNumber ino) const {
  const auto tree = (ino >> 32) - 1;  // of another inode: too large
  const auto node = (ino & UINT32_MAX) - 1;
  if (tree >= trees_.size() || node >= trees_[tree].size()) return std::nullopt;
  return TreePlace{static_cast<std::size_t>(tree), static_cast<TreeNodeId>(node)};
}

/// Hard links have one inode.
InodeNumber Tree::child(TreePlace place) const {
  return inode(TreePlace{place.tree, tree_node(place).same_as});
}

std::size_t Tree::tree_node_count() const {
  std::size_t out = 0;
  for (const auto& tree : trees_) out += tree.size();
  return out;
}

std::optional<NodeKind> Tree::kind(InodeNumber ino) const {
  if (const auto place = tree_place(ino)) {
    const auto type = tree_node(*place).mode & S_IFMT;
    return type == S_IFDIR   ? NodeKind::directory
           : type == S_IFLNK ? NodeKind::link
                             : NodeKind::tree_file;
  }
  const Node* node = find(ino);
  return node ? std::optional(node->kind) : std::nullopt;
}

std::string_view Tree::target(InodeNumber ino) const {
  const auto place = tree_place(ino);
  return place ? tree_node(*place).target : links_[find(ino)->index].target;
}

InodeNumber Tree::lookup(InodeNumber parent, std::string_view name) const {
  if (const auto place = tree_place(parent)) {
    const auto found = trees_[place->tree].find(place->node, name);
    return found ? child({place->tree, *found}) : 0;
  }
  const Directory* in = directory(parent);
  if (!in) return 0;
  const auto found = std::ranges::lower_bound(in->entries, name, {}, &TreeEntry::name);
  return found != in->entries.end() && found->name == name ? found->ino : 0;
}

std::optional<TreeEntry> Tree::entry(InodeNumber ino, std::size_t i) const {
  if (const auto place = tree_place(ino)) {
    const TreeNode node = tree_node(*place);
    if (i >= node.child_count) return std::nullopt;
    const TreePlace at{place->tree, node.first_child + static_cast<TreeNodeId>(i)};
    return TreeEntry{tree_node(at).name, child(at)};
  }
  const Directory* in = directory(ino);
  return in && i < in->entries.size() ? std::optional(in->entries[i]) : std::nullopt;
}

InodeNumber Tree::parent(InodeNumber ino) const {
  if (const auto place = tree_place(ino))
    return place->node == kTreeRoot ? kTrees
                                    : inode(TreePlace{place->tree, tree_node(*place).parent});
  const Directory* found = directory(ino);
  return found ? found->parent : kRoot;
}

std::uint32_t Tree::link_count(InodeNumber ino) const {
  if (const auto place = tree_place(ino)) return tree_node(*place).links;
  if (const Directory* found = directory(ino)) return found->links;
  if (kind(ino) == NodeKind::object) return objects_[object(ino)].links;
  return 1;
}

}  // namespace heddle
