// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file_stamp.hpp"
#include "base/result.hpp"

#include "resolver/map/map_content.hpp"
#include "resolver/search/closure.hpp"

namespace heddle {

/// The other names of a file: symbolic links beside it, and the second spelling of its directory on
/// systems where /lib is a link to /usr/lib. A program that opens the same file by another name
/// must get the same inode, or ld.so loads it twice. Lists each directory once.
class AliasFinder {
 public:
  AliasFinder();
  /// Names (no directory) of symbolic links in `directory` that lead to the file `id`; sorted.
  const std::vector<std::string>& links(const std::string& directory, FileId id);
  /// Every absolute spelling of `path` itself: as given, symlink-free, with /usr/lib for /lib and
  /// the other way round where that is the same directory. Sorted, unique, `path` (if absolute)
  /// included.
  std::vector<std::string> spellings(const std::string& path) const;

 private:
  using Listing = std::unordered_map<FileId, std::vector<std::string>>;
  std::unordered_map<std::string, Listing> directories_;
  std::vector<std::pair<std::string, std::string>> merged_;  ///< ("/lib/", "/usr/lib/")
};

/// The objects of a map while it is built: one per origin file (dev, ino), with every absolute path
/// that leads to it. Ids are those of the order of arrival until sort() puts them in the path's
/// order.
class ObjectTable {
 public:
  /// The object's id; a file met before keeps its first path.
  ObjectId add(const std::string& path, const FileFacts& file);
  /// As add(), for a data file, which is read.
  Result<ObjectId> add_data(const std::string& path);

  const MapObject& operator[](ObjectId id) const { return entries_[id].object; }
  /// Absolute spellings of the object's paths, links beside it included; sorted.
  const std::vector<std::string>& paths(ObjectId id) const { return entries_[id].paths; }
  /// File names that lead to the object in its own directories; sorted.
  const std::vector<std::string>& file_names(ObjectId id) const { return entries_[id].file_names; }
  std::size_t size() const { return entries_.size(); }

  /// Fills in the map's objects, paths and host. Result: old id -> its number there.
  std::vector<ObjectId> put_into(MapContent& out) const;

 private:
  struct Entry {
    MapObject object;
    std::vector<std::string> paths;
    std::vector<std::string> file_names;
  };
  std::pair<ObjectId, bool> place(const std::string& path, FileId id);
  void add_paths(Entry& entry, const std::string& path, FileId id);

  AliasFinder aliases_;
  std::vector<Entry> entries_;
  std::unordered_map<FileId, ObjectId> by_id_;
};

}  // namespace heddle
