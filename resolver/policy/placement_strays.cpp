// SPDX-License-Identifier: MIT
// Placement: the host's files over those of the container that are found without ld.so.cache.
#include <set>

#include "base/folder_of.hpp"
#include "resolver/policy/placement.hpp"
#include "resolver/policy/versions.hpp"

namespace heddle {

void Placement::bind_over(const std::string& path, const std::string& source,
                          const std::string& why) {
  const auto target = inside_.world().real_path(path);
  if (!target.empty()) binds_.try_emplace(target, FileBind{source, target, why});
}

/// The host's over each of the container's files that it stands for: also programs that nobody
/// asked us about find it, whose RPATH names a system folder. A container's libc beside the host's
/// ld.so would end them.
void Placement::bind_known(const SideChoice& sides, const GlibcChoice& glibc) {
  const std::string why = "whoever finds this file without ld.so.cache gets the host's too";
  const auto& loader = inside_.loader();
  if (glibc.taken == Side::host) {
    bind_over(loader.interpreter, glibc_.loader.soname, "ld.so and libc are of one build");
    for (const auto& [soname, file] : glibc_.files)
      if (const auto* theirs = inside_.find(soname);
          theirs != nullptr && is_glibc_part(theirs->file.elf))
        bind_over(theirs->path, soname, why);
  }
  for (const auto* list : {&stack_.libraries, &stack_.bindings, &stack_.copies})
    for (const auto& part : *list) {
      if (const auto at = names_.sonames.find(part.soname);
          at != names_.sonames.end() && !stack_.has_to_stay(part))
        bind_over(part.path, at->second, why);
    }
  for (const auto* pick : sides.picks())
    if (pick->taken == Side::host && pick->container)
      bind_over(pick->container->path, pick->host.soname, why);
}

/// Below the mount, or bound over a file of the container.
bool Placement::is_hosts(const std::string& path) {
  return path.starts_with(mount_point_ + "/") || binds_.contains(inside_.world().real_path(path));
}

/// Files of the container that are found before the cache is asked (RPATH, RUNPATH,
/// LD_LIBRARY_PATH, a name with a slash) get the host's bound over them.
bool Placement::bind_strays(const Closure& closure) {
  bool more = false;
  for (std::size_t i = 1; i < closure.objects.size(); ++i) {
    const auto& object = closure.objects[i];
    if (object.path.starts_with(mount_point_ + "/") || object.found_by == FoundBy::interpreter)
      continue;
    const auto target = inside_.world().real_path(object.path);
    if (target.empty()) continue;
    if (object.found_by == FoundBy::rpath || object.found_by == FoundBy::runpath)
      found_by_tag_.insert(target);
    if (binds_.contains(target)) continue;
    auto name = object.file.elf.soname.value_or("");
    if (const auto* part = stack_.part_of(object.file.stamp.id)) name = part->soname;
    auto at = names_.sonames.find(name);
    for (const auto& other : object.names)
      if (at == names_.sonames.end()) at = names_.sonames.find(other);
    if (at == names_.sonames.end()) continue;
    more = true;
    bind_over(object.path, at->second,
              object.path + " is found by " + to_string(object.found_by) + ", not by ld.so.cache");
  }
  return more;
}

/// A plugin's own libraries are looked for in the RPATH of the program that loads it too
/// (elf/dl-load.c: the loaders' up to the program's), which resolving it alone does not show.
bool Placement::bind_strays_of_plugins(SwappedWorld& world, const LoaderProfile& loader) {
  bool more = false;
  for (const auto& program : inside_.programs()) {
    const auto& elf = program.closure.objects[0].file.elf;
    if (!elf.rpath || elf.runpath) continue;
    for (const auto& [name, path] : names_.files) {
      const auto plugin = mount_point_ + "/" + name;
      if (!is_plugin_name(name) || plugin.find_first_of(" :") != plugin.npos) continue;
      auto options = search_;
      options.ld_preload = plugin;
      if (const auto closure = resolve(world, loader, program.path, options))
        more |= bind_strays(*closure);
    }
  }
  return more;
}

}  // namespace heddle
