// SPDX-License-Identifier: MIT
#include "resolver/tool/mpi_trace.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "base/escape.hpp"
#include "base/find_program.hpp"
#include "base/child.hpp"
#include "base/temp_dir.hpp"

extern char** environ;

namespace heddle {
namespace {

namespace fs = std::filesystem;

std::string canonical(const std::string& path) {
  std::error_code error;
  const auto real = fs::canonical(path, error).string();
  return error ? path : real;
}

/// `mpiexec` of the installation: beside its library's folder, else by its name in PATH.
Result<std::string> launcher_of(const MpiInstall& install) {
  const bool open_mpi = install.identity.family == "openmpi";
  const std::vector<std::string> names =
      open_mpi ? std::vector<std::string>{"mpiexec.openmpi", "mpirun.openmpi", "mpiexec"}
               : std::vector<std::string>{"mpiexec.hydra", "mpiexec.mpich", "mpiexec"};
  const auto folder = fs::path(install.library.path).parent_path();
  for (const char* up : {"../bin", "../../bin"})
    for (const auto& name : names) {
      const auto path = (folder / up / name).lexically_normal().string();
      if (::access(path.c_str(), X_OK) == 0) return path;
    }
  const char* path = std::getenv("PATH");
  for (const auto& name : names)
    if (auto found = find_program(name, path ? path : "")) return found;
  return fail_errno(install.library.path, "its mpiexec is not to be found", ENOENT,
                    "put it into PATH");
}

std::vector<std::string> environment() {
  std::vector<std::string> out;
  for (char** entry = ::environ; *entry != nullptr; ++entry) out.emplace_back(*entry);
  // Two ranks on a machine of one core, and root in a container, are refused by default.
  out.insert(out.end(), {"OMPI_MCA_rmaps_base_oversubscribe=1",
                         "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"});
  if (::geteuid() == 0)
    out.insert(out.end(), {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                           "PRTE_ALLOW_RUN_AS_ROOT=1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1"});
  return out;
}

/// Paths of a trace's successful opens (docs/formats/trace.md); links followed.
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
    const auto is_below = [&](const char* folder) { return real.starts_with(folder); };
    if (is_below("/proc/") || is_below("/sys/") || is_below("/dev/")) continue;
    if (::stat(real.c_str(), &st) == 0 && S_ISREG(st.st_mode)) out.insert(real);
  }
  return out;
}

std::set<std::string> known_paths(OsWorld& world, const LoaderProfile& loader,
                                  const MpiInstall& install) {
  std::set<std::string> out = {install.library.path};
  for (const auto* list : {&install.bindings, &install.closure})
    for (const auto& file : *list) out.insert(canonical(file.path));
  for (const auto& folder : install.plugin_folders)
    for (const auto& name : folder.plugins)
      if (const auto closure = closure_of(world, loader, folder.path + "/" + name, ""))
        for (const auto& object : closure->objects) out.insert(canonical(object.path));
  return out;
}

}  // namespace

Result<std::size_t> install_of(OsWorld& world, const std::vector<MpiInstall>& installs,
                               const std::string& program) {
  auto loader = read_loader_profile(world, LoaderProfile{}.interpreter);
  if (!loader) return fail(std::move(loader.error()));
  const auto closure = closure_of(world, *loader, program, "");
  if (!closure) return fail(closure.error());
  for (const auto& object : closure->objects)
    for (std::size_t i = 0; i < installs.size(); ++i)
      if (canonical(object.path) == installs[i].library.path) return i;
  return fail(program, "loads none of this machine's MPI libraries");
}

Result<std::vector<TracedFile>> trace_two_ranks(OsWorld& world, const MpiInstall& install,
                                                const std::string& program) {
  auto loader = read_loader_profile(world, LoaderProfile{}.interpreter);
  if (!loader) return fail(std::move(loader.error()));
  const auto launcher = launcher_of(install);
  if (!launcher) return fail(launcher.error());
  const auto here = own_program_dir();
  if (!here) return fail(here.error());
  auto dir = TempDir::create("heddle-mpi-trace");
  if (!dir) return fail(std::move(dir.error()));
  const auto trace = dir->path() + "/run.txt";
  SpawnOptions options;
  options.fds = {{STDERR_FILENO, STDOUT_FILENO}};
  options.environment = environment();
  auto child = spawn(
      *here + "/fs-record",
      {"fs-record", "--quiet", "--op", "open", "--out", trace, "--", *launcher, "-n", "2", program},
      options);
  if (!child) return fail(std::move(child.error()));
  const auto status = child->wait();
  if (!status) return fail(status.error());
  if (*status != 0)
    return fail(program, "cannot be traced",
                "two ranks of it end with status " + std::to_string(*status));
  const auto text = read_file(trace);
  if (!text) return fail(text.error());
  const auto known = known_paths(world, *loader, install);
  std::vector<TracedFile> out;
  for (const auto& path : opened_paths(*text)) {
    if (path.starts_with(dir->path()) || path == canonical(program)) continue;
    const bool in_folder = std::any_of(
        install.plugin_folders.begin(), install.plugin_folders.end(),
        [&](const PluginFolder& folder) { return path.starts_with(folder.path + "/"); });
    out.push_back({path, in_folder || known.contains(path)});
  }
  return out;
}

}  // namespace heddle
