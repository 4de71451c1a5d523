// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file_stamp.hpp"
#include "base/result.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/search/search.hpp"

namespace heddle {

/// The objects of a map while it is built: one per origin file (dev, ino), with every absolute path
/// that leads to it. Ids are in order of arrival until put_into() sorts by path.
///
/// A program that opens the same file by another name must get the same inode, or ld.so loads it
/// twice. So with `aliases` symbolic links beside the file count as its paths, and the second
/// spelling of its directory on systems where /lib is a link to /usr/lib. Each directory is listed
/// once.
class ObjectTable {
 public:
  explicit ObjectTable(bool aliases = true);
  /// Asks the file system what add() of these needs, many requests at once.
  void prepare(const std::vector<std::string>& paths);
  /// A known file keeps its first path.
  ObjectId add(const std::string& path, const FileFacts& file);
  /// As add(), for a data file, which is read.
  Result<ObjectId> add_data(const std::string& path);

  const MapObject& operator[](ObjectId id) const { return entries_[id].object; }
  /// Absolute spellings of the object's paths, links beside it included; sorted.
  const std::vector<std::string>& paths(ObjectId id) const { return entries_[id].paths; }
  /// File names that lead to the object in its own directories; sorted.
  const std::vector<std::string>& file_names(ObjectId id) const { return entries_[id].file_names; }

  /// Fills in the map's objects, paths and host. Result: old id -> its number there.
  std::vector<ObjectId> put_into(MapContent& out) const;

 private:
  struct Entry {
    MapObject object;
    std::vector<std::string> paths;
    std::vector<std::string> file_names;
  };
  using Listing = std::unordered_map<FileId, std::vector<std::string>>;
  std::pair<ObjectId, bool> place(const std::string& path, FileId id);
  void add_paths(Entry& entry, const std::string& path, FileId id);
  std::vector<std::string> spellings(const std::string& path) const;
  void list_links(const std::vector<std::string>& directories);

  const bool aliases_;
  std::vector<Entry> entries_;
  std::unordered_map<FileId, ObjectId> by_id_;
  std::unordered_map<std::string, std::vector<std::string>> spelled_;  ///< by path
  std::unordered_map<std::string, Listing> links_;                     ///< by directory
  std::vector<std::pair<std::string, std::string>> merged_;            ///< ("/lib/", "/usr/lib/")
};

}  // namespace heddle
