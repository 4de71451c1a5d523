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

/// What elf_get_dynamic_info (elf/get-dynamic-info.h, glibc 2.17 to 2.41) passes over: between
/// DT_LOOS and DT_HIOS, far from the ranges at their end that it knows (DT_VALRNGLO and on).
constexpr std::uint64_t kIgnoredTag = 0x6865'6464;

std::string bytes_of(std::uint64_t value, const ElfFacts& elf) {
  const std::size_t width = elf.elf_class == ELFCLASS64 ? 8 : 4;
  std::string out;
  for (std::size_t i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i));
  if (elf.data_encoding == ELFDATA2MSB) std::reverse(out.begin(), out.end());
  return out;
}

/// The tag that ld.so goes by: RUNPATH makes it ignore RPATH (elf/dl-load.c).
std::uint64_t tag_in_force(const ElfFacts& elf) { return elf.runpath ? DT_RUNPATH : DT_RPATH; }

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
  if (elf.search_tags.empty()) return target + " has its tags where they cannot be changed";
  if (!put_mount_in_front(elf, file))
    if (auto why = drop(owner, names, file); !why.empty()) return why;
  std::sort(file.patches.begin(), file.patches.end(),
            [](const auto& one, const auto& other) { return one.offset < other.offset; });
  files_.emplace(target, std::move(file));
  return {};
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

bool TagChanges::put_mount_in_front(const ElfFacts& elf, ServedFile& file) const {
  const auto text = mount_point_ + ":" + file.tags + '\0';
  if (text.size() > elf.string_room.size || mount_point_.find_first_of(":;$") != text.npos)
    return false;
  file.patches.push_back({elf.string_room.offset, std::string(text.size(), '\0'), text});
  for (const auto& tag : elf.search_tags) {
    if (tag.tag != tag_in_force(elf)) continue;
    const auto before = bytes_of(tag.value, elf);
    file.patches.push_back(
        {tag.offset + before.size(), before, bytes_of(elf.string_room.value, elf)});
  }
  file.now = text.substr(0, text.size() - 1);
  return true;
}

std::string TagChanges::drop(const LoadedObject& owner,
                             const std::map<std::string, std::string>& names, ServedFile& file) {
  const auto because = [&](const std::string& why) {
    return file.target + " has no room for a longer search path, and without its own " + why;
  };
  auto& world = inside_.world();
  const auto tagged = tagged_folders(owner, world, inside_.loader());
  if (!tagged.complete) return because("folders that are relative would be left out");
  // No entry of ours in ld.so.cache stands for what is there.
  if (!tagged.for_cpus.empty()) return because(tagged.for_cpus[0] + " would not be looked into");
  for (const auto& folder : tagged.folders) {
    const auto entries = list_folder(world, folder);
    if (!entries) return because("who knows what would be lost: " + entries.error().message());
    for (const auto& entry : *entries) {
      if (entry.is_folder || !may_be_library(entry.name) || names.contains(entry.name)) continue;
      const auto path = folder + entry.name;
      const std::string cached(inside_.cache().lookup(entry.name));
      if (cached.empty() || world.real_path(cached) != world.real_path(path))
        return because(path + " would not be found");
    }
  }
  const auto& elf = owner.file.elf;
  for (const auto& tag : elf.search_tags)
    file.patches.push_back({tag.offset, bytes_of(tag.tag, elf), bytes_of(kIgnoredTag, elf)});
  return share_names(file);
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
