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
using policy::Outcome;
using policy::Side;

constexpr const char* kFormat = "heddle-container";
constexpr int kVersion = 1;
const std::string kOwnFile = ".heddle/container.json";

const char* to_text(Side side) { return side == Side::host ? "host" : "container"; }

Json to_json(const std::optional<policy::MpiSide>& mpi, const char* path_key) {
  if (!mpi) return nullptr;
  return {{"family", mpi->identity.family},
          {"version", mpi->identity.version},
          {"soname", mpi->library.soname},
          {"abi", mpi->identity.abi},
          {path_key, mpi->library.path}};
}

std::string container_json(const Decision& decision) {
  constexpr const char* kOutcomes[] = {"swap", "nothing", "incompatible"};
  constexpr const char* kRules[] = {"mpi-stack", "only-host", "versions",
                                    "symbols",   "needs",     "glibc"};
  Json out = {{"format", kFormat},
              {"version", kVersion},
              {"outcome", kOutcomes[static_cast<int>(decision.outcome)]},
              {"reason", decision.reason},
              {"hint", decision.hint},
              {"program", decision.programs},
              {"mount_point", decision.mount_point},
              {"mpi", to_json(decision.mpi, "host")},
              {"container_mpi", to_json(decision.container_mpi, "path")},
              {"glibc",
               {{"host", decision.host_glibc},
                {"container", decision.container_glibc},
                {"taken", to_text(decision.glibc)},
                {"why", decision.glibc_why}}},
              {"interpreter",
               {{"path", decision.interpreter},
                {"real_path", decision.interpreter_file},
                {"taken", to_text(decision.glibc)}}}};
  const auto add = [&out](const char* key, const auto& list, auto to_row) {
    Json& rows = out[key] = Json::array();
    for (const auto& one : list) rows.push_back(to_row(one));
  };
  add("binds", decision.binds, [](const auto& bind) {
    return Json{{"source", bind.source}, {"target", bind.target}, {"why", bind.why}};
  });
  add("changed", decision.changed, [](const auto& file) {
    return Json{{"host", file.library}, {"was", file.was}, {"now", file.now}};
  });
  add("directories", decision.directories, [](const auto& directory) {
    return Json{{"source", directory.source},
                {"target", directory.target},
                {"exists", directory.exists},
                {"why", directory.why}};
  });
  out["environment"] = decision.environment;
  add("verdict", decision.verdicts, [&](const auto& verdict) {
    return Json{{"soname", verdict.soname},
                {"taken", to_text(verdict.taken)},
                {"host", verdict.host},
                {"container", verdict.container},
                {"rule", kRules[static_cast<int>(verdict.rule)]},
                {"why", verdict.why}};
  });
  add("loads", decision.loads, [](const auto& load) {
    return Json{{"soname", load.first}, {"path", load.second}};
  });
  out["loads_mpi"] = decision.loads_mpi;
  out["warnings"] = decision.warnings;
  out["asked"] = decision.asked;
  return heddle::to_text(std::move(out));
}

// The document may be anyone's: at() and get_ref() throw on an unexpected form.

std::string text(const Json& value, const char* key) {
  return escape_for_terminal(value.at(key).get_ref<const std::string&>());
}

void print_mpi(const char* side, const Json& mpi, const char* path_key) {
  if (!mpi.is_null())
    fmt::print("{} {} {}, {} ({})\n", side, text(mpi, "family"), text(mpi, "version"),
               text(mpi, path_key), text(mpi, "abi"));
}

void print_swap(const Json& value) {
  const auto& glibc = value.at("glibc");
  fmt::print("glibc     the {}'s: {}\n", text(glibc, "taken"), text(glibc, "why"));
  for (const auto& verdict : value.at("verdict")) {
    const auto taken = text(verdict, "taken");
    fmt::print("  {:<9} {:<24} {}\n            {}: {}\n", taken, text(verdict, "soname"),
               text(verdict, taken == "host" ? "host" : "container"), text(verdict, "rule"),
               text(verdict, "why"));
  }
  fmt::print("mounted at {}\n", text(value, "mount_point"));
  for (const auto& bind : value.at("binds"))
    fmt::print("  {} over {}: {}\n", text(bind, "source"), text(bind, "target"), text(bind, "why"));
  for (const auto& directory : value.at("directories"))
    fmt::print("  {} over {}: {}{}\n", text(directory, "source"), text(directory, "target"),
               text(directory, "why"),
               directory.at("exists").get<bool>() ? "" : "; the image has no such directory");
  for (const auto& file : value.at("changed"))
    fmt::print("  {} looks into {}, not {}\n", text(file, "host"), text(file, "now"),
               text(file, "was"));
  for (const auto& [variable, setting] : value.at("environment").items())
    fmt::print("  or {}={}\n", escape_for_terminal(variable),
               escape_for_terminal(setting.get_ref<const std::string&>()));
}

void print_container(const std::string& json, const std::string& name) try {
  const auto value = Json::parse(json);
  if (value.at("format") != kFormat) throw Error(name, "is not a decision for a container");
  if (value.at("version") != kVersion)
    throw Error(name, "is of another version", "", "rebuild the map with this fs-resolve");
  const auto outcome = text(value, "outcome");
  const auto reason = text(value, "reason");
  fmt::print("{}{}{}\n", outcome, reason.empty() ? "" : ": ", reason);
  print_mpi("host     ", value.at("mpi"), "host");
  print_mpi("container", value.at("container_mpi"), "path");
  if (outcome == "swap") print_swap(value);
  for (const auto& line : value.at("warnings"))
    fmt::print("warning: {}\n", escape_for_terminal(line.get_ref<const std::string&>()));
} catch (const Json::exception& error) {
  throw Error(name, "is not a decision for a container", error.what());
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
std::string binds_text(const std::string& json, const std::string& name, const std::string& engine,
                       const std::string& mount) try {
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
  const auto value = Json::parse(json);
  bind(mount, value.at("mount_point"));
  bool lacks_directory = false;
  for (const char* list : {"directories", "binds"})
    for (const auto& one : value.at(list))
      if (one.value("exists", true))
        bind(mount + "/" + std::string(one.at("source")), one.at("target"));
      else
        lacks_directory = true;
  if (lacks_directory)
    for (const auto& [variable, setting] : value.at("environment").items())
      out += fmt::format("{}{}={}\n", options.variable, variable, check(setting));
  return out;
} catch (const Json::exception& error) {
  throw Error(name, "is not a decision for a container", error.what());
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
  return fail(path, "cannot be mounted at", "give an absolute path without '.' and '..'");
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
  const auto json = container_json(decision);
  if (decision.outcome == Outcome::swap)
    value_or_throw(write_map(value_or_throw(make_map(host, decision, json)), command.map));
  if (command.json)
    fmt::print("{}", json);
  else
    print_container(json, command.into);
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
  if (!command.engine.empty())
    fmt::print("{}", binds_text(json, command.map, command.engine,
                                is_mount ? std::filesystem::canonical(command.map).string()
                                         : find_mount(json, command.map)));
  else if (command.json)
    fmt::print("{}", json);
  else
    print_container(json, command.map);
  return exit_done;
}

}  // namespace heddle
