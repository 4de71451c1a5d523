// SPDX-License-Identifier: MIT
#include "resolver/policy/host_side.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/try.hpp"

namespace heddle::policy {
namespace {

namespace fs = std::filesystem;

std::string canonical(const std::string& path) {
  std::error_code error;
  const auto real = fs::canonical(path, error).string();
  return error ? path : real;
}

struct Mark {
  const char* part;
  const char* prefix;
  std::size_t at_least;  ///< exported names that begin so
};
// What these libraries' users call them by: a name that is part of their API stands for good, and
// no system library exports one.
constexpr Mark kMarks[] = {
    {"UCX", "ucp_", 3},
    {"UCX", "uct_", 3},
    {"UCX", "ucs_", 3},
    {"UCX", "ucm_", 3},
    {"libfabric", "fi_getinfo", 1},
    {"PMIx", "PMIx_Init", 1},
    {"PSM", "psm2_init", 1},
    {"PSM", "psm3_init", 1},
    {"Open MPI", "opal_", 3},
    {"Open MPI", "orte_", 3},
    {"Open MPI", "ompi_", 3},
    {"Open MPI", "mca_common_", 1},
    {"Open MPI", "oshmem_", 3},
    {"PRRTE", "prte_", 3},
};

std::string stack_part_of(const ElfFacts& facts) {
  for (const auto& mark : kMarks) {
    const auto count = static_cast<std::size_t>(std::count_if(
        facts.exported_symbols.begin(), facts.exported_symbols.end(),
        [&](const DynamicSymbol& symbol) { return symbol.name.starts_with(mark.prefix); }));
    if (count >= mark.at_least) return mark.part;
  }
  return {};
}

/// What one build of glibc installs (gnu/lib-names.h), ld.so left out.
const std::vector<std::string>& glibc_sonames() {
  static const std::vector<std::string> kNames = {
      "libBrokenLocale.so.1",   "libSegFault.so",      "libanl.so.1",       "libc.so.6",
      "libc_malloc_debug.so.0", "libcrypt.so.1",       "libdl.so.2",        "libm.so.6",
      "libmemusage.so",         "libmvec.so.1",        "libnsl.so.1",       "libnss_compat.so.2",
      "libnss_db.so.2",         "libnss_dns.so.2",     "libnss_files.so.2", "libnss_hesiod.so.2",
      "libnss_nis.so.2",        "libnss_nisplus.so.2", "libpcprofile.so",   "libpthread.so.0",
      "libresolv.so.2",         "librt.so.1",          "libthread_db.so.1", "libutil.so.1"};
  return kNames;
}

/// The newest by its number: "GLIBC_2.4" < "GLIBC_2.34".
std::string newest(const std::vector<std::string>& versions) {
  const auto number = [](const std::string& version) {
    return version.substr(std::min(version.find('_'), version.size() - 1) + 1);
  };
  return *std::max_element(
      versions.begin(), versions.end(),
      [&](const std::string& a, const std::string& b) { return is_older(number(a), number(b)); });
}

std::vector<std::string> public_versions(const ElfFacts& facts) {
  auto out = facts.version_definitions;
  std::erase(out, "GLIBC_PRIVATE");
  return out;
}

/// The file's own ld.so first: it is no library that a cache leads to.
const FileFacts* container_file(ContainerSide& inside, const std::string& soname,
                                Result<FileFacts>& ld_so) {
  if (soname == inside.loader().soname) return ld_so ? &*ld_so : nullptr;
  const auto* found = inside.find(soname);
  return found == nullptr ? nullptr : &found->file;
}

}  // namespace

void HostSide::take(const Closure& closure) {
  for (std::size_t i = 1; i < closure.objects.size(); ++i) {
    const auto& object = closure.objects[i];
    if (object.found_by == FoundBy::interpreter) continue;
    const auto soname = object.file.elf.soname.value_or(
        object.requested_as.substr(object.requested_as.rfind('/') + 1));
    const auto [slot, is_new] = files_.try_emplace(soname);
    if (!is_new) continue;
    slot->second = {soname, canonical(object.path), object.file, {}};
    if (is_glibc_part(object.file.elf)) continue;
    if (const auto* facts = symbols_.of(slot->second.path))
      slot->second.stack_part = stack_part_of(*facts);
  }
  for (const auto& missing : closure.missing) {
    auto line = missing.name + ", needed by " + closure.objects[missing.needed_by].path;
    if (std::find(missing_.begin(), missing_.end(), line) == missing_.end())
      missing_.push_back(std::move(line));
  }
}

Result<void> HostSide::add(const std::string& path, const std::string& stack_part) {
  home_ = path.substr(0, path.rfind('/'));
  const auto closure = TRY(closure_of(world_, loader_, path, home_));
  const auto& elf = closure.objects[0].file.elf;
  const auto soname = elf.soname.value_or(path.substr(path.rfind('/') + 1));
  files_[soname] = {soname, canonical(path), closure.objects[0].file, stack_part};
  take(closure);
  return {};
}

void HostSide::add_plugins(const PluginDirectory& directory) {
  std::vector<std::string> paths;
  for (const auto& name : directory.plugins) paths.push_back(directory.path + "/" + name);
  world_.prefetch(paths);
  for (const auto& name : directory.plugins) {
    const auto path = directory.path + "/" + name;
    const auto closure = closure_of(world_, loader_, path, home_);
    if (!closure) continue;
    const auto below = directory.view_name + "/" + name;
    plugins_[below] = {below, canonical(path), closure->objects[0].file, {}};
    take(*closure);
  }
}

Result<GlibcFamily> read_glibc_family(OsWorld& world) {
  GlibcFamily out;
  out.loader = TRY(read_loader_profile(world, LoaderProfile{}.interpreter));
  const auto& loader = out.loader;
  out.version = "2." + std::to_string(loader.glibc_minor);
  auto ld_so = TRY(world.facts(loader.interpreter));
  // libc's directory is ld.so's, or one of the default ones.
  std::vector<std::string> directories = {
      fs::path(canonical(loader.interpreter)).parent_path().string() + "/"};
  directories.insert(directories.end(), loader.default_directories.begin(),
                     loader.default_directories.end());
  for (const auto& directory : directories) {
    const auto libc = world.facts(directory + "libc.so.6");
    if (!libc || libc->elf.machine != loader.machine || libc->elf.elf_class != loader.elf_class ||
        !missing_versions(libc->elf, loader.soname, ld_so.elf).empty())
      continue;
    for (const auto& name : glibc_sonames()) {
      auto file = world.facts(directory + name);
      if (!file || !is_glibc_part(file->elf) ||
          !missing_versions(file->elf, "libc.so.6", libc->elf).empty())
        continue;
      out.files[name] = {name, canonical(directory + name), std::move(*file), "glibc"};
    }
    out.files[loader.soname] = {loader.soname, canonical(loader.interpreter), std::move(ld_so),
                                "glibc"};
    return out;
  }
  return fail(loader.interpreter, "cannot find the libc.so.6 that belongs to it");
}

Result<GlibcChoice> choose_glibc(const GlibcFamily& host, ContainerSide& inside,
                                 const std::vector<const HostFile*>& host_files) {
  GlibcChoice out;
  const auto& loader = inside.loader();
  out.container_version = "2." + std::to_string(loader.glibc_minor);
  auto ld_so = inside.world().facts(loader.interpreter);
  std::vector<std::string> wanted;
  std::string wanted_by;
  bool by_stack = false;
  std::string lacking;  // an image of but what its own program needs may have no libm
  for (const auto* file : host_files) {
    std::set<std::string> sonames;
    for (const auto& need : file->file.elf.version_needs)
      if (host.files.contains(need.file)) sonames.insert(need.file);
    for (const auto& soname : sonames) {
      const auto* theirs = container_file(inside, soname, ld_so);
      if (theirs == nullptr) {
        if (lacking.empty())
          lacking = file->path + " needs " + soname + ", which the container's glibc " +
                    out.container_version + " lacks";
        continue;
      }
      const auto missing = missing_versions(file->file.elf, soname, theirs->elf);
      if (missing.empty()) continue;
      // The MPI itself explains more than some library behind it.
      const bool better = !by_stack && !file->stack_part.empty();
      if (better) wanted.clear();
      by_stack |= better;
      if (wanted.empty()) wanted_by = file->path;
      if (wanted_by == file->path) wanted.insert(wanted.end(), missing.begin(), missing.end());
    }
  }
  if (wanted.empty() && lacking.empty()) {
    out.why = "the container's glibc " + out.container_version +
              " has all that the host's libraries need";
    return out;
  }
  const auto reason = wanted.empty() ? lacking
                                     : wanted_by + " needs " + newest(wanted) +
                                           ", the container's glibc is " + out.container_version;
  out.why = reason;
  out.taken = Side::host;
  for (const auto& [soname, file] : host.files) {
    const auto* theirs = container_file(inside, soname, ld_so);
    if (theirs != nullptr) {
      const auto mine = public_versions(file.file.elf);
      const auto lost = compare_offers(mine, public_versions(theirs->elf));
      if (lost == Contains::second || lost == Contains::neither)
        return fail(Error({},
                          reason + ", and the host's glibc " + host.version + " (" + file.path +
                              ") lacks versions that the container's " + soname + " has",
                          {}, "use an image whose glibc is at least " + host.version));
    }
    const auto* found = soname == loader.soname ? nullptr : inside.find(soname);
    out.verdicts.push_back({soname, Side::host, file.path,
                            found != nullptr          ? found->path
                            : soname == loader.soname ? loader.interpreter
                                                      : "",
                            Rule::glibc, "glibc goes as a whole: " + reason});
  }
  for (const auto& soname : glibc_sonames()) {
    const auto* theirs = inside.find(soname);
    // Names without a number are aids to debug with (LD_PRELOAD=libSegFault.so).
    if (theirs != nullptr && !soname.ends_with(".so") && !host.files.contains(soname) &&
        is_glibc_part(theirs->file.elf))
      out.warnings.push_back(theirs->path + ": it belongs to the container's glibc " +
                             out.container_version + " and the host's " + host.version +
                             " has none: programs that load it do not start");
  }
  return out;
}

}  // namespace heddle::policy
