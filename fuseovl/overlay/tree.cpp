// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/tree.hpp"

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
  TreeBuilder(const MapContent& content, const MapDirectories& maps)
      : content_(content), maps_(maps) {
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
        if (view.name == kOwnDirectory || view.name == kMapsDirectory)
          return fail_name(view.name, "the name is heddle's own");
        TRY(add_view(view, view.name + "/"));
      }
      if (single) TRY(add_view(view, ""));
      if (!map_names_.empty()) TRY(add_view(view, map_names_ + (single ? "" : view.name + "/")));
    }
    add_own_files();
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
                                                   : next_++;
      places[path] = directories.size();
      directories.push_back({path, ino, Tree::kRoot, std::move(entries), 2});
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

  const MapContent& content_;
  const MapDirectories& maps_;
  /// By path with a trailing slash (the root's is empty), so that their order is that of paths.
  std::map<std::string, Entries> directories_;
  std::string map_names_;  ///< the directory of the map's names for guided programs; empty: none
  InodeNumber next_ = 0;
  Tree tree_;
};

Result<Tree> Tree::build(const MapContent& content, const MapDirectories& maps) {
  return TreeBuilder(content, maps).build();
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

std::optional<NodeKind> Tree::kind(InodeNumber ino) const {
  const Node* node = find(ino);
  return node ? std::optional(node->kind) : std::nullopt;
}

InodeNumber Tree::lookup(InodeNumber parent, std::string_view name) const {
  const auto list = entries(parent);
  const auto found = std::ranges::lower_bound(list, name, {}, &TreeEntry::name);
  return found != list.end() && found->name == name ? found->ino : 0;
}

std::span<const TreeEntry> Tree::entries(InodeNumber ino) const {
  const Directory* found = directory(ino);
  return found ? std::span<const TreeEntry>(found->entries) : std::span<const TreeEntry>();
}

InodeNumber Tree::parent(InodeNumber ino) const {
  const Directory* found = directory(ino);
  return found ? found->parent : kRoot;
}

std::uint32_t Tree::link_count(InodeNumber ino) const {
  if (const Directory* found = directory(ino)) return found->links;
  if (kind(ino) == NodeKind::object) return objects_[object(ino)].links;
  return 1;
}

}  // namespace heddle
