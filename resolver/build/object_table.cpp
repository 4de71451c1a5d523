// SPDX-License-Identifier: MIT
#include "resolver/build/object_table.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "base/open_regular.hpp"
#include "base/task_pool.hpp"
#include "base/try.hpp"
#include "resolver/map/map_format.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// Open directories at a time.
constexpr std::size_t kMostDirectories = 64;

/// The names in a directory that are symbolic links, or may be.
std::vector<std::string> link_names(DIR* directory) {
  std::vector<std::string> out;
  while (const dirent* entry = ::readdir(directory))
    if (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN) out.emplace_back(entry->d_name);
  return out;
}

void insert_sorted(std::vector<std::string>& list, const std::string& value) {
  const auto at = std::lower_bound(list.begin(), list.end(), value);
  if (at == list.end() || *at != value) list.insert(at, value);
}

/// Fills in everything but the path.
void describe(const FileFacts& file, MapObject& object) {
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
}

}  // namespace

ObjectTable::ObjectTable(bool aliases) : aliases_(aliases) {
  if (!aliases) return;
  for (const char* name : {"lib", "lib64", "lib32", "libx32", "bin", "sbin"}) {
    std::error_code error;
    const std::string top = std::string("/") + name;
    const std::string below_usr = std::string("/usr/") + name;
    if (fs::is_symlink(top, error) && fs::equivalent(top, below_usr, error) && !error)
      merged_.emplace_back(top + "/", below_usr + "/");
  }
}

/// Every absolute spelling of `path` itself: as given, symlink-free, with /usr/lib for /lib and the
/// other way round where that is the same directory. Sorted, unique.
std::vector<std::string> ObjectTable::spellings(const std::string& path) const {
  std::error_code error;
  std::vector<std::string> out{fs::absolute(path, error).string(),
                               fs::absolute(path, error).lexically_normal().string()};
  if (!aliases_ && out[0] == out[1]) return {out[0]};
  const auto real = fs::canonical(path, error);
  if (!error) out.push_back(real.string());
  const std::size_t known = out.size();
  for (std::size_t i = 0; i < known; ++i) {
    for (const auto& [top, below_usr] : merged_) {
      if (out[i].starts_with(top)) out.push_back(below_usr + out[i].substr(top.size()));
      if (out[i].starts_with(below_usr)) out.push_back(top + out[i].substr(below_usr.size()));
    }
  }
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  // "a/../b" is not always "b".
  std::erase_if(out, [&](const std::string& name) { return !fs::equivalent(name, path, error); });
  return out;
}

/// Fills in links_.
void ObjectTable::list_links(const std::vector<std::string>& directories) {
  struct Link {
    int directory;
    Listing* listing;
    std::string name;
    std::optional<FileId> target{};
  };
  for (std::size_t first = 0; first < directories.size(); first += kMostDirectories) {
    const auto count = std::min(kMostDirectories, directories.size() - first);
    std::vector<std::unique_ptr<DIR, int (*)(DIR*)>> open;
    for (std::size_t i = 0; i < count; ++i) open.emplace_back(nullptr, ::closedir);
    std::vector<std::vector<std::string>> names(count);
    for_each_at_once(count, [&](std::size_t i) {
      open[i].reset(::opendir(directories[first + i].c_str()));
      if (open[i]) names[i] = link_names(open[i].get());
    });
    std::vector<Link> links;
    for (std::size_t i = 0; i < count; ++i) {
      auto& listing = links_[directories[first + i]];
      for (auto& name : names[i])
        links.push_back({::dirfd(open[i].get()), &listing, std::move(name)});
    }
    for_each_at_once(links.size(), [&](std::size_t i) {
      struct stat st {};
      if (::fstatat(links[i].directory, links[i].name.c_str(), &st, 0) == 0 && S_ISREG(st.st_mode))
        links[i].target = file_id(st);
    });
    for (auto& [directory, listing, name, target] : links)
      if (target) insert_sorted((*listing)[*target], name);
  }
}

void ObjectTable::prepare(const std::vector<std::string>& paths) {
  std::vector<std::string> unknown;
  for (const auto& path : paths)
    if (!spelled_.contains(path)) unknown.push_back(path);
  std::vector<std::vector<std::string>> found(unknown.size());
  for_each_at_once(found.size(), [&](std::size_t i) { found[i] = spellings(unknown[i]); });
  std::set<std::string> directories;
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const auto& spelling : found[i]) {
      const auto directory = fs::path(spelling).parent_path().string();
      if (aliases_ && !links_.contains(directory)) directories.insert(directory);
    }
    spelled_.emplace(std::move(unknown[i]), std::move(found[i]));
  }
  list_links({directories.begin(), directories.end()});
}

std::pair<ObjectId, bool> ObjectTable::place(const std::string& path, FileId id) {
  const auto [found, is_new] = by_id_.emplace(id, static_cast<ObjectId>(entries_.size()));
  if (is_new) entries_.emplace_back().object.path = fs::absolute(path).lexically_normal().string();
  Entry& entry = entries_[found->second];
  if (is_new || !std::binary_search(entry.paths.begin(), entry.paths.end(), path))
    add_paths(entry, path, id);
  if (is_new && !entry.paths.empty() &&
      !std::binary_search(entry.paths.begin(), entry.paths.end(), entry.object.path))
    entry.object.path = fs::absolute(path).string();  // "a/../b" that is not "b"
  return {found->second, is_new};
}

void ObjectTable::add_paths(Entry& entry, const std::string& path, FileId id) {
  if (!spelled_.contains(path)) prepare({path});
  for (const auto& spelling : spelled_.at(path)) {
    insert_sorted(entry.paths, spelling);
    const fs::path full(spelling);
    insert_sorted(entry.file_names, full.filename().string());
    if (!aliases_) continue;
    const auto& listing = links_.at(full.parent_path().string());
    const auto links = listing.find(id);
    if (links == listing.end()) continue;
    for (const auto& link : links->second) {
      insert_sorted(entry.paths, (full.parent_path() / link).string());
      insert_sorted(entry.file_names, link);
    }
  }
}

ObjectId ObjectTable::add(const std::string& path, const FileFacts& file) {
  const auto [id, is_new] = place(path, file.stamp.id);
  if (is_new) describe(file, entries_[id].object);
  return id;
}

Result<ObjectId> ObjectTable::add_data(const std::string& path) {
  const auto fd = TRY(open_regular(path));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return fail_errno(path, "cannot stat");
  const auto hash = TRY(hash_file(fd.get(), path));
  const auto [id, is_new] = place(path, file_id(st));
  if (is_new) {
    MapObject& object = entries_[id].object;
    object.stamp = file_stamp(st);
    object.mode = st.st_mode;
    object.hash = hash;
    object.is_elf = false;
  }
  return id;
}

std::vector<ObjectId> ObjectTable::put_into(MapContent& out) const {
  std::vector<ObjectId> order(entries_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, {},
                    [&](ObjectId id) -> const std::string& { return entries_[id].object.path; });
  std::vector<ObjectId> rank(entries_.size());
  std::map<std::string, ObjectId> paths;
  for (const auto id : order) {
    rank[id] = static_cast<ObjectId>(out.objects.size());
    out.objects.push_back(entries_[id].object);
  }
  for (ObjectId id = 0; id < entries_.size(); ++id)
    for (const auto& path : entries_[id].paths)
      if (path.size() <= map_format::kMaxText) paths.emplace(path, rank[id]);
  out.paths.assign(paths.begin(), paths.end());
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) == 0) out.host = host;
  return rank;
}

}  // namespace heddle
