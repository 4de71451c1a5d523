// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/tree.hpp"

#include <algorithm>
#include <map>

#include "base/escape.hpp"
#include "base/try.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

constexpr std::size_t kNameMax = 255;  // what statfs promises; the kernel's FUSE_NAME_MAX is 1024

bool is_usable_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameMax && name != "." && name != ".." &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

/// Collects names into directories first; inode numbers are dealt out when every directory is
/// known.
class TreeBuilder {
 public:
  TreeBuilder(const MapContent& content, const MapDirectories& maps)
      : content_(content), maps_(maps) {
    next_ = Tree::kFirstGenerated + content.generated.size();
    tree_.objects_.resize(content.objects.size());
    for (auto& object : tree_.objects_) object.ino = next_++;
  }

  Result<Tree> build() {
    const bool single = content_.views.size() == 1;
    for (const auto& view : content_.views) {
      // With one view its names stand at the root, where the index sends programs: a file of the
      // view's own name then wins over the directory.
      const bool hidden = single && has_name(view, view.name);
      if (!hidden) {
        if (!is_usable_name(view.name) || view.name.find('/') != std::string::npos)
          return fail_name(view.name, "a view cannot have this name");
        if (view.name == kOwnDirectory || view.name == kMapsDirectory)
          return fail_name(view.name, "the name is heddle's own");
        TRY(add_view(view, view.name + "/"));
      }
      if (single) TRY(add_view(view, ""));
    }
    directories_[""];
    directories_[std::string(kOwnPrefix)];
    TRY(add_maps());
    return number();
  }

 private:
  // Every directory by its path with a trailing slash ("" is the root), so that the map's order is
  // the order of paths; a directory's files by name.
  using Files = std::vector<std::pair<std::string_view, ObjectId>>;

  static bool has_name(const MapView& view, std::string_view name) {
    return std::any_of(view.names.begin(), view.names.end(), [&](const auto& entry) {
      return entry.first == name || entry.first.starts_with(std::string(name) + "/");
    });
  }

  static tl::unexpected<Error> fail_name(std::string_view name, std::string_view what) {
    return fail(Error(name, "cannot stand in a mount", what));
  }

  Result<void> add_maps() {
    if (maps_.id.empty()) return {};
    const auto directory = std::string(kMapsDirectory) + "/";
    add_link(directory, maps_.id, "..");
    for (const auto& map : maps_.previous)
      for (const auto& [name, target] : map.names) {
        std::string_view rest = name;
        auto at = directory + map.id + "/";
        TRY(enter_directories(at, rest));
        add_link(at, rest, target);
      }
    return {};
  }

  void add_link(const std::string& directory, std::string_view name, std::string target) {
    directories_[directory];
    links_[directory].emplace_back(name, tree_.links_.size());
    tree_.links_.push_back({next_++, std::move(target)});
  }

  /// Makes the directories of `name` below `directory`, which becomes the last of them, and `name`
  /// what is left of it.
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
    Files& flat = directories_[prefix];
    flat.reserve(flat.size() + view.names.size());
    for (const auto& [name, object] : view.names) {
      if (object >= content_.objects.size()) return fail_name(name, "its object is not in the map");
      std::string_view rest = name;
      std::string directory = prefix;
      TRY(enter_directories(directory, rest));
      (directory == prefix ? flat : directories_[directory]).emplace_back(rest, object);
    }
    return {};
  }

  Result<Tree> number() {
    auto& directories = tree_.directories_;
    std::map<std::string_view, std::size_t> places;
    directories.reserve(directories_.size());
    // A parent's path sorts before its children's, so it has its number already.
    for (const auto& [path, files] : directories_) {
      places[path] = directories.size();
      directories.push_back({path, number_of(path), Tree::kRoot, {}, 2});
      if (!path.empty()) directories.back().parent = directories[places.at(parent_of(path))].ino;
    }
    // Views into `names_` must stay valid: no reallocation that moves short strings.
    tree_.names_.reserve(directories_.size() + total_files() + tree_.links_.size() +
                         content_.generated.size() + 1);
    for (const auto& [path, files] : directories_) {
      auto& directory = directories[places.at(path)];
      for (const auto& [name, object] : files) {
        directory.entries.push_back({keep(name), tree_.inode(object)});
        ++tree_.objects_[object].links;
      }
      for (const auto& [name, link] : links_[path])
        directory.entries.push_back({keep(name), tree_.links_[link].ino});
      if (path.empty()) continue;
      auto& above = directories[places.at(parent_of(path))];
      above.entries.push_back({keep(name_of(path)), directory.ino});
      ++above.links;
    }
    tree_.generated_count_ = content_.generated.size();
    auto& own = directories[places.at(kOwnPrefix)].entries;
    own.insert(own.end(), {{"index", Tree::kIndex}, {"map", Tree::kMap}});
    for (std::size_t i = 0; i < content_.generated.size(); ++i) {
      const std::string_view name = content_.generated[i].first;
      const bool is_own = name.starts_with(kOwnPrefix);
      auto& root = directories[places.at("")].entries;
      (is_own ? own : root)
          .push_back(
              {keep(name.substr(is_own ? kOwnPrefix.size() : 0)), Tree::kFirstGenerated + i});
      if (name == ".heddle/ld.so.cache") root.push_back({kShortCache, Tree::kFirstGenerated + i});
    }
    for (auto& directory : directories) {
      auto& entries = directory.entries;
      std::sort(entries.begin(), entries.end(),
                [](const TreeEntry& a, const TreeEntry& b) { return a.name < b.name; });
      const auto twice = std::adjacent_find(
          entries.begin(), entries.end(),
          [](const TreeEntry& a, const TreeEntry& b) { return a.name == b.name; });
      if (twice != entries.end()) return fail_name(twice->name, "two files have this name");
      entries.shrink_to_fit();
    }
    tree_.make_nodes();
    return std::move(tree_);
  }

  InodeNumber number_of(const std::string& path) {
    if (path.empty()) return Tree::kRoot;
    if (path == kOwnPrefix) return Tree::kOwnDirectory;
    return next_++;
  }
  std::size_t total_files() const {
    std::size_t n = 0;
    for (const auto& [path, files] : directories_) n += files.size();
    return n;
  }
  std::string_view keep(std::string_view name) { return tree_.names_.emplace_back(name); }
  static std::string_view parent_of(std::string_view path) {
    const auto slash = path.substr(0, path.size() - 1).rfind('/');
    return slash == path.npos ? std::string_view() : path.substr(0, slash + 1);
  }
  static std::string_view name_of(std::string_view path) {
    const auto above = parent_of(path);
    return path.substr(above.size(), path.size() - above.size() - 1);
  }

  const MapContent& content_;
  const MapDirectories& maps_;
  std::map<std::string, Files, std::less<>> directories_;
  std::map<std::string, std::vector<std::pair<std::string_view, std::size_t>>> links_;
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
  std::sort(nodes_.begin(), nodes_.end(),
            [](const Node& a, const Node& b) { return a.ino < b.ino; });
}

const Tree::Node* Tree::find(InodeNumber ino) const {
  const auto found = std::lower_bound(nodes_.begin(), nodes_.end(), ino,
                                      [](const Node& node, InodeNumber n) { return node.ino < n; });
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
  const auto found = std::lower_bound(
      list.begin(), list.end(), name,
      [](const TreeEntry& entry, std::string_view key) { return entry.name < key; });
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
