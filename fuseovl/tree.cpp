// SPDX-License-Identifier: MIT
#include "fuseovl/tree.hpp"

#include <algorithm>
#include <map>

#include "base/escape.hpp"

namespace heddle {
namespace {

constexpr std::size_t kNameMax = 255;  // what statfs promises; the kernel's FUSE_NAME_MAX is 1024
constexpr std::string_view kOwnName = ".heddle";

bool is_usable_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameMax && name != "." && name != ".." &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

/// Collects names into folders first; inode numbers are dealt out when every folder is known.
class TreeBuilder {
 public:
  explicit TreeBuilder(const MapContent& content) : content_(content) {
    tree_.object_links_.assign(content.objects.size(), 0);
  }

  Result<Tree> build() {
    const bool single = content_.views.size() == 1;
    for (const auto& view : content_.views) {
      // With one view its names stand at the root, where the index sends programs: a file of the
      // view's own name then wins over the folder.
      const bool hidden = single && has_name(view, view.name);
      if (!hidden) {
        if (!is_usable_name(view.name) || view.name.find('/') != std::string::npos)
          return fail_name(view.name, "a view cannot have this name");
        if (view.name == kOwnName) return fail_name(view.name, "the name is heddle's own");
        if (auto added = add_view(view, view.name + "/"); !added) return fail(added.error());
      }
      if (!single) continue;
      if (auto added = add_view(view, ""); !added) return fail(added.error());
    }
    folders_[""];
    folders_[std::string(kOwnName) + "/"];
    return number();
  }

 private:
  // Every folder by its path with a trailing slash ("" is the root), so that the map's order is the
  // order of paths; a folder's files by name.
  using Files = std::vector<std::pair<std::string_view, ObjectId>>;

  static bool has_name(const MapView& view, std::string_view name) {
    return std::any_of(view.names.begin(), view.names.end(), [&](const auto& entry) {
      return entry.first == name || entry.first.starts_with(std::string(name) + "/");
    });
  }

  static tl::unexpected<Error> fail_name(std::string_view name, std::string_view what) {
    return fail(Error(name, "cannot stand in a mount", what));
  }

  Result<void> add_view(const MapView& view, const std::string& prefix) {
    Files& flat = folders_[prefix];
    flat.reserve(flat.size() + view.names.size());
    for (const auto& [name, object] : view.names) {
      if (object >= content_.objects.size()) return fail_name(name, "its object is not in the map");
      std::string_view rest = name;
      std::string folder = prefix;
      for (auto slash = rest.find('/'); slash != rest.npos; slash = rest.find('/')) {
        if (!is_usable_name(rest.substr(0, slash))) return fail_name(name, "not a usable path");
        folder.append(rest.substr(0, slash + 1));
        rest.remove_prefix(slash + 1);
        folders_[folder];
      }
      if (!is_usable_name(rest)) return fail_name(name, "not a usable name");
      (folder == prefix ? flat : folders_[folder]).emplace_back(rest, object);
    }
    return {};
  }

  Result<Tree> number() {
    std::map<std::string_view, InodeNumber> inodes = {{"", Tree::kRoot},
                                                      {".heddle/", Tree::kOwnDirectory}};
    const auto first = Tree::kFirstObject + content_.objects.size();
    auto& directories = tree_.directories_;
    directories.resize(2);
    directories[1].parent = Tree::kRoot;
    // Views into `names_` must stay valid: no reallocation that moves short strings.
    tree_.names_.reserve(folders_.size() + total_files() + content_.generated.size());
    // A parent's path sorts before its children's, so it has its number already.
    for (const auto& [path, files] : folders_) {
      if (inodes.contains(path)) continue;
      const InodeNumber ino = first + directories.size() - 2;
      inodes[path] = ino;
      directories.emplace_back();
      directories.back().parent = inodes.at(parent_of(path));
    }
    for (const auto& [path, files] : folders_) {
      const InodeNumber ino = inodes.at(path);
      Tree::Directory& directory = at(ino);
      for (const auto& [name, object] : files) {
        directory.entries.push_back({keep(name), tree_.inode(object)});
        ++tree_.object_links_[object];
      }
      if (ino == Tree::kRoot) continue;
      Tree::Directory& above = at(directory.parent);
      above.entries.push_back({keep(name_of(path)), ino});
      ++above.links;
    }
    at(Tree::kOwnDirectory)
        .entries.insert(at(Tree::kOwnDirectory).entries.end(),
                        {{"index", Tree::kIndex}, {"map", Tree::kMap}, {"stats", Tree::kStats}});
    tree_.generated_count_ = content_.generated.size();
    for (std::size_t i = 0; i < content_.generated.size(); ++i)
      at(Tree::kOwnDirectory)
          .entries.push_back({keep(content_.generated[i].first), Tree::kFirstGenerated + i});
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
    return std::move(tree_);
  }

  Tree::Directory& at(InodeNumber ino) {
    return ino <= Tree::kOwnDirectory
               ? tree_.directories_[ino - 1]
               : tree_.directories_[ino - Tree::kFirstObject - content_.objects.size() + 2];
  }
  std::size_t total_files() const {
    std::size_t n = 0;
    for (const auto& [path, files] : folders_) n += files.size();
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
  std::map<std::string, Files, std::less<>> folders_;
  Tree tree_;
};

Result<Tree> Tree::build(const MapContent& content) { return TreeBuilder(content).build(); }

const Tree::Directory* Tree::directory(InodeNumber ino) const {
  if (ino == kRoot || ino == kOwnDirectory) return &directories_[ino - 1];
  const InodeNumber first = kFirstObject + object_links_.size();
  if (ino < first || ino - first + 2 >= directories_.size()) return nullptr;
  return &directories_[ino - first + 2];
}

std::optional<NodeKind> Tree::kind(InodeNumber ino) const {
  switch (ino) {
    case kStats:
      return NodeKind::stats;
    case kIndex:
      return NodeKind::index;
    case kMap:
      return NodeKind::map;
    default:
      break;
  }
  if (ino >= kFirstGenerated && ino - kFirstGenerated < generated_count_)
    return NodeKind::generated;
  if (ino >= kFirstObject && ino - kFirstObject < object_links_.size()) return NodeKind::object;
  if (directory(ino)) return NodeKind::directory;
  return std::nullopt;
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
  if (kind(ino) == NodeKind::object) return object_links_[object(ino)];
  return 1;
}

}  // namespace heddle
