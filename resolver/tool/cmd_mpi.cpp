// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/tool/commands.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// Files that a run opened, and whether they belong to the installation's library, closure,
/// bindings or plugins.
using TracedFiles = std::map<std::string, bool>;

/// `mpiexec` of the installation: beside its library's directory, else by its name in PATH.
Result<std::string> launcher_of(const MpiInstall& install) {
  std::vector<std::string> names = {"mpiexec.hydra", "mpiexec.mpich", "mpiexec"};
  if (install.identity.family == "openmpi")
    names = {"mpiexec.openmpi", "mpirun.openmpi", "mpiexec"};
  const auto directory = fs::path(install.library.path).parent_path();
  for (const char* up : {"../bin", "../../bin"})
    for (const auto& name : names) {
      const auto path = (directory / up / name).lexically_normal().string();
      if (::access(path.c_str(), X_OK) == 0) return path;
    }
  for (const auto& name : names)
    if (auto found = find_program(name)) return found;
  return fail_errno(install.library.path, "its mpiexec is not found", ENOENT, "put it into PATH");
}

/// Launchers refuse two ranks on one core, and root, by default.
void permit_two_ranks() {
  ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
  ::setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1);
  if (::geteuid() == 0)
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                             "PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"})
      ::setenv(name, "1", 1);
}

/// Canonical paths of a trace's successful opens (docs/formats/trace.md).
std::set<std::string> opened_paths(const std::string& trace) {
  std::set<std::string> out;
  std::istringstream lines(trace);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    std::vector<std::string> fields;
    std::istringstream split(line);
    for (std::string field; std::getline(split, field, '\t');) fields.push_back(std::move(field));
    if (fields.size() < 6 || fields[3] != "open" || fields[4] != "OK") continue;
    const auto path = unescape(fields[5]);
    if (!path) continue;
    const auto real = canonical(*path);
    struct stat st {};
    if (real.starts_with("/proc/") || real.starts_with("/sys/") || real.starts_with("/dev/"))
      continue;
    if (::stat(real.c_str(), &st) == 0 && S_ISREG(st.st_mode)) out.insert(real);
  }
  return out;
}

std::set<std::string> known_paths(OsWorld& world, const LoaderProfile& loader,
                                  const MpiInstall& install) {
  std::set<std::string> out = {install.library.path};
  for (const auto* list : {&install.bindings, &install.closure})
    for (const auto& file : *list) out.insert(canonical(file.path));
  for (const auto& directory : install.plugin_directories)
    for (const auto& name : directory.plugins)
      if (const auto closure = closure_of(world, loader, directory.path + "/" + name, ""))
        for (const auto& object : closure->objects) out.insert(canonical(object.path));
  return out;
}

/// The installation that `program` loads its MPI from. Fails when it loads none.
Result<MpiInstall> install_of(OsWorld& world, const std::vector<MpiInstall>& installs,
                              const std::string& program) {
  const auto loader = TRY(read_loader_profile(world, LoaderProfile{}.interpreter));
  const auto closure = TRY(closure_of(world, loader, program, ""));
  for (const auto& object : closure.objects)
    for (const auto& install : installs)
      if (canonical(object.path) == install.library.path) return install;
  return fail(program, "loads none of this machine's MPI libraries");
}

/// Runs two ranks of `program` by the installation's launcher under fs-record. Result: the files of
/// this machine that they and the launcher opened. The program's output goes to stderr. Fails when
/// the run does.
Result<TracedFiles> trace_two_ranks(OsWorld& world, const MpiInstall& install,
                                    const std::string& program) {
  const auto loader = TRY(read_loader_profile(world, LoaderProfile{}.interpreter));
  const auto launcher = TRY(launcher_of(install));
  const auto here = TRY(own_program_dir());
  const auto dir = TRY(TempDir::create("heddle-mpi-trace"));
  const auto trace = dir.path() + "/run.txt";
  SpawnOptions options;
  options.fds = {{STDERR_FILENO, STDOUT_FILENO}};
  permit_two_ranks();
  auto child = TRY(spawn(
      here + "/fs-record",
      {"fs-record", "--quiet", "--op", "open", "--out", trace, "--", launcher, "-n", "2", program},
      options));
  if (const int status = TRY(child.wait()); status != 0)
    return fail(program, "cannot be traced",
                "two ranks of it end with status " + std::to_string(status));
  const auto text = TRY(read_file(trace));
  const auto known = known_paths(world, loader, install);
  TracedFiles out;
  for (const auto& path : opened_paths(text)) {
    if (path.starts_with(dir.path()) || path == canonical(program)) continue;
    const bool in_directory = std::ranges::any_of(
        install.plugin_directories,
        [&](const PluginDirectory& directory) { return path.starts_with(directory.path + "/"); });
    out[path] = in_directory || known.contains(path);
  }
  return out;
}

Json to_json(const std::vector<MpiFile>& files) {
  Json out = Json::array();
  for (const auto& file : files) out.push_back({{"soname", file.soname}, {"path", file.path}});
  return out;
}

Json to_json(const MpiInstall& install) {
  Json directories = Json::array();
  for (const auto& directory : install.plugin_directories)
    directories.push_back({{"path", directory.path},
                           {"view_name", directory.view_name},
                           {"wanted_by", directory.wanted_by},
                           {"beside", directory.beside},
                           {"environment", directory.environment},
                           {"plugins", directory.plugins.size()}});
  return {{"family", install.identity.family},   {"version", install.identity.version},
          {"abi", install.identity.abi},         {"soname", install.library.soname},
          {"path", install.library.path},        {"found_by", install.found_by},
          {"aliases", install.aliases},          {"bindings", to_json(install.bindings)},
          {"closure", to_json(install.closure)}, {"plugin_directories", std::move(directories)},
          {"missing", install.missing}};
}

void print(const MpiInstall& install) {
  fmt::print("  soname    {} ({})\n", escape_for_terminal(install.library.soname),
             install.identity.abi.empty() ? "no MPI" : install.identity.abi);
  fmt::print("  found by  {}\n", escape_for_terminal(install.found_by));
  for (const auto& file : install.bindings)
    fmt::print("  binding   {}\n", escape_for_terminal(file.path));
  fmt::print("  loads     {} libraries\n", install.closure.size());
  for (const auto& directory : install.plugin_directories)
    if (directory.plugins.empty())
      fmt::print("  data      {}\n", escape_for_terminal(directory.path));
    else
      fmt::print("  plugins   {} ({} files)\n", escape_for_terminal(directory.path),
                 directory.plugins.size());
  for (const auto& missing : install.missing)
    fmt::print("  missing   {}\n", escape_for_terminal(missing));
}

}  // namespace

int run_mpi(const Command& command) {
  ResolverSession session;
  auto& world = session.world;
  std::vector<MpiInstall> found;
  if (command.root.empty())
    found = value_or_throw(find_mpi(world, command.prefix));
  else
    found.push_back(value_or_throw(find_root(world, command.root)));
  TracedFiles traced;
  if (!command.program.empty() && !found.empty()) {
    const auto program = fs::absolute(value_or_throw(find_program(command.program))).string();
    found = {value_or_throw(install_of(world, found, program))};
    traced = value_or_throw(trace_two_ranks(world, found[0], program));
  }
  if (command.json) {
    Json out = Json::array();
    for (const auto& install : found) out.push_back(to_json(install));
    if (!command.program.empty() && !found.empty()) {
      Json& opened = out[0]["opened"] = Json::array();
      for (const auto& [path, known] : traced) opened.push_back({{"path", path}, {"known", known}});
    }
    print_json(std::move(out));
  } else {
    for (const auto& install : found) {
      fmt::print("{} {} {}\n", install.identity.family.empty() ? "-" : install.identity.family,
                 install.identity.version.empty() ? "-" : install.identity.version,
                 escape_for_terminal(install.library.path));
      if (!command.list) print(install);
    }
    for (const auto& [path, known] : traced)
      fmt::print("  opened    {}{}\n", escape_for_terminal(path),
                 known ? "" : " (by this run only)");
  }
  if (found.empty())
    report(command.prefix.empty()
               ? Error("mpi", "no MPI library found", "",
                       "name its prefix: fs-resolve mpi --prefix DIR")
               : Error(command.prefix, "no MPI library found", "",
                       "name the directory that libmpi lies in, or the one above its lib"));
  return found.empty() ? exit_no : exit_done;
}

}  // namespace heddle
