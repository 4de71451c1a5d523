// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/mounts.hpp"
#include "base/try.hpp"
#include "resolver/build/object_table.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/served_names.hpp"
#include "resolver/policy/decide.hpp"
#include "resolver/tool/commands.hpp"

namespace heddle {
namespace {

using policy::Decision;

const std::string kOwnFile = ".heddle/container.json";

void print_mpi(const char* side, const std::optional<MpiSide>& mpi) {
  if (mpi)
    fmt::print("{} {} {}, {} ({})\n", side, escape_for_terminal(mpi->family),
               escape_for_terminal(mpi->version), escape_for_terminal(mpi->path),
               escape_for_terminal(mpi->abi));
}

void print_swap(const ContainerDecision& decision) {
  const auto& shown = escape_for_terminal;
  fmt::print("glibc     the {}'s: {}\n", name_of(decision.glibc), shown(decision.glibc_why));
  for (const auto& choice : decision.choices)
    fmt::print("  {:<9} {:<24} {}\n            {}: {}\n", name_of(choice.taken),
               shown(choice.soname),
               shown(choice.taken == Side::host ? choice.host : choice.container),
               name_of(choice.rule), shown(choice.why));
  fmt::print("mounted at {}\n", shown(decision.mount_point));
  for (const auto& bind : decision.binds)
    fmt::print("  {} over {}: {}\n", shown(bind.source), shown(bind.target), shown(bind.why));
  for (const auto& directory : decision.directories)
    fmt::print("  {} over {}: {}{}\n", shown(directory.source), shown(directory.target),
               shown(directory.why), directory.exists ? "" : "; the image has no such directory");
  for (const auto& file : decision.changed)
    fmt::print("  {} looks into {}, not {}\n", shown(file.library), shown(file.now),
               shown(file.was));
  for (const auto& [variable, setting] : decision.environment)
    fmt::print("  or {}={}\n", shown(variable), shown(setting));
}

void print_container(const ContainerDecision& decision) {
  const auto reason = escape_for_terminal(decision.reason);
  fmt::print("{}{}{}\n", name_of(decision.outcome), reason.empty() ? "" : ": ", reason);
  print_mpi("host     ", decision.mpi);
  print_mpi("container", decision.container_mpi);
  if (decision.outcome == Outcome::swap) print_swap(decision);
  for (const auto& line : decision.warnings) fmt::print("warning: {}\n", escape_for_terminal(line));
}

/// The options by which a container engine makes a decision's mounts.
struct Engine {
  const char* name;
  const char* bind;
  const char* read_only;
  const char* variable;
};
constexpr Engine kEngines[] = {{"podman", "--volume=", ":ro", "--env="},
                               {"apptainer", "--bind=", ":ro", "--env="},
                               {"ch-run", "--bind=", "", "--set-env="}};

/// An option a line, for a shell to split. `mount`: of the map, on this host.
std::string binds_text(const ContainerDecision& decision, const std::string& engine,
                       const std::string& mount) {
  const auto& options = *std::ranges::find(kEngines, engine, &Engine::name);
  const auto check = [&](const std::string& word) {
    if (word.find_first_of(" \t\n\r:,*?[\\'\"") != word.npos)
      throw Error(word, "cannot be an argument of " + engine, "it has a separator or a quote");
    return word;
  };
  std::string out;
  const auto bind = [&](const std::string& source, const std::string& target) {
    out +=
        fmt::format("{}{}:{}{}\n", options.bind, check(source), check(target), options.read_only);
  };
  // ch-run has the host's /dev in each container.
  if (engine == "ch-run" && decision.mount_point.starts_with("/dev/"))
    throw Error(decision.mount_point, "is no place where ch-run can mount", "",
                "fs-resolve build --into, with --at /srv");
  bind(mount, decision.mount_point);
  bool lacks_directory = false;
  for (const auto& one : decision.directories)
    if (one.exists)
      bind(mount + "/" + one.source, one.target);
    else
      lacks_directory = true;
  for (const auto& one : decision.binds) bind(mount + "/" + one.source, one.target);
  if (lacks_directory)
    for (const auto& [variable, setting] : decision.environment)
      out += fmt::format("{}{}={}\n", options.variable, variable, check(setting));
  return out;
}

/// Where the map with this decision is mounted. Another user's mount may show any files, and never
/// answer.
std::string find_mount(const std::string& json, const std::string& map) {
  const auto own = "user_id=" + std::to_string(::geteuid());
  for (const auto& mount : value_or_throw(list_mounts()))
    if (mount.type == "fuse.heddle" && mount.root == "/" &&
        (mount.has_option("user_id=0") || mount.has_option(own)) &&
        read_file(mount.point + "/" + kOwnFile).value_or("") == json)
      return mount.point;
  throw Error(map, "is not mounted on this host", "",
              "fs-mount MAP DIR, then name DIR instead of MAP");
}

Result<ObjectId> add_file(World& host, ObjectTable& objects, const std::string& path) {
  auto file = host.facts(path);
  if (file) return objects.add(path, *file);
  if (file.error().code() != ENOEXEC) return fail(std::move(file.error()));
  return objects.add_data(path);
}

/// The map of the files that `decision` takes from the host: one view, no programs. `json` and the
/// decision's `made` become generated files. Fails when a file of the host cannot be read.
Result<MapContent> make_map(World& host, const Decision& decision, const std::string& json) {
  ObjectTable objects;
  std::map<std::string, ObjectId> names;
  for (const auto& [name, path] : decision.names) names[name] = TRY(add_file(host, objects, path));
  MapContent out;
  const auto rank = objects.put_into(out);
  // Unlike the names of its files, which stand in the root beside it.
  std::string view = "host";
  while (std::ranges::any_of(names, [&](const auto& entry) {
    return entry.first == view || entry.first.starts_with(view + "/");
  }))
    view += '~';
  out.views.push_back({view, {}});
  // The original of a changed copy is an object without a name, for the detection of drift.
  for (const auto& [name, id] : names)
    if (!decision.made.contains(name)) out.views[0].names.emplace_back(name, rank[id]);
  auto generated = decision.made;
  generated[kOwnFile] = json;
  generated[std::string(kOwnPrefix) + "ld.so.cache"] = decision.ld_so_cache;
  out.generated.assign(generated.begin(), generated.end());
  return out;
}

/// The mount point without trailing slashes, or why it is invalid.
Result<std::string> clean_mount_point(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (path.starts_with('/') && path != "/" && path.find('\0') == path.npos &&
      std::filesystem::path(path).lexically_normal().native() == path)
    return path;
  return fail(path, "cannot be mounted at", "give a path below / without '.', '..' and '//'");
}

}  // namespace

std::vector<MpiInstall> find_wanted_mpi(OsWorld& world, const std::string& wanted) {
  if (wanted == "none") return {};
  auto found = value_or_throw(find_mpi(world, wanted == "auto" ? "" : wanted));
  if (found.empty() && wanted != "auto")
    throw Error(wanted, "no MPI library found", "", "fs-resolve mpi lists this machine's");
  return found;
}

int run_container(const Command& command) {
  CachedFacts host_facts;
  OsWorld host(host_facts);
  CachedFacts image_facts(value_or_throw(facts_below(command.into)));
  auto inside = value_or_throw(OsWorld::below(image_facts, command.into));
  policy::DecideOptions options;
  options.programs = command.programs;
  options.mount_point = value_or_throw(clean_mount_point(command.mount_point));
  options.path = command.path;
  options.library_path = command.library_path;
  options.preload = command.preload;
  options.mpi_wanted = command.mpi != "none";
  options.installs = find_wanted_mpi(host, command.mpi.empty() ? "auto" : command.mpi);
  for (const auto& root : command.roots)
    options.roots.push_back(value_or_throw(find_root(host, root)));
  auto decision = value_or_throw(policy::decide(host, inside, options));
  auto& asked = decision.asked;
  for (auto& path : inside.asked()) asked.push_back(std::move(path));
  std::ranges::sort(asked);
  asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
  const auto json = to_json(decision);
  if (decision.outcome == Outcome::swap)
    value_or_throw(write_map(value_or_throw(make_map(host, decision, json)), command.map));
  if (command.json)
    fmt::print("{}", json);
  else
    print_container(decision);
  if (decision.outcome != Outcome::incompatible) return exit_done;
  report(Error(command.into, "incompatible", decision.reason, decision.hint));
  return exit_no;
}

int run_explain(const Command& command) {
  std::error_code error;
  const bool is_mount = std::filesystem::is_directory(command.map, error);
  std::string json;
  if (is_mount) {
    json = value_or_throw(read_file(command.map + "/" + kOwnFile));
  } else {
    for (auto& [name, bytes] : read_map(command.map).generated)
      if (name == kOwnFile) json = std::move(bytes);
    if (json.empty()) {
      report(Error(command.map, "was made for no container", "",
                   "fs-resolve show explains it; build --into ROOTFS makes one for a container"));
      return exit_no;
    }
  }
  if (command.json && command.engine.empty()) {
    fmt::print("{}", json);
    return exit_done;
  }
  const auto decision = value_or_throw(parse_container_decision(json, command.map));
  if (!command.engine.empty())
    fmt::print("{}", binds_text(decision, command.engine,
                                is_mount ? std::filesystem::canonical(command.map).string()
                                         : find_mount(json, command.map)));
  else
    print_container(decision);
  return exit_done;
}

}  // namespace heddle
