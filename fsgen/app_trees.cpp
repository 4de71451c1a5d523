// SPDX-License-Identifier: MIT
#include "fsgen/app_trees.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/coder.hpp"
#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/mount_calls.hpp"
#include "base/mounts.hpp"
#include "base/paths.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "fsgen/slow_files.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/mpi/find_mpi.hpp"
#include "resolver/tree/read_trees.hpp"

namespace heddle {
namespace {

/// An automount is copied as it is.
Result<Fd> copy_of(const std::string& path, bool recursive) {
  return copy_mount(AT_FDCWD, path,
                    AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | (recursive ? kRecursive : 0U));
}

Result<void> attach(const Fd& copy, const std::string& path) {
  constexpr unsigned kFromEmptyPath = 4;  // MOVE_MOUNT_F_EMPTY_PATH
  if (::syscall(SYS_move_mount, copy.get(), "", AT_FDCWD, path.c_str(), kFromEmptyPath) == 0)
    return {};
  const int error = errno;
  struct stat status {};
  const bool is_other = ::lstat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode);
  return fail(Error::from_errno(path, "cannot attach a mount", error,
                                error == ENOENT ? "mkdir -p " + path
                                : is_other      ? "it must be a directory, as in the map"
                                                : ""));
}

/// The holes of `tree`, and what is mounted in it on this node: files of another file system, which
/// the map does not have. None lies below another one.
Result<std::vector<std::string>> paths_that_show_through(const TreePlace& tree) {
  std::vector<std::string> out;
  for (const auto& hole : tree.holes) out.push_back(tree.path + "/" + hole);
  for (const auto& mount : TRY(list_mounts()))
    if (is_below(mount.point, tree.path) && std::ranges::none_of(out, [&](const auto& path) {
          return is_at_or_below(mount.point, path);
        }))
      out.push_back(mount.point);
  return out;
}

Result<void> cover(const std::string& served, const TreePlace& tree) {
  std::vector<std::pair<std::string, Fd>> originals;
  for (const auto& path : TRY(paths_that_show_through(tree))) {
    auto original = copy_of(path, true);
    if (!original && original.error().code() == ENOENT) continue;  // removed meanwhile
    if (!original) return fail(std::move(original.error()));
    originals.emplace_back(path, std::move(*original));
  }
  const Fd copy = TRY(copy_of(served, false));
  TRY(attach(copy, tree.path));
  for (const auto& [path, original] : originals)
    if (auto attached = attach(original, path); !attached)
      return attached.error().code() == ENOENT
                 ? fail(path, "a mount point that the map does not have", "",
                        "unmount it, or build the map again")
                 : attached;
  return {};
}

}  // namespace

std::string TreeCandidates::identity() const {
  auto trees = named;
  for (const auto& tree : found) trees.push_back(tree.path);
  if (trees.empty()) return {};
  auto out = trees;
  for (const auto& tree : found) out.push_back(tree.left_out);
  for (const auto& path : never)
    if (std::ranges::any_of(trees, [&](const std::string& tree) {
          return tree == path || is_below(tree, path) || is_below(path, tree);
        }))
      out.push_back(path);
  Encoder coder;
  coder(out);
  return hash_bytes(coder.take()).hex();
}

std::vector<std::string> TreeCandidates::possible() const {
  std::vector<std::string> out;
  for (const auto& tree : found)
    if (std::ranges::none_of(never, [&](const std::string& path) {
          return path == tree.path || is_below(path, tree.path);
        }))
      out.push_back(tree.path);
  return out;
}

TreeCandidates find_tree_candidates(const GenOptions& options) {
  TreeCandidates out;
  if (!options.may_have_trees()) return out;
  std::error_code error;
  const auto directory = std::filesystem::current_path(error).string();
  out.never.push_back(directory);
  if (options.python != "off") {
    const auto environment = Environment().entries();
    auto python = find_python_trees(options.command, environment, directory);
    std::ranges::move(python.in_use, std::back_inserter(out.never));
    if (options.python != "auto")
      python = find_python_trees({options.python}, environment, directory);
    if (options.python != "auto" && python.interpreter.empty()) {
      out.notes.push_back("--python " + options.python + ": is no Python");
      static bool is_said = false;
      if (options.first_rank && !std::exchange(is_said, true)) warn(out.notes.back());
    }
    out.found = std::move(python.trees);
  }
  if (out.found.empty() && options.trees.empty()) return out;
  for (const auto& path : options.trees) out.named.push_back(canonical(path));
  // The mount is made below it.
  const char* temporary = std::getenv("TMPDIR");
  out.never.emplace_back(temporary && *temporary ? temporary : "/tmp");
  for (auto& path : out.never) path = canonical(path);
  return out;
}

AppTrees read_app_trees(const GenOptions& options, const TreeCandidates& candidates,
                        const std::vector<MapTree>* earlier) {
  AppTrees out;
  out.notes = candidates.notes;
  if (candidates.found.empty() && candidates.named.empty()) return out;
  TreeRequest request;
  for (const auto& path : options.trees) {
    if (const Fd directory(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)); directory) {
      request.named.push_back(path);
      continue;
    }
    const auto error = Error::from_errno(path, "cannot open", errno);
    out.notes.push_back("no tree: " + error.message());
    if (options.first_rank) warn(Error("", error.message(), "continuing without this tree"));
  }
  request.found = candidates.found;
  request.never = candidates.never;
  request.exclude = options.tree_excludes;
  request.earlier = earlier;
  SlowFiles files(options.slow, options.fast);
  request.is_slow = [&](const std::string& path) {
    const auto& speed = files.speed_of_real(path);
    if (!speed.slow &&
        std::ranges::find(candidates.found, path, &FoundTree::path) != candidates.found.end())
      out.notes.push_back(path + ": no tree: fast: " + speed.why);
    return speed.slow;
  };
  auto read = read_trees(request);
  if (!read) {
    const Error& error = read.error();
    out.notes.push_back("no trees: " + error.message());
    if (!options.trees.empty() && options.first_rank)
      warn(Error("", error.message(), "continuing without trees", error.hint()));
    return out;
  }
  out.trees = std::move(read->trees);
  out.notes.insert(out.notes.end(), read->notes.begin(), read->notes.end());
  return out;
}

bool names_are_known(const std::vector<MapTree>& trees) {
  constexpr std::size_t kLooks = 16;
  constexpr auto kAsked = std::chrono::microseconds(25);  // half of what counts as slow
  // Files too: NFS keeps their attributes for a shorter time.
  std::vector<std::pair<std::size_t, TreeNodeId>> names;
  std::vector<TreeIndex> indices;
  for (std::size_t t = 0; t < trees.size(); ++t) {
    auto index = TreeIndex::of(trees[t].index);
    if (!index) return false;
    for (TreeNodeId id = 0; id < index->size(); ++id)
      if (const auto node = index->node(id); !node.hole && !S_ISLNK(node.mode))
        names.emplace_back(t, id);
    indices.push_back(std::move(*index));
  }
  unsigned slow = 0;  // a busy CPU makes one so
  for (std::size_t i = 0; i < kLooks && !names.empty(); ++i) {
    struct stat st {};
    const auto& [tree, id] = names[i * names.size() / kLooks];
    const auto path = trees[tree].path + "/" + indices[tree].path(id);
    const auto begin = std::chrono::steady_clock::now();
    (void)::lstat(path.c_str(), &st);
    if (std::chrono::steady_clock::now() - begin > kAsked && ++slow > 2) return false;
  }
  return !names.empty();
}

std::optional<std::string> executable_in(const ShippedTrees& trees, const std::string& path) {
  constexpr int kMostLinks = 40;  // MAXSYMLINKS
  std::error_code error;
  auto at = std::filesystem::absolute(path, error).lexically_normal().string();
  for (int links = 0; links < kMostLinks; ++links) {
    const auto tree = std::ranges::find_if(trees, [&](const auto& candidate) {
      return at.starts_with(std::string(candidate.first) + "/");
    });
    if (tree == trees.end()) {
      const auto real = std::filesystem::canonical(at, error).string();
      return !error && ::access(real.c_str(), X_OK) == 0 ? std::optional(real) : std::nullopt;
    }
    const TreeIndex& index = tree->second;
    std::string seen(tree->first);
    std::string_view rest = std::string_view(at).substr(seen.size() + 1);
    auto node = index.node(kTreeRoot);
    for (TreeNodeId id = kTreeRoot; !rest.empty() && !S_ISLNK(node.mode);) {
      const auto end = std::min(rest.find('/'), rest.size());
      const auto child = index.find(id, rest.substr(0, end));
      if (!child) return std::nullopt;
      id = *child;
      node = index.node(id);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (!S_ISLNK(node.mode)) seen += "/" + std::string(node.name);
    }
    if (!S_ISLNK(node.mode))
      return S_ISREG(node.mode) && (node.mode & 0111U) ? std::optional(seen) : std::nullopt;
    const std::filesystem::path target = std::filesystem::path(seen) / node.target / rest;
    at = target.lexically_normal().string();
    if (at.ends_with('/')) at.pop_back();  // `rest` was empty
  }
  return std::nullopt;
}

std::optional<std::string> find_in_trees(const std::string& map, const std::string& name,
                                         const Result<std::string>& found) {
  std::vector<std::string> candidates;
  if (name.find('/') != std::string::npos) {
    if (!found) candidates.push_back(name);
  } else {
    std::istringstream directories(Environment().get("PATH").value_or(""));
    for (std::string directory; std::getline(directories, directory, ':');) {
      const auto candidate = directory + "/" + name;
      if (found && candidate == *found) break;
      // One that is there has been searched.
      if (::access(directory.c_str(), F_OK) != 0) candidates.push_back(candidate);
    }
  }
  if (candidates.empty()) return std::nullopt;
  const auto reader = MapReader::open(map);
  const auto trees = reader ? reader->trees() : Result<ShippedTrees>();
  if (!trees || trees->empty()) return std::nullopt;
  const auto is_there = [&](const auto& path) { return executable_in(*trees, path).has_value(); };
  const auto first = std::ranges::find_if(candidates, is_there);
  return first == candidates.end() ? std::nullopt : std::optional(*first);
}

std::vector<TreePlace> places_of(const std::vector<MapTree>& trees) {
  std::vector<TreePlace> out;
  for (const auto& tree : trees) {
    auto& place = out.emplace_back();
    place.path = tree.path;
    const auto index = TreeIndex::of(tree.index);
    if (!index) continue;  // the map's reader has checked it
    place.entries = index->size();
    for (TreeNodeId id = 0; id < index->size(); ++id)
      if (index->node(id).hole) place.holes.push_back(index->path(id));
  }
  return out;
}

Result<void> cover_with_trees(const std::string& mount_point, const std::vector<TreePlace>& trees) {
  for (std::size_t i = 0; i < trees.size(); ++i) {
    const auto& tree = trees[i];
    auto covered = mount_point.starts_with(tree.path + "/")
                       ? Result<void>(fail(mount_point, "lies in the tree", "", "set TMPDIR"))
                       : cover(fmt::format("{}/.t/{}", mount_point, i), tree);
    if (!covered)
      return fail(Error(tree.path, "cannot be served over its own path", covered.error().message(),
                        covered.error().hint())
                      .because(Cause::tree));
  }
  return {};
}

}  // namespace heddle
