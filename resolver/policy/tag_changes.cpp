// SPDX-License-Identifier: MIT
#include "resolver/policy/tag_changes.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>

#include "base/folder_of.hpp"
#include "resolver/policy/tagged_folders.hpp"

namespace heddle {
namespace {

bool may_be_library(const std::string& name) { return name.find(".so") != name.npos; }

}  // namespace

std::string TagChanges::change(const LoadedObject& owner, const std::vector<Stray>& strays,
                               const std::map<std::string, std::string>& names) {
  const auto& elf = owner.file.elf;
  const auto target = inside_.world().real_path(owner.path);
  if (settled_.contains(target)) return owner.path + " still leads to " + strays[0].object->path;
  if (const auto known = files_.find(target); known != files_.end())
    return known->second.now.empty() ? share_names(known->second) : "";
  ServedFile file;
  file.target = target;
  file.tags = elf.runpath ? *elf.runpath : elf.rpath.value_or("");
  if (auto why = why_not_served(target, file); !why.empty()) return why;
  return target + " has its tags where they cannot be changed";
}

void TagChanges::settle() {
  for (const auto& [target, file] : files_) settled_.insert(target);
}

/// A mount of ours gives nobody rights (nosuid, no extended attributes).
std::string TagChanges::why_not_served(const std::string& path, ServedFile& file) {
  const auto fd = inside_.world().open(path, O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (!fd || ::fstat(fd->get(), &status) != 0 || !S_ISREG(status.st_mode))
    return path + " cannot be read";
  if ((status.st_mode & (S_ISUID | S_ISGID)) != 0) return path + " is set-user-ID or set-group-ID";
  if (::fgetxattr(fd->get(), "security.capability", nullptr, 0) > 0)
    return path + " has file capabilities";
  file.owner = status.st_uid;
  file.group = status.st_gid;
  return {};
}

/// libmpi.so beside libmpi.so.12: a program that loads it by that name would have both MPIs.
std::string TagChanges::take_names(const Stray& stray, std::map<std::string, std::string>& names) {
  auto& world = inside_.world();
  const auto& path = stray.object->path;
  const auto real = world.real_path(path);
  const auto folder = folder_of(path);
  const auto host = names.at(stray.mount_name);
  const auto entries = list_folder(world, folder);
  if (!entries) return "other names of " + path + " are not known: " + entries.error().message();
  for (const auto& entry : *entries) {
    if (entry.is_folder || !may_be_library(entry.name) || names.contains(entry.name) ||
        world.real_path(folder + "/" + entry.name) != real)
      continue;
    names[entry.name] = host;
    alone_.insert(entry.name);
  }
  return {};
}

/// ld.so.cache is the only way to them for a file without a search path, and everybody reads it.
std::string TagChanges::share_names(const ServedFile& file) {
  for (const auto& name : alone_)
    if (!inside_.cache().lookup(name).empty())
      return file.target + " would find " + name + " by ld.so.cache, and others another file";
  alone_.clear();
  return {};
}

std::map<std::string, SwappedWorld::Tags> TagChanges::tags() const {
  std::map<std::string, SwappedWorld::Tags> out;
  for (const auto& [target, file] : files_) out[target] = {file.now};
  return out;
}

}  // namespace heddle
