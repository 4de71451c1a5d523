// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/stat.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/mounts.hpp"
#include "base/open_regular.hpp"
#include "base/task_pool.hpp"
#include "base/try.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/search/search.hpp"
#include "resolver/tool/commands.hpp"
#include "resolver/tree/tree_reader.hpp"
#include "ship/bundle/frame.hpp"

namespace heddle {
namespace {

/// A difference between this node and a map.
struct MapDrift {
  std::string path;  ///< of the file
  std::string what;  ///< missing, replaced, changed, unreadable; passed over, not found, added
  std::string detail;
};

/// Compares a file with the map: size and time first, the content when the time differs. dev and
/// ino do not count: they differ on another node and after a reboot.
std::optional<MapDrift> check(const MapObject& object) {
  auto fd = open_regular(object.path);
  if (!fd) {
    const int code = fd.error().code();
    if (code == EISDIR || code == ENOEXEC)
      return MapDrift{object.path, "replaced", "no longer a regular file"};
    const bool gone = code == ENOENT || code == ENOTDIR;
    return MapDrift{object.path, gone ? "missing" : "unreadable", fd.error().message()};
  }
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0) return MapDrift{object.path, "unreadable", ""};
  const auto now = file_stamp(st);
  if (now.size != object.stamp.size)
    return MapDrift{object.path, "changed",
                    fmt::format("size {} was {}", now.size, object.stamp.size)};
  if (now.mtime_ns == object.stamp.mtime_ns) return std::nullopt;
  auto hash = hash_file(fd->get(), object.path);
  if (!hash) return MapDrift{object.path, "unreadable", hash.error().message()};
  if (*hash == object.hash) return std::nullopt;
  return MapDrift{object.path, now.id != object.stamp.id ? "replaced" : "changed",
                  fmt::format("content {} was {}", hash->hex(), object.hash.hex())};
}

std::optional<FileId> id_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return std::nullopt;
  return file_id(st);
}

/// Finds libraries of the map that ld.so now passes over for a file in an earlier directory or does
/// not find, and added ones. Searches again for each program, with the LD_LIBRARY_PATH and the
/// preloads of the map; files in `known` are not reported again.
class SearchComparison {
 public:
  SearchComparison(const MapContent& content, const std::vector<MapDrift>& known)
      : content_(content) {
    for (const auto& drift : known) known_.insert(drift.path);
  }
  std::vector<MapDrift> run() {
    std::vector<std::string> paths;
    for (const auto& program : content_.programs) paths.push_back(program.path);
    session_.world.prefetch(paths);
    for (const auto& program : content_.programs) {
      // The program is another one now.
      if (known_.contains(content_.objects[program.object].path)) continue;
      if (auto closure = closure_of(program))
        compare(program, *closure);
      else
        say("note: search not checked: " + closure.error().message());
    }
    return std::move(out_);
  }

 private:
  Result<Closure> closure_of(const MapProgram& program) {
    const auto loader = TRY(read_loader_profile(session_.world, program.interpreter));
    SearchOptions options;
    options.ld_library_path = program.library_path;
    for (const auto& library : program.libraries)
      if (library.found_by == "preload")
        options.ld_preload += (options.ld_preload.empty() ? "" : ":") + library.requested_as;
    return resolve(session_.world, loader, program.path, options);
  }

  void add(const std::string& path, const char* what, const std::string& detail) {
    // One line for a file of several programs.
    if (!known_.contains(path) && reported_.emplace(path, what).second)
      out_.push_back({path, what, detail});
  }

  void compare(const MapProgram& program, const Closure& closure) {
    std::map<std::string_view, ObjectId> by_name;
    std::vector<std::optional<FileId>> ids(program.libraries.size());
    for_each_at_once(ids.size(), [&](std::size_t i) {
      ids[i] = id_of(content_.objects[program.libraries[i].object].path);
    });
    const std::set<std::optional<FileId>> mapped(ids.begin(), ids.end());
    for (const auto& library : program.libraries)
      by_name.emplace(library.requested_as, library.object);
    const auto program_name = escape_for_terminal(program.path);
    for (std::size_t i = 1; i < closure.objects.size(); ++i) {
      const LoadedObject& now = closure.objects[i];
      const auto was = by_name.find(now.requested_as);
      if (mapped.contains(now.file.stamp.id)) continue;
      if (was != by_name.end())
        add(content_.objects[was->second].path, "passed over",
            fmt::format("{} finds {} first", program_name, escape_for_terminal(now.path)));
      else
        add(now.path, "added", fmt::format("{} now loads it too", program_name));
    }
    for (const auto& missing : closure.missing)
      if (const auto was = by_name.find(missing.name); was != by_name.end())
        add(content_.objects[was->second].path, "not found",
            fmt::format("{} no longer finds it", program_name));
  }

  const MapContent& content_;
  std::set<std::string> known_;
  ResolverSession session_;
  std::set<std::pair<std::string, std::string>> reported_;
  std::vector<MapDrift> out_;
};

/// Whether a name of a bundle's tree is compiled Python that is in the bundle: pack may have made
/// it, and no original counts. Also a directory of nothing else.
bool is_packed_python(const TreeIndex& tree, const std::vector<std::uint64_t>& places,
                      TreeNodeId id) {
  const TreeNode node = tree.node(id);
  if (S_ISREG(node.mode))
    return places[id] != kAtOrigin && node.name.ends_with(".pyc") &&
           tree.node(node.parent).name == "__pycache__";
  for (TreeNodeId i = 0; i < node.child_count; ++i)
    if (!is_packed_python(tree, places, node.first_child + i)) return false;
  return S_ISDIR(node.mode) && node.name == "__pycache__";
}

/// Reads the trees again, with the map's holes: a directory with unchanged times is not listed,
/// unless it is of a bundle, which may have names that it has not.
std::vector<MapDrift> check_trees(const MapContent& content, const BundleIndex* bundle,
                                  std::uint64_t& entries) {
  std::vector<MapDrift> out;
  std::vector<std::unique_ptr<TreeReader>> readers;
  const auto mounts = list_mounts().value_or(std::vector<MountEntry>());
  for (const auto& tree : content.trees) {
    TreeReader::Options options;
    options.keeps_times = keeps_directory_times(tree.path, mounts);
    const auto then = value_or_throw(TreeIndex::of(tree.index));
    entries += then.size();
    for (TreeNodeId id = 0; id < then.size(); ++id)
      if (then.node(id).hole) options.exclude.insert(tree.path + "/" + then.path(id));
    if (!bundle) options.earlier = then;
    readers.push_back(std::make_unique<TreeReader>(tree.path, std::move(options)));
  }
  TaskPool pool;
  for (const auto& reader : readers) reader->start(pool);
  pool.wait();
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const auto& tree = content.trees[i];
    const auto now = readers[i]->take();
    if (!now) {
      const bool gone = now.error().code() == ENOENT || now.error().code() == ENOTDIR;
      out.push_back({tree.path, gone ? "missing" : "unreadable", now.error().message()});
      continue;
    }
    const auto then = value_or_throw(TreeIndex::of(tree.index));
    for (auto& drift : compare_trees(tree.path, then, value_or_throw(TreeIndex::of(*now)))) {
      const auto id = bundle && drift.path != tree.path
                          ? then.find_path(drift.path.substr(tree.path.size() + 1))
                          : std::nullopt;
      if (!id || !is_packed_python(then, bundle->trees[i], *id))
        out.push_back({std::move(drift.path), std::move(drift.what), std::move(drift.detail)});
    }
  }
  return out;
}

}  // namespace

int run_verify(const Command& command) {
  const auto reader = value_or_throw(MapReader::open(command.map));
  const auto bundle = reader.bundle();
  const auto content = value_or_throw(reader.read_all());
  std::vector<MapDrift> drifts;
  std::vector<std::optional<MapDrift>> checked(content.objects.size());
  for_each_at_once(checked.size(), [&](std::size_t i) { checked[i] = check(content.objects[i]); });
  for (auto& drift : checked)
    if (drift) drifts.push_back(std::move(*drift));
  const auto changed = drifts.size();
  std::uint64_t entries = 0;
  for (const auto& drift : check_trees(content, bundle.get(), entries)) drifts.push_back(drift);
  const auto in_trees = drifts.size() - changed;
  std::size_t damaged = 0;
  if (bundle)
    for (const auto number :
         damaged_frames(value_or_throw(open_regular(command.map)).get(), *bundle)) {
      drifts.push_back(
          {command.map, "damaged", fmt::format("frame {}: other bytes than were packed", number)});
      ++damaged;
    }
  // A bundle's libraries are found by their names in it, wherever they are.
  if (!command.files_only && !bundle) {
    const auto searched = SearchComparison(content, drifts).run();
    drifts.insert(drifts.end(), searched.begin(), searched.end());
  }
  if (command.json) {
    Json out = {
        {"files", content.objects.size()}, {"tree_entries", entries}, {"drift", Json::array()}};
    for (const auto& drift : drifts)
      out["drift"].push_back(
          {{"path", drift.path}, {"what", drift.what}, {"detail", drift.detail}});
    print_json(std::move(out));
  } else {
    for (const auto& drift : drifts)
      fmt::print("{}: {}: {}\n", escape_for_terminal(drift.path), drift.what, drift.detail);
    fmt::print("{}: {} of {} files are unchanged", escape_for_terminal(command.map),
               content.objects.size() - changed, content.objects.size());
    if (bundle)
      fmt::print(", {} of {} frames are as they were packed", bundle->frames.size() - damaged,
                 bundle->frames.size());
    if (!content.trees.empty()) fmt::print(", {} of {} names of trees differ", in_trees, entries);
    const auto elsewhere = drifts.size() - changed - in_trees - damaged;
    if (elsewhere != 0)
      fmt::print(", but ld.so would load others in {} case{}", elsewhere,
                 elsewhere == 1 ? "" : "s");
    fmt::print("\n");
  }
  return drifts.empty() ? exit_done : exit_no;
}

}  // namespace heddle
