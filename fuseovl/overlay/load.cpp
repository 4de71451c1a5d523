// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/load.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "fuseovl/files/file_work.hpp"
#include "fuseovl/files/map_signature.hpp"
#include "resolver/map/index_format.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle {
namespace {

void leave_out(MapContent& content, const Origins& origins) {
  const auto gone = [&](const auto& entry) { return !origins.files[entry.second].usable; };
  for (auto& view : content.views) std::erase_if(view.names, gone);
  for (auto& program : content.programs) std::erase_if(program.guided, gone);
  std::erase_if(content.paths, gone);
}

/// The tree that has an absolute path without `.` and `..` in it. `trees` are sorted by path, none
/// is within another.
const ServedTree* tree_of(const std::vector<ServedTree>& trees, std::string_view path) {
  while (path.size() > 1) {
    path = path.substr(0, path.rfind('/'));
    const auto at = std::ranges::lower_bound(trees, path, {}, &ServedTree::path);
    if (at != trees.end() && at->path == path) return &*at;
  }
  return nullptr;
}

/// The file that an absolute path leads to, through links in and between trees.
std::optional<Tree::TreePlace> find_in_trees(const std::vector<ServedTree>& trees,
                                             std::filesystem::path path) {
  constexpr int kMostLinks = 40;
  for (int links = 0; links < kMostLinks; ++links) {
    const auto text = path.lexically_normal().native();
    const ServedTree* tree = tree_of(trees, text);
    if (!tree || !tree->is_served) return std::nullopt;
    TreeNodeId at = kTreeRoot;
    bool is_link = false;
    for (const auto& name : std::filesystem::path(text.substr(tree->path.size() + 1))) {
      if (is_link) {
        path /= name;
        continue;
      }
      const auto child = tree->index.find(at, name.native());
      if (!child) return std::nullopt;
      const TreeNode node = tree->index.node(*child);
      is_link = S_ISLNK(node.mode);
      if (is_link)
        path = std::filesystem::path(tree->path) / tree->index.path(at) / std::string(node.target);
      at = *child;
    }
    if (!is_link) return Tree::TreePlace{static_cast<std::size_t>(tree - trees.data()), at};
  }
  return std::nullopt;
}

/// The stamp that programs see of an object within a tree, which is mounted over its own path.
std::optional<FileStamp> stamp_in_trees(const std::vector<ServedTree>& trees,
                                        const std::string& path) {
  const auto found = find_in_trees(trees, path);
  if (!found) return std::nullopt;
  const TreeNode node = trees[found->tree].index.node(found->node);
  if (!S_ISREG(node.mode)) return std::nullopt;
  return FileStamp{
      {index_format::kThisMount, Tree::inode(Tree::TreePlace{found->tree, node.same_as})},
      node.size,
      node.mtime_ns,
      node.ctime_ns};
}

/// The path of an open file without links. The map's path may have some.
std::string canonical_path(const Origin& origin, const std::string& otherwise) {
  const auto link = "/proc/self/fd/" + std::to_string(origin.fd.get());
  std::error_code none;
  const auto found = origin.fd ? std::filesystem::read_symlink(link, none).string() : "";
  return found.starts_with('/') ? found : otherwise;
}

Result<std::string> index_of(const MapContent& content, const Origins& origins,
                             const LoadOptions& options, const std::string& map_id,
                             const std::vector<ServedTree>& trees) {
  const auto root =
      fmt::format("{}/{}/{}", options.mount_point, kMapsDirectory, map_directory(map_id));
  IndexInput input{content, root, {}, std::vector<bool>(content.objects.size()), {}, {}};
  for (const auto& program : content.programs) {
    const Origin& origin = origins.files[program.object];
    const bool is_here = origin.as_mapped && origin.stamp.id != FileId();
    input.programs.push_back(is_here ? std::optional(origin.stamp) : std::nullopt);
  }
  for (const Origin& origin : origins.files) {
    const bool is_here = origin.usable && origin.stamp.id != FileId();
    input.objects.push_back(is_here ? std::optional(origin.stamp) : std::nullopt);
  }
  for (ObjectId id = 0; !trees.empty() && id < content.objects.size(); ++id)
    input.in_trees.push_back(
        stamp_in_trees(trees, canonical_path(origins.files[id], content.objects[id].path)));
  if (options.serve == ServePolicy::remote)
    for (ObjectId id = 0; id < content.objects.size(); ++id)
      input.direct[id] = origins.files[id].usable && origins.files[id].locality != Locality::remote;
  return make_index(input);
}

std::string utc_text(const timespec& time) {
  std::tm parts{};
  ::gmtime_r(&time.tv_sec, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Result<void> stage(OverlayContent& out, const StageOptions& options) {
  return out.files.stage(TRY(StageDirectory::open(options.directory)), options.budget);
}

OwnFile own_file(std::string bytes, const timespec& made) {
  return {std::make_shared<const std::string>(std::move(bytes)), made};
}

/// A mount of a good copy must not wait for the shared file system.
constexpr std::chrono::seconds kSourceTimeout{1};

/// What fs-ship's link beside the bundle leads to, opened only; empty: nothing that can be read at
/// once. The bundle's owner chooses it, and of its bytes only those with a frame's hash are used.
Fd open_shipped_source(const std::string& link, const MapFile& map) {
  struct stat status {};
  if (::lstat(link.c_str(), &status) != 0 || status.st_uid != map.status.st_uid) return Fd();
  return std::move(
      work_on_files(1, {.limit = kSourceTimeout,
                        .work =
                            [&](std::size_t, WorkPlace& place) {
                              if (auto file = open_regular(link)) place.give(std::move(*file));
                            },
                        .path_of = [&](std::size_t) { return std::string_view(link); }})[0]
          .file);
}

/// The bundle that is mounted, and its other copy if that can be used.
std::vector<BundleSource> bundle_sources(MapFile map, const ContentHash& id,
                                         const LoadOptions& options) {
  std::vector<BundleSource> out;
  const auto path = std::filesystem::absolute(map.path);
  const auto source = path.parent_path() / (id.hex() + kSourceEnding);
  const bool is_shipped = path.filename() == id.hex() + kBundleEnding;
  Fd shipped =
      options.fallback.empty() && is_shipped ? open_shipped_source(source.string(), map) : Fd();
  out.push_back({std::move(map.bundle), std::move(map.path)});
  if (shipped) out.push_back({std::move(shipped), source.string()});
  if (options.fallback.empty()) return out;
  auto other = MapFile::find(options.fallback, options.origin_timeout);
  const auto reader = other ? other->read() : fail(other.error());
  if (reader && other->bundle && reader->id() == id)
    out.push_back({std::move(other->bundle), std::move(other->path)});
  else
    warn(Error(options.fallback, "is not used where the bundle is damaged",
               reader ? "it is another bundle" : reader.error().message()));
  return out;
}

/// Of the hard limit, so many descriptors may be open for the files of trees.
constexpr std::size_t kMostForTrees = 4096;

}  // namespace

std::vector<gid_t> supplementary_groups() {
  std::vector<gid_t> out(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
  out.resize(
      static_cast<std::size_t>(std::max(0, ::getgroups(static_cast<int>(out.size()), out.data()))));
  std::erase(out, ::getgid());
  return out;
}

Result<OverlayContent> load_overlay(const LoadOptions& options, std::vector<Drift>& drifts) {
  auto map = TRY(options.map_fd >= 0 ? MapFile::of(options.map_fd, options.origin_timeout)
                                     : MapFile::find(options.map_path, options.origin_timeout));
  if (options.signers.empty()) {
    TRY(check_map_owner(map.status, options.map_path));
    if (options.map_fd < 0) TRY(check_map_path(options.map_path));
  }
  OverlayContent out;
  MapContent content;
  std::vector<ServedTree> trees;
  std::shared_ptr<const BundleIndex> bundle;
  {
    auto reader = TRY(map.read());
    if (!options.signers.empty()) TRY(check_signature(map.path, reader.id(), options.signers));
    bundle = reader.bundle();
    content = TRY(reader.read_all());
    for (const auto& [path, index] : TRY(reader.trees()))
      trees.push_back({std::string(path), index, {}});
    content.trees.clear();
    out.map = reader.bytes();
    out.facts.map_id = reader.id().hex();
  }

  auto descriptors = raise_fd_limit();
  const auto for_trees = trees.empty() ? 0 : std::min(descriptors / 2, kMostForTrees);
  descriptors -= std::min(descriptors, for_trees + trees.size());
  Origins origins =
      open_origins(content, descriptors, options.origin_timeout, Compare::stamp, bundle.get());
  // A bundle serves its files without the originals.
  Origins missing;
  open_tree_roots(trees, options.origin_timeout, bundle ? missing : origins);
  for (const auto& drift : missing.drifts)
    warn(Error(drift.path, "serves only what is in the bundle", drift.what));
  for (auto& tree : trees) tree.is_served = tree.root || bundle;
  if (origins.silent && options.on_drift == OnDrift::refuse)
    return fail(Error(origins.silent->path, "cannot be checked", origins.silent->what,
                      "--on-drift warn mounts without the files of such a file system, "
                      "--origin-timeout says how long to wait")
                    .because(Cause::silent));
  drifts = origins.drifts;
  if (!drifts.empty() && options.on_drift == OnDrift::refuse)
    return fail(
        map.path, "does not fit this node",
        std::to_string(drifts.size()) + (drifts.size() == 1 ? " file differs" : " files differ"),
        "build the map again (fs-resolve build), or mount with --on-drift warn");
  leave_out(content, origins);

  std::vector<TreeIndex> indexes;
  for (const auto& tree : trees) indexes.push_back(tree.is_served ? tree.index : TreeIndex());
  out.tree =
      TRY(Tree::build(content, {std::string(map_directory(out.facts.map_id)), options.previous},
                      std::move(indexes)));
  ::clock_gettime(CLOCK_REALTIME, &out.made);
  auto index = TRY(index_of(content, origins, options, out.facts.map_id, trees));
  out.facts.index_bytes = index.size();
  out.own.push_back(own_file(std::move(index), out.made));
  // Trees may have names of directories that are closed to others.
  const mode_t map_mode = trees.empty() ? 0444 : 0400;
  out.own.push_back({out.map, map.status.st_mtim, map_mode});
  for (auto& [name, bytes] : content.generated)
    out.own.push_back(own_file(std::move(bytes), out.made));
  std::vector<std::string> paths;
  paths.reserve(content.objects.size());
  for (auto& object : content.objects) paths.push_back(std::move(object.path));
  out.facts.map_path = map.path;
  out.facts.mount_point = options.mount_point;
  for (const auto& before : options.previous) out.facts.previous_maps.push_back(before.id);
  out.facts.views = content.views.size();
  for (const auto& view : content.views) out.facts.names += view.names.size();
  out.facts.start_time = utc_text(out.made);
  out.files = ObjectFiles(std::move(origins), std::move(paths));
  out.trees = std::make_unique<TreeFiles>(std::move(trees), for_trees);
  if (bundle) {
    auto sources = bundle_sources(std::move(map), bundle->id, options);
    out.bundle = std::make_shared<BundleFrames>(std::move(sources), std::move(bundle));
    out.files.from_bundle(out.bundle);
    out.trees->from_bundle(out.bundle);
  }
  out.unmapped_groups = options.unmapped_groups;
  out.origin_timeout = options.origin_timeout;
  out.files.on_change(options.on_change);
  if (!options.stage.directory.empty())
    if (const auto staged = stage(out, options.stage); !staged) warn(staged.error());
  content = MapContent();
  ::malloc_trim(0);  // the daemon lives long
  return out;
}

}  // namespace heddle
