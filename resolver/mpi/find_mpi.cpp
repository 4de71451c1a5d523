// SPDX-License-Identifier: MIT
#include "resolver/mpi/find_mpi.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

#include "base/fd.hpp"
#include "resolver/mpi/wrapper_paths.hpp"
#include "resolver/search/ld_so_cache.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

SearchOptions host_search() {
  SearchOptions options;
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) {
    options.ld_library_path = path;
    options.ld_library_path_set = true;
  }
  return options;
}

std::vector<std::string> shortlist(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator walk(folder, error), end; !error && walk != end;
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
  auto closure = closure_of(world, loader, install.library.path, home);
  if (!closure) return fail(std::move(closure.error()));
  std::set<std::string> folders;
  const auto add_folders = [&](const std::string& path, const std::string& soname) {
    std::error_code error;
    const auto real = fs::canonical(path, error).string();
    for (auto& folder : plugin_folders_of(error ? path : real, soname))
      if (folders.insert(folder.path).second) install.plugin_folders.push_back(std::move(folder));
  };
  std::set<std::string> walked;
  for (const auto& object : closure->objects) {
    const auto soname = object.file.elf.soname.value_or("");
    if (&object != &closure->objects.front())
      install.closure.push_back({soname.empty() ? object.requested_as : soname, object.path});
    walked.insert(soname);
    add_folders(object.path, soname);
  }
  for (const auto& missing : closure->missing)
    install.missing.push_back(missing.name + ", needed by " +
                              closure->objects[missing.needed_by].path);
  // Plugins bring libraries that have plugins: Open MPI's mca_pml_ucx.so needs UCX.
  for (std::size_t i = 0; i < install.plugin_folders.size(); ++i) {
    const auto folder = install.plugin_folders[i];
    for (const auto& name : folder.plugins) {
      const auto plugin = closure_of(world, loader, folder.path + "/" + name, home);
      if (!plugin) continue;
      for (const auto& object : plugin->objects)
        if (const auto soname = object.file.elf.soname.value_or(""); walked.insert(soname).second)
          add_folders(object.path, soname);
    }
  }
  return {};
}

Result<MpiInstall> describe(OsWorld& world, const std::string& path, const std::string& found_by) {
  const auto file = world.facts_with_symbols(path);
  if (!file) return fail(file.error());
  const auto bytes = world.read_data(path);
  MpiInstall out;
  out.identity = identify_mpi(file->elf, bytes ? *bytes : std::string());
  out.library = {file->elf.soname.value_or(fs::path(path).filename().string()), path};
  out.aliases = mpi_aliases(out.library.soname, out.identity.abi);
  out.found_by = found_by;
  for (const auto& symbol : file->elf.exported_symbols)
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
                           const std::string& folder) {
  auto search = host_search();
  auto closure = resolve(world, loader, path, search);
  if (!closure || closure->missing.empty() || folder.empty()) return closure;
  search.ld_library_path += (search.ld_library_path.empty() ? "" : ":") + folder;
  search.ld_library_path_set = true;
  return resolve(world, loader, path, search);
}

Result<std::vector<MpiInstall>> find_mpi(OsWorld& world, const FindMpi& options) {
  auto loader = read_loader_profile(world, LoaderProfile{}.interpreter);
  if (!loader) return fail(std::move(loader.error()));
  std::vector<LibraryFolder> folders;
  const auto add = [&](std::vector<LibraryFolder> more) {
    folders.insert(folders.end(), std::make_move_iterator(more.begin()),
                   std::make_move_iterator(more.end()));
  };
  if (!options.prefix.empty()) {
    add(folders_of_prefix(options.prefix, "--prefix"));
  } else {
    add(folders_from_path(options.path_variable));
    add(folders_from_environment());
  }
  Finder finder(world, *loader);
  std::set<std::string> listed;
  for (const auto& folder : folders)
    if (listed.insert(folder.path).second)
      for (const auto& path : shortlist(folder.path)) finder.consider(path, folder.named_by);
  if (options.prefix.empty())
    if (auto bytes = world.read(loader->cache_path)) {
      const LdSoCache cache(std::move(*bytes), *loader);
      for (const auto& line : cache.lines())
        if (may_be_mpi(line.name)) finder.consider(std::string(line.path), loader->cache_path);
    }
  auto found = finder.take();
  if (!options.prefix.empty()) keep_below(options.prefix, found);
  return found;
}

Result<MpiInstall> find_root(OsWorld& world, const std::string& soname) {
  auto path = soname;
  std::string found_by = "--root";
  auto loader = read_loader_profile(world, LoaderProfile{}.interpreter);
  if (!loader) return fail(std::move(loader.error()));
  if (soname.find('/') == soname.npos) {
    auto bytes = world.read(loader->cache_path);
    path = bytes ? std::string(LdSoCache(std::move(*bytes), *loader).lookup(soname)) : "";
    found_by = loader->cache_path;
  }
  std::error_code error;
  const auto real = fs::canonical(path, error).string();
  if (path.empty() || error)
    return fail_errno(soname, "no such library on this machine", ENOENT,
                      "name it by its path, or add its folder with ldconfig");
  auto install = describe(world, real, found_by);
  if (!install) return fail(std::move(install.error()));
  add_bindings(world, *install);
  if (auto added = add_closure_of(world, *loader, *install); !added)
    return fail(std::move(added.error()));
  return install;
}

}  // namespace heddle
