// SPDX-License-Identifier: MIT
//
// Maps: build, show, lookup, push, pull; and their JSON.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/try.hpp"
#include "resolver/build/app_inputs.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/tree_index.hpp"
#include "resolver/tool/commands.hpp"
#include "resolver/tree/read_trees.hpp"
#include "ship/bundle/frame.hpp"
#include "ship/registry/oci_helper.hpp"

namespace heddle {
namespace {

void escape_strings(Json& value) {
  if (value.is_string())
    value = to_json_text(value.get_ref<const std::string&>());
  else if (value.is_structured())
    for (auto& item : value) escape_strings(item);
}

Json to_json(const MapProgram& program, const MapContent& content) {
  Json libraries = Json::array();
  for (const auto& library : program.libraries) {
    const MapObject& object = content.objects[library.object];
    libraries.push_back(library_json(object.soname, object.path, library.found_by,
                                     library.needed_by, library.requested_as));
  }
  return {{"path", program.path},
          {"interpreter", program.interpreter},
          {"view", content.views[program.view].name},
          {"ld_library_path", program.library_path},
          {"failed_probes_unguided", program.probes_unguided},
          {"static_tls_bytes", program.static_tls_bytes},
          {"libraries", std::move(libraries)},
          {"missing", program.missing}};
}

Json to_json(const MapView& view, const MapContent& content) {
  Json names = Json::object();
  for (const auto& [name, id] : view.names) names[to_json_text(name)] = content.objects[id].path;
  return {{"name", view.name}, {"names", std::move(names)}};
}

struct TreeCounts {
  std::uint64_t directories = 0;
  std::uint64_t files = 0;
  std::uint64_t links = 0;  ///< symbolic
  std::uint64_t bytes = 0;
  std::vector<std::string> holes;
};

TreeCounts count_tree(const MapTree& tree) {
  const auto index = value_or_throw(TreeIndex::of(tree.index));
  TreeCounts out;
  for (TreeNodeId id = 0; id < index.size(); ++id) {
    const auto node = index.node(id);
    if (node.hole)
      out.holes.push_back(tree.path + "/" + index.path(id));
    else if (S_ISDIR(node.mode))
      ++out.directories;
    else if (S_ISLNK(node.mode))
      ++out.links;
    else
      ++out.files;
    if (S_ISREG(node.mode) && !node.hole && node.same_as == id) out.bytes += node.size;
  }
  return out;
}

Json to_json(const MapTree& tree) {
  const auto counts = count_tree(tree);
  return {{"path", tree.path},     {"directories", counts.directories},
          {"files", counts.files}, {"links", counts.links},
          {"bytes", counts.bytes}, {"holes", counts.holes}};
}

void print_tree(const MapTree& tree) {
  const auto counts = count_tree(tree);
  fmt::print("tree {}: {} directories, {} files, {} symbolic links, {} bytes\n",
             escape_for_terminal(tree.path), counts.directories, counts.files, counts.links,
             counts.bytes);
  for (const auto& hole : counts.holes) fmt::print("  hole {}\n", escape_for_terminal(hole));
}

/// The map that is replaced, if this user or root made it: another's would choose which names a
/// new tree has, in the directories whose times it knows.
MapContent earlier_map(const std::string& path) {
  struct stat status {};
  const auto file = open_regular(path);
  if (!file || ::fstat(file->get(), &status) != 0 || !check_map_owner(status, path) ||
      (status.st_uid != 0 && status.st_uid != ::geteuid()))
    return {};
  const auto map = MapReader::open(file->get(), path);
  auto content = map ? map->read_all() : Result<MapContent>(fail(map.error()));
  return content ? std::move(*content) : MapContent();
}

/// The trees of --tree and --python. The trees of the map that is replaced save work.
std::vector<MapTree> read_trees_of(const Command& command) {
  TreeRequest request;
  request.named = command.trees;
  request.exclude = command.excluded;
  const auto cwd = std::filesystem::current_path().string();
  request.never = {cwd};
  const auto environment = own_environment();
  const auto find_in = [&](const std::vector<std::string>& words) {
    const auto python = find_python_trees(words, environment, cwd);
    request.never.insert(request.never.end(), python.in_use.begin(), python.in_use.end());
    request.found.insert(request.found.end(), python.trees.begin(), python.trees.end());
    return !python.interpreter.empty();
  };
  if (command.python == "auto") {
    for (const auto& app : command.apps) find_in({app});
  } else if (command.python != "off" && !find_in({command.python})) {
    throw Error(command.python, "not a Python interpreter", "neither in PATH nor as a script's");
  }
  if (request.named.empty() && request.found.empty()) {
    if (!command.excluded.empty())
      throw Error(command.excluded[0], "cannot be excluded", "there is no tree");
    return {};
  }
  const auto earlier = earlier_map(command.map);
  request.earlier = &earlier.trees;
  auto read = value_or_throw(read_trees(request));
  for (const auto& one : read.notes) say("note: " + one);
  return std::move(read.trees);
}

void report_missing(const BuildResult& built) {
  for (const auto& missing : built.missing) {
    const bool direct = missing.needed_by == missing.program;
    const auto who = direct ? std::string() : escape_for_terminal(missing.needed_by) + " ";
    report(
        Error(missing.program, who + "needs " + escape_for_terminal(missing.name), missing.reason));
  }
}

/// Adds directories that MPI's libraries search beside themselves, which a view preserves. Others
/// are found by a built-in path.
void add_mpi_plugins(const std::string& wanted, std::vector<std::string>& directories) {
  ResolverSession session;
  const auto installs = find_wanted_mpi(session.world, wanted);
  if (installs.empty() && wanted != "none") throw Error(wanted, "no MPI library found");
  for (const auto& install : installs)
    for (const auto& directory : install.plugin_directories)
      if (directory.beside && std::ranges::find(directories, directory.path) == directories.end())
        directories.push_back(directory.path);
}

void print_program(const MapProgram& program, const MapContent& content) {
  fmt::print("program {}\n", escape_for_terminal(program.path));
  fmt::print("  view {}, {} libraries, {} failed probes without heddle\n",
             escape_for_terminal(content.views[program.view].name), program.libraries.size(),
             program.probes_unguided);
  if (!program.library_path.empty())
    fmt::print("  LD_LIBRARY_PATH {}\n", escape_for_terminal(program.library_path));
  for (const auto& library : program.libraries)
    fmt::print("  {} => {} [{}]\n", escape_for_terminal(library.requested_as),
               escape_for_terminal(content.objects[library.object].path), library.found_by);
  for (const auto& name : program.missing)
    fmt::print("  {} => not found\n", escape_for_terminal(name));
}

void print_object(const MapObject& object) {
  fmt::print("path    {}\n", escape_for_terminal(object.path));
  if (!object.soname.empty()) fmt::print("soname  {}\n", escape_for_terminal(object.soname));
  fmt::print("size    {}\nsha256  {}\n", object.stamp.size, object.hash.hex());
  for (const auto& needed : object.needed) fmt::print("needed  {}\n", escape_for_terminal(needed));
}

int wrong_view(const std::string& where, const std::string& what, const MapContent& content) {
  std::string hint;
  if (!content.views.empty()) hint = "--view " + escape_for_terminal(content.views[0].name);
  if (content.views.size() > 1)
    hint += fmt::format(", or one of {} more (fs-resolve show)", content.views.size() - 1);
  report(Error(where, what, "", hint));
  return exit_usage;
}

Result<Fd> open_to_push(const std::string& path) {
  auto file = open_regular(path);
  if (!file) return fail(map_open_error(path, file.error().code()));
  return file;
}

/// Whether the map, and a bundle's frames, can be read completely.
Result<void> check_all(int file, const std::string& path) {
  const auto map = TRY(MapReader::open(file, path));
  (void)TRY(map.read_all());
  if (!map.bundle()) return {};
  return check_frames(file, path, *map.bundle());
}

}  // namespace

std::string to_text(Json value) {
  escape_strings(value);
  return value.dump(2) + "\n";
}

void print_json(Json value) { fmt::print("{}", to_text(std::move(value))); }

Json library_json(const std::string& soname, const std::string& path, const std::string& found_by,
                  const std::string& needed_by, const std::string& requested_as) {
  return {{"soname", soname},
          {"path", path},
          {"found_by", found_by},
          {"needed_by", needed_by.empty() ? Json() : Json(needed_by)},
          {"requested_as", requested_as}};
}

Json library_json(const Closure& closure, std::size_t index) {
  const LoadedObject& object = closure.objects[index];
  return library_json(object.file.elf.soname.value_or(""), object.path, to_string(object.found_by),
                      object.needed_by ? closure.objects[*object.needed_by].path : "",
                      object.requested_as);
}

Json to_json(const MapObject& object) {
  Json out = {{"path", object.path},
              {"size", object.stamp.size},
              {"mtime_ns", object.stamp.mtime_ns},
              {"sha256", object.hash.hex()}};
  if (!object.is_elf) {
    out["kind"] = "data";
    return out;
  }
  out["soname"] = object.soname;
  out["needed"] = object.needed;
  if (!object.rpath.empty()) out["rpath"] = object.rpath;
  if (!object.runpath.empty()) out["runpath"] = object.runpath;
  out["version_definitions"] = object.version_definitions;
  out["version_needs"] = object.version_needs;
  out["flags"] = object.flags;
  out["flags_1"] = object.flags_1;
  if (object.tls_size) out["tls"] = {{"size", object.tls_size}, {"align", object.tls_align}};
  out["imports_dladdr"] = object.imports_dladdr;
  out["imports_dlopen"] = object.imports_dlopen;
  return out;
}

Json to_json(const MapContent& content) {
  Json out = {{"format", "heddle-map"},
              {"programs", Json::array()},
              {"views", Json::array()},
              {"objects", Json::array()},
              {"trees", Json::array()}};
  for (const auto& one : content.programs) out["programs"].push_back(to_json(one, content));
  for (const auto& one : content.views) out["views"].push_back(to_json(one, content));
  for (const auto& one : content.objects) out["objects"].push_back(to_json(one));
  for (const auto& one : content.trees) out["trees"].push_back(to_json(one));
  return out;
}

int run_build(const Command& command) {
  if (!command.into.empty()) return run_container(command);
  // Fail before the work if the map cannot be written; the temporary file is removed at once.
  if (const auto place = AtomicFile::create(command.map); !place) {
    const auto& error = place.error();
    throw Error::with_code(error.code(), "", error.message(), "",
                           error.code() == EINVAL ? "name a regular file" : "");
  }
  // Before the libraries: a directory that cannot be a tree is reported at once.
  auto trees = read_trees_of(command);
  AppInputs inputs;
  for (const auto& app : command.apps) value_or_throw(add_app(inputs, app));
  for (const auto& note : inputs.notes) say("note: " + note);
  if (inputs.roots.empty() && !command.apps.empty()) {
    report(Error(command.apps[0], "nothing to resolve", "no dynamic program or library in it"));
    return exit_failure;
  }
  ResolverSession session;
  BuildOptions options;
  options.search = search_options_from_environment();
  options.plugin_directories = command.plugin_directories;
  if (!command.mpi.empty()) add_mpi_plugins(command.mpi, options.plugin_directories);
  auto built = value_or_throw(build_map(session.world, inputs.roots, options));
  for (const auto& left_out : built.left_out) say("note: left out: " + left_out.reason.message());
  for (const auto& note : built.notes) say("note: " + note);
  report_missing(built);
  if (!built.missing.empty() && !command.allow_missing) {
    report(Error(command.map, "not written", "libraries are missing",
                 "--allow-missing writes the map anyway"));
    return exit_no;
  }
  built.content.trees = std::move(trees);
  value_or_throw(write_map(built.content, command.map));
  const auto count = [](const auto& list, const char* what) {
    return fmt::format("{} {}{}", list.size(), what, list.size() == 1 ? "" : "s");
  };
  if (command.json)
    print_json(to_json(built.content));
  else
    fmt::print("{}: {}, {}, {}{}\n", escape_for_terminal(command.map),
               count(built.content.programs, "program"), count(built.content.views, "view"),
               count(built.content.objects, "file"),
               built.content.trees.empty() ? "" : ", " + count(built.content.trees, "tree"));
  return exit_done;
}

MapContent read_map(const std::string& path) {
  return value_or_throw(value_or_throw(MapReader::open(path)).read_all());
}

int run_show(const Command& command) {
  const auto reader = value_or_throw(MapReader::open(command.map));
  const auto content = value_or_throw(reader.read_all());
  if (command.json) {
    auto out = to_json(content);
    if (reader.bundle()) out["bundle"] = bundle_json(*reader.bundle());
    print_json(std::move(out));
    return exit_done;
  }
  if (reader.bundle())
    fmt::print("bundle {}\n  {} frames, {} bytes (pack --list)\n", reader.id().hex(),
               reader.bundle()->frames.size(), reader.bundle()->stream_size);
  for (const auto& program : content.programs) print_program(program, content);
  for (const auto& tree : content.trees) print_tree(tree);
  for (const auto& view : content.views) {
    fmt::print("view {}: {} names\n", escape_for_terminal(view.name), view.names.size());
    for (const auto& [name, id] : view.names)
      fmt::print("  {} -> {}\n", escape_for_terminal(name),
                 escape_for_terminal(content.objects[id].path));
  }
  return exit_done;
}

int run_lookup(const Command& command) {
  const auto content = read_map(command.map);
  const ObjectId* found = nullptr;
  if (command.name.starts_with('/')) {
    found = find_name(content.paths, command.name);
  } else {
    if (command.view.empty() && content.views.size() > 1)
      return wrong_view(command.map, "no view given: the map has several", content);
    const auto view = std::ranges::find_if(content.views, [&](const MapView& one) {
      return command.view.empty() || one.name == command.view;
    });
    if (view != content.views.end())
      found = find_name(view->names, command.name);
    else if (!command.view.empty())
      return wrong_view(command.view, "no view of the map", content);
  }
  if (found == nullptr) {
    if (command.json) fmt::print("null\n");
    report(Error(command.name, "not in the map"));
    return exit_no;
  }
  if (command.json)
    print_json(to_json(content.objects[*found]));
  else
    print_object(content.objects[*found]);
  return exit_done;
}

int run_push(const Command& command) {
  const Fd file = value_or_throw(open_to_push(command.map));
  value_or_throw(check_all(file.get(), command.map));
  if (::lseek(file.get(), 0, SEEK_SET) != 0) throw Error::from_errno(command.map, "cannot read");
  const auto bytes = value_or_throw(read_all(file.get(), command.map, std::size_t{4} << 30));
  const auto title = command.map.substr(command.map.rfind('/') + 1);
  return value_or_throw(run_oci_client(
      "fs-resolve", {"push", "--type", kMapMediaType, "--title=" + title, "--", command.reference},
      bytes, STDOUT_FILENO));
}

int run_pull(const Command& command) {
  auto file = value_or_throw(AtomicFile::create(command.map));
  std::vector<std::string> words = {"pull", "--type",         kMapMediaType, "--out=" + command.map,
                                    "--",   command.reference};
  if (command.no_cache) words.insert(words.begin() + 1, "--no-cache");
  const auto status = value_or_throw(run_oci_client("fs-resolve", words, "", file.fd()));
  if (status != exit_done) return status;
  if (const auto checked = check_all(file.fd(), command.reference); !checked) {
    auto reason = checked.error().message();
    if (reason.starts_with(command.reference + ": ")) reason.erase(0, command.reference.size() + 2);
    throw Error(command.reference, "cannot be used", reason, "push it again");
  }
  value_or_throw(file.commit());
  return exit_done;
}

}  // namespace heddle
