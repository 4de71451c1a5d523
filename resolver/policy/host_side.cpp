// SPDX-License-Identifier: MIT
#include "resolver/policy/host_side.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/fd.hpp"
#include "base/paths.hpp"
#include "base/try.hpp"

namespace heddle::policy {
namespace {

// Libraries of an MPI stack by exported names: stable parts of their API that no system library
// exports.
struct Mark {
  const char* part;
  std::ptrdiff_t at_least;  ///< exported names that begin with one of these
  std::vector<std::string_view> prefixes;
};
const Mark kMarks[] = {{"UCX", 3, {"ucp_", "uct_", "ucs_", "ucm_"}},
                       {"libfabric", 1, {"fi_getinfo"}},
                       {"PMIx", 1, {"PMIx_Init"}},
                       {"PSM", 1, {"psm2_init", "psm3_init"}},
                       {"Open MPI", 3, {"opal_", "orte_", "ompi_", "oshmem_"}},
                       {"Open MPI", 1, {"mca_common_"}},
                       {"PRRTE", 3, {"prte_"}}};

std::string stack_part_of(const ElfFacts& facts) {
  for (const auto& [part, at_least, prefixes] : kMarks)
    for (const auto prefix : prefixes)
      if (std::ranges::count_if(facts.exported_symbols, [&, prefix](const auto& symbol) {
            return symbol.name.starts_with(prefix);
          }) >= at_least)
        return part;
  return {};
}

/// The libraries of a glibc build (gnu/lib-names.h) without ld.so.
constexpr const char* kGlibcSonames[] = {
    "libBrokenLocale.so.1",   "libSegFault.so",      "libanl.so.1",       "libc.so.6",
    "libc_malloc_debug.so.0", "libcrypt.so.1",       "libdl.so.2",        "libm.so.6",
    "libmemusage.so",         "libmvec.so.1",        "libnsl.so.1",       "libnss_compat.so.2",
    "libnss_db.so.2",         "libnss_dns.so.2",     "libnss_files.so.2", "libnss_hesiod.so.2",
    "libnss_nis.so.2",        "libnss_nisplus.so.2", "libpcprofile.so",   "libpthread.so.0",
    "libresolv.so.2",         "librt.so.1",          "libthread_db.so.1", "libutil.so.1"};

/// The newest by its number: "GLIBC_2.4" < "GLIBC_2.34".
std::string newest(const std::vector<std::string>& versions) {
  return *std::ranges::max_element(versions, is_older, [](const std::string& version) {
    return version.substr(std::min(version.find('_'), version.size() - 1) + 1);
  });
}

std::set<std::string> public_versions(const ElfFacts& facts) {
  auto out = defined_versions(facts);
  out.erase("GLIBC_PRIVATE");
  return out;
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
  if (const auto& lost = closure.missing; missing_.empty() && !lost.empty())
    missing_ = lost[0].name + ", needed by " + closure.objects[lost[0].needed_by].path;
}

Result<void> HostSide::add(const std::string& path, const std::string& stack_part) {
  home_ = directory_of(path);
  const auto closure = TRY(closure_of(world_, loader_, path, home_));
  const auto& elf = closure.objects[0].file.elf;
  const auto soname = elf.soname.value_or(path.substr(path.rfind('/') + 1));
  files_[soname] = {soname, canonical(path), closure.objects[0].file, stack_part};
  take(closure);
  return {};
}

bool HostSide::add_plugins(const PluginDirectory& directory) {
  if (!plugin_directories_.insert(directory.path).second) return false;
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
  return true;
}

Result<GlibcFamily> read_glibc_family(OsWorld& world) {
  GlibcFamily out;
  out.loader = TRY(read_loader_profile(world, LoaderProfile{}.interpreter));
  const auto& loader = out.loader;
  out.version = "2." + std::to_string(loader.glibc_minor);
  auto ld_so = TRY(world.facts(loader.interpreter));
  // libc lies beside ld.so, or in a default directory.
  std::vector<std::string> directories = {directory_of(canonical(loader.interpreter)) + "/"};
  directories.insert(directories.end(), loader.default_directories.begin(),
                     loader.default_directories.end());
  for (const auto& directory : directories) {
    const auto libc = world.facts(directory + "libc.so.6");
    if (!libc || libc->elf.machine != loader.machine || libc->elf.elf_class != loader.elf_class ||
        !missing_versions(libc->elf, loader.soname, ld_so.elf).empty())
      continue;
    for (const std::string name : kGlibcSonames) {
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
                                 const std::vector<const SideFile*>& host_files) {
  const auto container = "the container's glibc " + inside.glibc();
  std::string reason;
  std::vector<std::string> wanted;
  const SideFile* wanted_by = nullptr;
  for (const auto* file : host_files) {
    std::set<std::string> sonames;
    for (const auto& need : file->file.elf.version_needs)
      if (host.files.contains(need.file)) sonames.insert(need.file);
    for (const auto& soname : sonames) {
      const auto* theirs = inside.find(soname);
      if (theirs == nullptr) {
        if (reason.empty())  // a minimal image may have no libm
          reason = file->path + " needs " + soname + ", which " + container + " lacks";
        continue;
      }
      const auto missing = missing_versions(file->file.elf, soname, theirs->file.elf);
      if (missing.empty()) continue;
      // Prefer a part of the MPI stack as the reason.
      if (wanted_by == nullptr || (wanted_by->stack_part.empty() && !file->stack_part.empty())) {
        wanted_by = file;
        wanted.clear();
      }
      if (wanted_by == file) wanted.insert(wanted.end(), missing.begin(), missing.end());
    }
  }
  if (wanted_by != nullptr)
    reason = wanted_by->path + " needs " + newest(wanted) + ", the container's glibc is " +
             inside.glibc();
  if (reason.empty())
    return GlibcChoice{Side::container, container + " has all that the host's libraries need"};
  GlibcChoice out{Side::host, reason};
  for (const auto& [soname, file] : host.files) {
    const auto* theirs = inside.find(soname);
    if (theirs != nullptr) {
      const auto lost =
          compare_offers(public_versions(file.file.elf), public_versions(theirs->file.elf));
      if (lost == Contains::second || lost == Contains::neither)
        return fail("",
                    reason + ", and the host's glibc " + host.version + " (" + file.path +
                        ") lacks versions that the container's " + soname + " has",
                    "", "use an image whose glibc is at least " + host.version);
    }
    out.choices.push_back({soname, Side::host, file.path, theirs ? theirs->path : "", Rule::glibc,
                           "glibc goes as a whole: " + reason});
  }
  for (const std::string soname : kGlibcSonames) {
    const auto* theirs = inside.find(soname);
    // Names without a number are debugging aids (LD_PRELOAD=libSegFault.so).
    if (theirs != nullptr && !soname.ends_with(".so") && !host.files.contains(soname) &&
        is_glibc_part(theirs->file.elf))
      out.warnings.push_back(theirs->path + ": it belongs to " + container + " and the host's " +
                             host.version + " has none: programs that load it do not start");
  }
  return out;
}

}  // namespace heddle::policy
