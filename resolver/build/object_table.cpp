// SPDX-License-Identifier: MIT
#include "resolver/build/object_table.hpp"

#include <algorithm>
#include <filesystem>
#include <numeric>

namespace heddle {
namespace {

namespace fs = std::filesystem;

void insert_sorted(std::vector<std::string>& list, const std::string& value) {
  const auto at = std::lower_bound(list.begin(), list.end(), value);
  if (at == list.end() || *at != value) list.insert(at, value);
}

}  // namespace

std::pair<ObjectId, bool> ObjectTable::place(const std::string& path, FileId id) {
  const auto [found, is_new] = by_id_.emplace(id, static_cast<ObjectId>(entries_.size()));
  if (is_new) {
    entries_.emplace_back();
    entries_.back().object.path = fs::absolute(path).lexically_normal().string();
  }
  Entry& entry = entries_[found->second];
  if (is_new || !std::binary_search(entry.paths.begin(), entry.paths.end(), path))
    add_paths(entry, path, id);
  if (is_new && !entry.paths.empty() &&
      !std::binary_search(entry.paths.begin(), entry.paths.end(), entry.object.path))
    entry.object.path = fs::absolute(path).string();  // "a/../b" that is not "b"
  return {found->second, is_new};
}

void ObjectTable::add_paths(Entry& entry, const std::string& path, FileId id) {
  for (const auto& spelling : aliases_.spellings(path)) {
    insert_sorted(entry.paths, spelling);
    const fs::path full(spelling);
    insert_sorted(entry.file_names, full.filename().string());
    for (const auto& link : aliases_.links(full.parent_path().string(), id)) {
      insert_sorted(entry.paths, (full.parent_path() / link).string());
      insert_sorted(entry.file_names, link);
    }
  }
}

MapObject object_of(const FileFacts& file) {
  MapObject object;
  const ElfFacts& elf = file.elf;
  object.stamp = file.stamp;
  object.mode = file.mode;
  object.hash = file.hash;
  object.soname = elf.soname.value_or("");
  for (const auto& dependency : elf.dependencies)
    if (dependency.kind == Dependency::Kind::needed) object.needed.push_back(dependency.name);
  object.rpath = elf.rpath.value_or("");
  object.runpath = elf.runpath.value_or("");
  object.version_definitions = elf.version_definitions;
  for (const auto& need : elf.version_needs)
    object.version_needs.push_back(need.file + ":" + need.version);
  object.flags = elf.flags;
  object.flags_1 = elf.flags_1;
  if (elf.tls) {
    object.tls_size = elf.tls->size;
    object.tls_align = elf.tls->align;
  }
  object.imports_dladdr = elf.imports_dladdr;
  object.imports_dlopen = elf.imports_dlopen;
  return object;
}

ObjectId ObjectTable::add(const std::string& path, const FileFacts& file) {
  const auto [id, is_new] = place(path, file.stamp.id);
  if (!is_new) return id;
  MapObject& object = entries_[id].object;
  auto found_as = std::move(object.path);
  object = object_of(file);
  object.path = std::move(found_as);
  return id;
}

ObjectId ObjectTable::add_data(const std::string& path, const FileStamp& stamp, std::uint32_t mode,
                               const ContentHash& hash) {
  const auto [id, is_new] = place(path, stamp.id);
  if (is_new) {
    MapObject& object = entries_[id].object;
    object.stamp = stamp;
    object.mode = mode;
    object.hash = hash;
    object.is_elf = false;
  }
  return id;
}

std::vector<ObjectId> ObjectTable::ranks() const {
  std::vector<ObjectId> order(entries_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](ObjectId a, ObjectId b) {
    return entries_[a].object.path < entries_[b].object.path;
  });
  std::vector<ObjectId> rank(entries_.size());
  for (std::size_t i = 0; i < order.size(); ++i) rank[order[i]] = static_cast<ObjectId>(i);
  return rank;
}

}  // namespace heddle
