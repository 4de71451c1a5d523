// SPDX-License-Identifier: MIT
#include "resolver/mpi/find_mpi.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>

#include "base/child.hpp"
#include "base/fd.hpp"
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

/// What the program prints, at most 64 KiB, and no more than five seconds waited for.
std::string output_of(const std::string& program) {
  auto pipe = make_pipe();
  auto null = open_file("/dev/null", O_RDWR);
  if (!pipe || !null) return {};
  auto child = spawn(program, {program, "-show"},
                     {.fds = {{null->get(), 0}, {pipe->write_end.get(), 1}, {null->get(), 2}}});
  if (!child) return {};
  pipe->write_end.reset();
  std::string out;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (out.size() < 65536) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd entry{pipe->read_end.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) <= 0) break;
    std::array<char, 4096> buffer;
    const auto got = ::read(pipe->read_end.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    out.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return out;  // ~Child kills one that goes on
}

bool is_wrapper(const std::string& name) {
  return name == "mpicc" || name.starts_with("mpicc.") || name == "mpiicc" || name == "mpiicx";
}
bool is_launcher(const std::string& name) {
  for (const char* known : {"mpiexec", "mpirun", "ompi_info", "mpichversion"})
    if (name == known || name.starts_with(std::string(known) + ".")) return true;
  return false;
}

/// Directories below an installation's prefix, or itself.
std::vector<LibraryDirectory> directories_of_prefix(const std::string& prefix,
                                                    const std::string& why) {
  std::vector<LibraryDirectory> out;
  for (const char* below : {"lib", "lib64", "lib/x86_64-linux-gnu", "lib/release", "lib/release_mt",
                            "intel64/lib", "intel64/lib/release", "lib/aarch64-linux-gnu", "."}) {
    std::error_code error;
    const auto directory = fs::canonical(fs::path(prefix) / below, error);
    if (!error && fs::is_directory(directory, error)) out.push_back({directory.string(), why});
  }
  return out;
}

/// Directories named by the MPI compilers and launchers of `path_variable`, and what `mpicc -show`
/// of each prints: that command is run, with a deadline of five seconds.
std::vector<LibraryDirectory> directories_from_path(const std::string& path_variable) {
  std::vector<LibraryDirectory> out;
  std::set<std::string> seen;
  for (const auto& directory : split(path_variable, ':')) {
    std::error_code error;
    std::vector<std::string> names;
    for (fs::directory_iterator walk(directory, error), end; !error && walk != end;
         walk.increment(error)) {
      const auto name = walk->path().filename().string();
      if (is_wrapper(name) || is_launcher(name)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    for (const auto& name : names) {
      const auto path = fs::path(directory) / name;
      std::error_code none;
      const auto real = fs::canonical(path, none);
      // Open MPI's compilers are one binary that goes by its name.
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

/// Directories named by LD_LIBRARY_PATH and by what module files set (MPI_HOME, I_MPI_ROOT, ...).
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

// What a library opens at run time.

enum class Holds : bool { plugins, data };

struct Rule {
  const char* soname;  ///< prefix
  /// Below the library's directory; the first that holds a file `has` is it.
  std::vector<const char*> directories;
  const char* has;  ///< prefix of a file name in it
  const char* view_name;
  bool beside;
  std::vector<std::string> environment;
  const char* built_in = nullptr;  ///< what a library may have before the directory's own name
  std::optional<std::string> short_name = {};
  Holds holds = Holds::plugins;
};

// Where each looks: UCX src/ucs/sys/module.c (dladdr of libucs, "ucx" beside); Open MPI
// opal/mca/installdirs (built in, OPAL_*); PMIx the same (PMIX_*); libfabric PROVDLDIR
// (FI_PROVIDER_PATH); hwloc HWLOC_PLUGINS_DIR; rdma-core VERBS_PROVIDER_DIR and IBV_CONFIG_DIR (no
// variable). Names in a view are short where the mount's path of them must fit where the library's
// own string stands: "${libdir}/openmpi", "${libdir}/pmix", "${datadir}/pmix", "/etc/openmpi" or
// "${prefix}/etc", "/etc/libibverbs.d".
const std::vector<Rule>& rules() {
  static const std::vector<Rule> kRules = {
      {"libucs.so.", {"ucx"}, "libuct_", "ucx", true, {"UCX_MODULE_DIR"}},
      {"libopen-pal.so.",
       {"openmpi", "openmpi/lib/openmpi3", "openmpi/lib/openmpi40", "openmpi/lib/openmpi",
        "openmpi3", "openmpi40"},
       "mca_",
       "ompi",
       false,
       {"OPAL_PKGLIBDIR"},
       "${libdir}/"},
      {"libopen-pal.so.",
       {"../share/openmpi", "../../share/openmpi", "../../../share/openmpi"},
       "help-",
       "share/openmpi",
       false,
       {"OPAL_PKGDATADIR"},
       "${datadir}/",
       "share",
       Holds::data},
      {"libopen-pal.so.",
       {"../etc", "../../../etc/openmpi"},
       "openmpi-mca-params",
       "etc/openmpi",
       false,
       {"OPAL_SYSCONFDIR"},
       "${prefix}/",
       "",
       Holds::data},
      {"libpmix.so.",
       {"pmix", "pmix2/lib/pmix"},
       "pmix_mca_",
       "pmix",
       false,
       {"PMIX_PKGLIBDIR"},
       "${libdir}/",
       "pm"},
      {"libpmix.so.",
       {"pmix", "pmix2/lib/pmix"},
       "mca_",
       "pmix",
       false,
       {"PMIX_PKGLIBDIR"},
       "${libdir}/",
       "pm"},
      {"libpmix.so.",
       {"../etc", "../share"},
       "pmix-mca-params",
       "etc/pmix",
       false,
       {"PMIX_SYSCONFDIR"},
       "${prefix}/",
       "",
       Holds::data},
      {"libpmix.so.",
       {"../share/pmix", "pmix2/share/pmix"},
       "help-",
       "share/pmix",
       false,
       {"PMIX_PKGDATADIR"},
       "${datadir}/",
       "hlp",
       Holds::data},
      {"libfabric.so.", {"libfabric"}, "lib", "libfabric", false, {"FI_PROVIDER_PATH"}},
      {"libhwloc.so.", {"hwloc"}, "hwloc_", "hwloc", false, {"HWLOC_PLUGINS_PATH"}},
      {"libibverbs.so.", {"libibverbs"}, "lib", "libibverbs", false, {}},
      {"libibverbs.so.",
       {"../../../etc/libibverbs.d", "../../etc/libibverbs.d"},
       "",
       "etc/libibverbs.d",
       false,
       {},
       nullptr,
       "ibv.d"},
  };
  return kRules;
}

bool is_shared_object(const std::string& name) {
  return name.ends_with(".so") || name.find(".so.") != name.npos;
}

bool fill(PluginDirectory& directory, const std::string& has) {
  std::error_code error;
  bool fits = false;
  for (fs::directory_iterator walk(directory.path, error), end; !error && walk != end;
       walk.increment(error)) {
    const auto name = walk->path().filename().string();
    fits |= name.starts_with(has);
    std::error_code none;
    if (is_shared_object(name) && walk->is_regular_file(none)) directory.plugins.push_back(name);
  }
  std::sort(directory.plugins.begin(), directory.plugins.end());
  return fits;
}

/// The directories that the library `path` (symlink-free) with `soname` looks into and that are
/// there.
std::vector<PluginDirectory> plugin_directories_of(const std::string& path,
                                                   const std::string& soname) {
  std::vector<PluginDirectory> out;
  for (const auto& rule : rules()) {
    if (!soname.starts_with(rule.soname)) continue;
    for (const auto* relative : rule.directories) {
      std::error_code error;
      const auto place = fs::canonical(fs::path(path).parent_path() / relative, error);
      if (error) continue;
      PluginDirectory directory;
      directory.path = place.string();
      directory.view_name = rule.view_name;
      directory.wanted_by = path;
      directory.beside = rule.beside;
      directory.environment = rule.environment;
      directory.built_in = {directory.path};
      if (rule.built_in != nullptr)
        directory.built_in.push_back(rule.built_in + place.filename().string());
      directory.short_name = rule.short_name;
      directory.is_data = rule.holds == Holds::data;
      directory.only = rule.has;
      if (!fill(directory, rule.has)) continue;
      out.push_back(std::move(directory));
      break;
    }
  }
  return out;
}

// What an installation has.

SearchOptions host_search() {
  SearchOptions options;
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) {
    options.ld_library_path = path;
    options.ld_library_path_set = true;
  }
  return options;
}

std::vector<std::string> shortlist(const std::string& directory) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator walk(directory, error), end; !error && walk != end;
       walk.increment(error)) {
    const auto name = walk->path().filename().string();
    std::error_code none;
    if (may_be_mpi(name) && walk->is_regular_file(none)) out.push_back(walk->path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

class Finder {
 public:
  Finder(OsWorld& world, const LoaderProfile& loader) : world_(world), loader_(loader) {}

  void consider(const std::string& path, const std::string& found_by);
  std::vector<MpiInstall> take() { return std::move(found_); }

 private:
  OsWorld& world_;
  const LoaderProfile& loader_;
  std::set<std::string> seen_;
  std::vector<MpiInstall> found_;
};

/// What needs the library, or another of its bindings (libmpi_usempif08 needs libmpi_mpifh).
void add_bindings(OsWorld& world, MpiInstall& install) {
  std::set<std::string> seen = {install.library.path};
  std::vector<std::pair<MpiFile, std::vector<Dependency>>> candidates;
  for (const auto& path : shortlist(fs::path(install.library.path).parent_path().string())) {
    std::error_code error;
    const auto real = fs::canonical(path, error).string();
    if (error || !seen.insert(real).second) continue;
    const auto file = world.facts(real);
    if (file && file->elf.soname)
      candidates.push_back({{*file->elf.soname, real}, file->elf.dependencies});
  }
  std::set<std::string> family(install.aliases.begin(), install.aliases.end());
  for (bool more = true; more;) {
    more = std::erase_if(candidates, [&](const auto& candidate) {
             const auto& [file, needs] = candidate;
             if (std::none_of(needs.begin(), needs.end(),
                              [&](const Dependency& need) { return family.contains(need.name); }))
               return false;
             install.bindings.push_back(file);
             family.insert(file.soname);
             return true;
           }) != 0;
  }
}

Result<void> add_closure_of(OsWorld& world, const LoaderProfile& loader, MpiInstall& install) {
  const auto home = fs::path(install.library.path).parent_path().string();
  const auto closure = TRY(closure_of(world, loader, install.library.path, home));
  std::set<std::string> directories;
  const auto add_directories = [&](const std::string& path, const std::string& soname) {
    std::error_code error;
    const auto real = fs::canonical(path, error).string();
    for (auto& directory : plugin_directories_of(error ? path : real, soname))
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
  // Plugins bring libraries that have plugins: Open MPI's mca_pml_ucx.so needs UCX.
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

Result<MpiInstall> describe(OsWorld& world, const std::string& path, const std::string& found_by) {
  const auto file = TRY(world.facts_with_symbols(path));
  const auto bytes = world.read_data(path);
  MpiInstall out;
  out.identity = identify_mpi(file.elf, bytes ? *bytes : std::string());
  out.library = {file.elf.soname.value_or(fs::path(path).filename().string()), path};
  out.aliases = mpi_aliases(out.library.soname, out.identity.abi);
  out.found_by = found_by;
  for (const auto& symbol : file.elf.exported_symbols)
    out.mpi_symbols += symbol.name.starts_with("MPI_");
  return out;
}

void Finder::consider(const std::string& path, const std::string& found_by) {
  std::error_code error;
  const auto real = fs::canonical(path, error).string();
  if (error || !seen_.insert(real).second) return;
  auto install = describe(world_, real, found_by);
  if (!install || install->identity.family.empty()) return;
  add_bindings(world_, *install);
  if (!add_closure_of(world_, loader_, *install)) return;
  found_.push_back(std::move(*install));
}

/// Links lead out of a prefix: those of a view to the packages (Spack, Nix), which is all that it
/// has; and those of another root file system to this machine's MPI (Debian's libmpi.so to
/// /etc/alternatives), which is none of its own.
void keep_below(const std::string& prefix, std::vector<MpiInstall>& found) {
  std::error_code error;
  const auto top = fs::canonical(prefix, error) / "";
  const auto is_below = [&](const MpiInstall& install) {
    return install.library.path.starts_with(top.string());
  };
  if (std::any_of(found.begin(), found.end(), is_below))
    std::erase_if(found, std::not_fn(is_below));
}

}  // namespace

Result<Closure> closure_of(OsWorld& world, const LoaderProfile& loader, const std::string& path,
                           const std::string& directory) {
  auto search = host_search();
  auto closure = resolve(world, loader, path, search);
  if (!closure || closure->missing.empty() || directory.empty()) return closure;
  search.ld_library_path += (search.ld_library_path.empty() ? "" : ":") + directory;
  search.ld_library_path_set = true;
  return resolve(world, loader, path, search);
}

Result<std::vector<MpiInstall>> find_mpi(OsWorld& world, const FindMpi& options) {
  const auto loader = TRY(read_loader_profile(world, LoaderProfile{}.interpreter));
  std::vector<LibraryDirectory> directories;
  const auto add = [&](std::vector<LibraryDirectory> more) {
    directories.insert(directories.end(), std::make_move_iterator(more.begin()),
                       std::make_move_iterator(more.end()));
  };
  if (!options.prefix.empty()) {
    add(directories_of_prefix(options.prefix, "--prefix"));
  } else {
    add(directories_from_path(options.path_variable));
    add(directories_from_environment());
  }
  Finder finder(world, loader);
  std::set<std::string> listed;
  for (const auto& directory : directories)
    if (listed.insert(directory.path).second)
      for (const auto& path : shortlist(directory.path)) finder.consider(path, directory.named_by);
  if (options.prefix.empty())
    if (auto bytes = world.read(loader.cache_path)) {
      const LdSoCache cache(std::move(*bytes), loader);
      for (const auto& line : cache.lines())
        if (may_be_mpi(line.name)) finder.consider(std::string(line.path), loader.cache_path);
    }
  auto found = finder.take();
  if (!options.prefix.empty()) keep_below(options.prefix, found);
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
  auto install = TRY(describe(world, real, found_by));
  add_bindings(world, install);
  TRY(add_closure_of(world, loader, install));
  return install;
}

}  // namespace heddle
