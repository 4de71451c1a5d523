// SPDX-License-Identifier: MIT
#include "resolver/mpi/find_mpi.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/run_program.hpp"
#include "base/try.hpp"
#include "resolver/search/ld_so_cache.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// Where an installation may be.

/// A directory that may hold MPI libraries, and what named it.
struct LibraryDirectory {
  std::string path;
  std::string named_by;  ///< "PATH: /usr/bin/mpicc.mpich", "MPI_HOME", ...
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);)
    if (!part.empty()) out.push_back(part);
  return out;
}

/// Names in a directory, sorted; none when it cannot be listed.
std::vector<std::string> list(const std::string& directory) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator walk(directory, error), end; !error && walk != end;
       walk.increment(error))
    out.push_back(walk->path().filename().string());
  std::ranges::sort(out);
  return out;
}

/// The output of `program -show`; empty if it fails.
std::string output_of(const std::string& program) {
  const auto done = run_and_read(
      program, {program, "-show"},
      {.limit = std::chrono::seconds(5), .most_bytes = 65536, .messages = Messages::dropped});
  return done ? done->out : std::string();
}

bool is_wrapper(const std::string& name) {
  return name == "mpicc" || name.starts_with("mpicc.") || name == "mpiicc" || name == "mpiicx";
}
bool is_launcher(const std::string& name) {
  for (const char* known : {"mpiexec", "mpirun", "ompi_info", "mpichversion"})
    if (name == known || name.starts_with(std::string(known) + ".")) return true;
  return false;
}

/// Library directories of an installation's prefix.
std::vector<LibraryDirectory> directories_of_prefix(const std::string& prefix,
                                                    const std::string& why) {
  std::vector<LibraryDirectory> out;
  for (const char* below : {"lib", "lib64", "lib/x86_64-linux-gnu", "lib/release", "lib/release_mt",
                            "intel64/lib", "intel64/lib/release", "lib/aarch64-linux-gnu", "."}) {
    const auto directory = canonical(prefix + "/" + below);
    if (std::error_code none; fs::is_directory(directory, none)) out.push_back({directory, why});
  }
  return out;
}

/// From the places of MPI compilers and launchers in PATH, and from the output of `mpicc -show`,
/// which is executed.
std::vector<LibraryDirectory> directories_from_path() {
  std::vector<LibraryDirectory> out;
  const char* path_variable = std::getenv("PATH");
  std::set<std::string> seen;
  for (const auto& directory : split(path_variable ? path_variable : "", ':')) {
    for (const auto& name : list(directory)) {
      if (!is_wrapper(name) && !is_launcher(name)) continue;
      const auto path = fs::path(directory) / name;
      std::error_code none;
      const auto real = fs::canonical(path, none);
      // Open MPI's compilers are one binary, which behaves by its name.
      if (none ||
          !seen.insert(is_wrapper(name) ? real.string() + " " + name : real.string()).second)
        continue;
      const auto why = "PATH: " + path.string();
      if (is_wrapper(name) && ::access(path.c_str(), X_OK) == 0)
        for (const auto& word : split(output_of(path.string()), ' '))
          if (word.starts_with("-L/")) out.push_back({word.substr(2), why + " -show"});
      for (auto& found : directories_of_prefix(real.parent_path().parent_path().string(), why))
        out.push_back(std::move(found));
    }
  }
  return out;
}

/// From LD_LIBRARY_PATH and the variables of module files.
std::vector<LibraryDirectory> directories_from_environment() {
  std::vector<LibraryDirectory> out;
  if (const char* list = std::getenv("LD_LIBRARY_PATH"))
    for (const auto& directory : split(list, ':')) out.push_back({directory, "LD_LIBRARY_PATH"});
  for (const char* name :
       {"MPI_HOME", "MPI_ROOT", "MPI_DIR", "OPAL_PREFIX", "OPENMPI_ROOT", "EBROOTOPENMPI",
        "MPICH_DIR", "CRAY_MPICH_DIR", "MPICH_HOME", "I_MPI_ROOT", "MVAPICH_HOME", "MVAPICH2_HOME"})
    if (const char* prefix = std::getenv(name); prefix != nullptr && *prefix != '\0')
      for (auto& directory : directories_of_prefix(prefix, name))
        out.push_back(std::move(directory));
  return out;
}

// Files that a library opens at run time.

struct Rule {
  const char* soname;       ///< prefix
  const char* directories;  ///< relative to the library's; the first with a file `has` is taken
  const char* has;          ///< prefix of a file name
  const char* view_name;
  const char* short_name;  ///< nullptr: none
  const char* variable;    ///< nullptr: none
  const char* built_in;    ///< in the library's string before the directory's name
  bool is_data;
};

// Sources: UCX src/ucs/sys/module.c (dladdr of libucs, "ucx" beside); Open MPI
// opal/mca/installdirs (built in, OPAL_*); PMIx the same (PMIX_*); libfabric PROVDLDIR
// (FI_PROVIDER_PATH); hwloc HWLOC_PLUGINS_DIR; rdma-core VERBS_PROVIDER_DIR and IBV_CONFIG_DIR (no
// variable). With the short names the path below the mount fits into the library's string:
// "${libdir}/openmpi", "${libdir}/pmix", "${datadir}/pmix", "/etc/openmpi" or "${prefix}/etc",
// "/etc/libibverbs.d".
constexpr const char* kOpal = "libopen-pal.so.";
constexpr const char* kPmix = "libpmix.so.";
constexpr const char* kVerbs = "libibverbs.so.";
constexpr const char* kComponents =
    "openmpi openmpi/lib/openmpi3 openmpi/lib/openmpi40 openmpi/lib/openmpi openmpi3 openmpi40";
constexpr const char* kShares = "../share/openmpi ../../share/openmpi ../../../share/openmpi";
constexpr const char* kPmixComponents = "pmix pmix2/lib/pmix";
constexpr const char* kVerbsConfig = "../../../etc/libibverbs.d ../../etc/libibverbs.d";
constexpr Rule kRules[] = {
    {"libucs.so.", "ucx", "libuct_", "ucx", nullptr, "UCX_MODULE_DIR", nullptr, false},
    {kOpal, kComponents, "mca_", "ompi", nullptr, "OPAL_PKGLIBDIR", "${libdir}/", false},
    {kOpal, kShares, "help-", "share/openmpi", "share", "OPAL_PKGDATADIR", "${datadir}/", true},
    {kOpal, "../etc ../../../etc/openmpi", "openmpi-mca-params", "etc/openmpi", "",
     "OPAL_SYSCONFDIR", "${prefix}/", true},
    {kPmix, kPmixComponents, "pmix_mca_", "pmix", "pm", "PMIX_PKGLIBDIR", "${libdir}/", false},
    {kPmix, kPmixComponents, "mca_", "pmix", "pm", "PMIX_PKGLIBDIR", "${libdir}/", false},
    {kPmix, "../etc ../share", "pmix-mca-params", "etc/pmix", "", "PMIX_SYSCONFDIR", "${prefix}/",
     true},
    {kPmix, "../share/pmix pmix2/share/pmix", "help-", "share/pmix", "hlp", "PMIX_PKGDATADIR",
     "${datadir}/", true},
    {"libfabric.so.", "libfabric", "lib", "libfabric", nullptr, "FI_PROVIDER_PATH", nullptr, false},
    {"libhwloc.so.", "hwloc", "hwloc_", "hwloc", nullptr, "HWLOC_PLUGINS_PATH", nullptr, false},
    {kVerbs, "libibverbs", "lib", "libibverbs", nullptr, nullptr, nullptr, false},
    {kVerbs, kVerbsConfig, "", "etc/libibverbs.d", "ibv.d", nullptr, nullptr, false},
};

bool is_shared_object(const std::string& name) {
  return name.ends_with(".so") || name.find(".so.") != name.npos;
}

bool fill(PluginDirectory& directory) {
  bool fits = false;
  for (const auto& name : list(directory.path)) {
    if (is_excluded_plugin(name)) continue;
    fits |= name.starts_with(directory.only);
    std::error_code none;
    if (is_shared_object(name) && fs::is_regular_file(directory.path + "/" + name, none))
      directory.plugins.push_back(name);
  }
  return fits;
}

/// The existing plugin directories of the library `path` (canonical) with `soname`.
std::vector<PluginDirectory> plugin_directories_of(const std::string& path,
                                                   const std::string& soname) {
  std::vector<PluginDirectory> out;
  for (const auto& rule : kRules) {
    if (!soname.starts_with(rule.soname)) continue;
    for (const auto& relative : split(rule.directories, ' ')) {
      PluginDirectory directory;
      directory.path = canonical(fs::path(path).parent_path().string() + "/" + relative);
      directory.view_name = rule.view_name;
      directory.wanted_by = path;
      directory.beside = std::string_view(rule.soname) == "libucs.so.";
      if (rule.variable != nullptr) directory.environment = {rule.variable};
      directory.built_in = {directory.path};
      if (rule.built_in != nullptr)
        directory.built_in.push_back(rule.built_in + fs::path(directory.path).filename().string());
      if (rule.short_name != nullptr) directory.short_name = rule.short_name;
      directory.is_data = rule.is_data;
      directory.only = rule.has;
      if (!fill(directory)) continue;
      out.push_back(std::move(directory));
      break;
    }
  }
  return out;
}

// The files of an installation.

std::vector<std::string> shortlist(const std::string& directory) {
  std::vector<std::string> out;
  for (const auto& name : list(directory)) {
    std::error_code none;
    if (const auto path = fs::path(directory) / name;
        may_be_mpi(name) && fs::is_regular_file(path, none))
      out.push_back(path.string());
  }
  return out;
}

void add_bindings(OsWorld& world, MpiInstall& install) {
  struct Candidate {
    MpiFile file;
    std::vector<std::string> needs;
  };
  std::set<std::string> seen = {install.library.path};
  std::vector<Candidate> candidates;
  for (const auto& path : shortlist(fs::path(install.library.path).parent_path().string())) {
    const auto real = canonical(path);
    if (!seen.insert(real).second) continue;
    const auto file = world.facts(real);
    if (file && file->elf.soname)
      candidates.push_back({{*file->elf.soname, real}, needed_names(file->elf)});
  }
  take_users(candidates, {install.aliases.begin(), install.aliases.end()},
             [&](const Candidate& one) {
               install.bindings.push_back(one.file);
               return std::vector{one.file.soname};
             });
}

Result<void> add_closure_of(OsWorld& world, const LoaderProfile& loader, MpiInstall& install) {
  const auto home = fs::path(install.library.path).parent_path().string();
  const auto closure = TRY(closure_of(world, loader, install.library.path, home));
  std::set<std::string> directories;
  const auto add_directories = [&](const std::string& path, const std::string& soname) {
    for (auto& directory : plugin_directories_of(canonical(path), soname))
      if (directories.insert(directory.path).second)
        install.plugin_directories.push_back(std::move(directory));
  };
  std::set<std::string> walked;
  for (const auto& object : closure.objects) {
    const auto soname = object.file.elf.soname.value_or("");
    if (&object != &closure.objects.front())
      install.closure.push_back({soname.empty() ? object.requested_as : soname, object.path});
    walked.insert(soname);
    add_directories(object.path, soname);
  }
  for (const auto& missing : closure.missing)
    install.missing.push_back(missing.name + ", needed by " +
                              closure.objects[missing.needed_by].path);
  // Plugins need libraries with plugins: Open MPI's mca_pml_ucx.so needs UCX.
  for (std::size_t i = 0; i < install.plugin_directories.size(); ++i) {
    const auto directory = install.plugin_directories[i];
    for (const auto& name : directory.plugins) {
      const auto plugin = closure_of(world, loader, directory.path + "/" + name, home);
      if (!plugin) continue;
      for (const auto& object : plugin->objects)
        if (const auto soname = object.file.elf.soname.value_or(""); walked.insert(soname).second)
          add_directories(object.path, soname);
    }
  }
  return {};
}

Result<MpiInstall> describe(OsWorld& world, const LoaderProfile& loader, const std::string& path,
                            const std::string& found_by, bool mpi_only) {
  const auto file = TRY(world.facts_with_symbols(path));
  const auto bytes = world.read_data(path);
  MpiInstall out;
  out.identity = identify_mpi(file.elf, bytes ? *bytes : std::string());
  out.library = {file.elf.soname.value_or(fs::path(path).filename().string()), path};
  out.aliases = mpi_aliases(out.library.soname, out.identity.abi);
  out.found_by = found_by;
  if (mpi_only && out.identity.family.empty()) return out;
  add_bindings(world, out);
  TRY(add_closure_of(world, loader, out));
  return out;
}

}  // namespace

std::string canonical(const std::string& path) {
  std::error_code error;
  const auto real = fs::canonical(path, error).string();
  return error ? path : real;
}

bool is_excluded_plugin(const std::string& file_name) {
  return file_name.starts_with("hwloc_gl.") || file_name.starts_with("hwloc_opencl.");
}

Result<Closure> closure_of(OsWorld& world, const LoaderProfile& loader, const std::string& path,
                           const std::string& directory) {
  SearchOptions search;
  if (const char* list = std::getenv("LD_LIBRARY_PATH")) search.ld_library_path = list;
  auto closure = resolve(world, loader, path, search);
  if (!closure || closure->missing.empty() || directory.empty()) return closure;
  search.ld_library_path += (search.ld_library_path.empty() ? "" : ":") + directory;
  return resolve(world, loader, path, search);
}

Result<std::vector<MpiInstall>> find_mpi(OsWorld& world, const std::string& prefix) {
  const auto loader = TRY(read_loader_profile(world, LoaderProfile{}.interpreter));
  std::vector<MpiInstall> found;
  std::set<std::string> seen;
  const auto consider = [&](const std::string& path, const std::string& found_by) {
    const auto real = canonical(path);
    if (!seen.insert(real).second) return;
    auto install = describe(world, loader, real, found_by, true);
    if (install && !install->identity.family.empty()) found.push_back(std::move(*install));
  };
  if (std::error_code none; fs::is_regular_file(prefix, none)) {
    consider(prefix, "--prefix");
    return found;
  }
  auto directories =
      prefix.empty() ? directories_from_path() : directories_of_prefix(prefix, "--prefix");
  if (prefix.empty())
    for (auto& one : directories_from_environment()) directories.push_back(std::move(one));
  std::set<std::string> listed;
  for (const auto& directory : directories)
    if (listed.insert(directory.path).second)
      for (const auto& path : shortlist(directory.path)) consider(path, directory.named_by);
  if (!prefix.empty()) {
    // Links lead out of a prefix. Those of a view to its packages (Spack, Nix) are all that the
    // prefix has; those of another root file system, to this machine's MPI (Debian's libmpi.so to
    // /etc/alternatives), do not count.
    const auto top = (fs::path(canonical(prefix)) / "").string();
    const auto is_outside = [&](const MpiInstall& one) {
      return !one.library.path.starts_with(top);
    };
    if (!std::ranges::all_of(found, is_outside)) std::erase_if(found, is_outside);
  } else if (auto bytes = world.read(loader.cache_path)) {
    const LdSoCache cache(std::move(*bytes), loader);
    for (const auto& line : cache.lines())
      if (may_be_mpi(line.name)) consider(std::string(line.path), loader.cache_path);
  }
  return found;
}

Result<MpiInstall> find_root(OsWorld& world, const std::string& soname) {
  auto path = soname;
  std::string found_by = "--root";
  const auto loader = TRY(read_loader_profile(world, LoaderProfile{}.interpreter));
  if (soname.find('/') == soname.npos) {
    auto bytes = world.read(loader.cache_path);
    path = bytes ? std::string(LdSoCache(std::move(*bytes), loader).lookup(soname)) : "";
    found_by = loader.cache_path;
  }
  std::error_code error;
  const auto real = fs::canonical(path, error).string();
  if (path.empty() || error)
    return fail_errno(soname, "no such library on this machine", ENOENT,
                      "name it by its path, or add its directory with ldconfig");
  return describe(world, loader, real, found_by, false);
}

}  // namespace heddle
