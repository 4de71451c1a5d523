// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "resolver/build/alias_finder.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/search/closure.hpp"

namespace heddle {

/// All of an ELF file's object but its path.
MapObject object_of(const FileFacts& file);

/// The objects of a map while it is built: one per origin file (dev, ino), with every absolute path
/// that leads to it. Ids are those of the order of arrival until sort() puts them in the path's
/// order.
class ObjectTable {
 public:
  /// The object's id; a file met before keeps its first path.
  ObjectId add(const std::string& path, const FileFacts& file);
  /// As add(), for a data file of a plugin folder.
  ObjectId add_data(const std::string& path, const FileStamp& stamp, std::uint32_t mode,
                    const ContentHash& hash);

  const MapObject& operator[](ObjectId id) const { return entries_[id].object; }
  /// Absolute spellings of the object's paths, links beside it included; sorted.
  const std::vector<std::string>& paths(ObjectId id) const { return entries_[id].paths; }
  /// File names that lead to the object in its own folders; sorted.
  const std::vector<std::string>& file_names(ObjectId id) const { return entries_[id].file_names; }
  std::size_t size() const { return entries_.size(); }

  /// Old id -> new id, in the order of MapContent::objects. Call once, at the end.
  std::vector<ObjectId> ranks() const;

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
