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
      if (changes_ && list == &stack_.copies) continue;
      if (const auto at = names_.sonames.find(part.soname);
          at != names_.sonames.end() && !is_left_alone(part.path, part.soname) &&
          !stack_.has_to_stay(part))
        bind_over(part.path, at->second, why);
    }
  for (const auto* pick : sides.picks())
    if (pick->taken == Side::host && pick->container &&
        !is_left_alone(pick->container->path, pick->host.soname))
      bind_over(pick->container->path, pick->host.soname, why);
}

/// With changed tags: the container's file that they alone lead to.
bool Placement::is_left_alone(const std::string& path, const std::string& soname) {
  if (!changes_) return false;
  const auto target = inside_.world().real_path(path);
  if (const std::string cached(inside_.cache().lookup(soname));
      !cached.empty() && inside_.world().real_path(cached) == target)
    return false;
  for (const auto& program : inside_.programs())
    for (const auto& object : program.closure.objects)
      if ((object.found_by == FoundBy::rpath || object.found_by == FoundBy::runpath) &&
          inside_.world().real_path(object.path) == target)
        return true;
  return false;
}

/// Below the mount, or bound over a file of the container.
bool Placement::is_hosts(const std::string& path) {
  return path.starts_with(mount_point_ + "/") || binds_.contains(inside_.world().real_path(path));
}

/// Has the tags that led to `strays`, by the object that has them, lead to the mount. Empty: done;
/// else why they cannot. One that is a stray itself is left as it is: the next round has the host's
/// in its place, and programs that nobody asked about go on with it and with what it leads to.
std::string Placement::change_tags(const Closure& closure, const StraysByOwner& strays) {
  std::set<const LoadedObject*> astray;
  for (const auto& [owner, found] : strays)
    for (const auto& stray : found) {
      astray.insert(stray.object);
      if (auto why = changes_->take_names(stray, names_.files); !why.empty()) return why;
    }
  for (const auto& [owner, found] : strays) {
    if (astray.contains(&closure.objects[owner])) continue;
    if (auto why = changes_->change(closure.objects[owner], found, names_.files); !why.empty())
      return why;
  }
  for (const auto* object : astray) left_alone_.insert(inside_.world().real_path(object->path));
  return {};
}

/// A search path of the host's own files may lead to the image's, which the host's go over. Not
/// into a folder that is left alone: who uses that would get a part of each.
std::string Placement::mixed_folder() const {
  std::set<std::string> folders;
  for (const auto& path : left_alone_) folders.insert(folder_of(path));
  for (const auto& [target, bind] : binds_)
    if (folders.contains(folder_of(target)))
      return "the host's files lead to the image's " + target;
  return {};
}

/// Files of the container that are found before the cache is asked (RPATH, RUNPATH,
/// LD_LIBRARY_PATH, a name with a slash) get the host's bound over them.
bool Placement::bind_strays(const Closure& closure) {
  bool more = false;
  StraysByOwner by_owner;
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
    if (changes_ && object.searched_by && !is_hosts(closure.objects[*object.searched_by].path)) {
      by_owner[*object.searched_by].push_back({&object, at->second});
      continue;
    }
    bind_over(object.path, at->second,
              object.path + " is found by " + to_string(object.found_by) + ", not by ld.so.cache");
  }
  if (changes_ && not_changed_.empty()) not_changed_ = change_tags(closure, by_owner);
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
