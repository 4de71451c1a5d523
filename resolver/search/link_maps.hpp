// SPDX-License-Identifier: MIT
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "resolver/search/search_path.hpp"

namespace heddle {

inline constexpr std::size_t kNone = ~std::size_t{0};

/// One loaded object as ld.so keeps it (struct link_map): our fields bear its names less the "l_".
struct LinkMap {
  std::string name;                ///< the path it was opened by; empty for the program
  std::vector<std::string> names;  ///< what it was asked for by (l_libname)
  FileFacts file;
  std::string origin;
  std::size_t loader = kNone;
  std::size_t prev = kNone;
  std::size_t next = kNone;
  bool has_id = true;  ///< false for the program and ld.so: ld.so never compares their (dev, ino)
  bool reserved = false;  ///< in the breadth-first list already
  std::optional<SearchList> rpath;
  std::optional<SearchList> runpath;

  FoundBy found_by = FoundBy::program;
  std::optional<std::size_t> searched_by;
  std::optional<std::size_t> needed_by;
  std::string requested_as;
  std::vector<std::size_t> needs;
};

/// All objects of one process and the chain (l_next, l_prev) that name and identity are looked up
/// in.
class LinkMaps {
 public:
  /// Adds at the chain's end. The first is the program.
  std::size_t append(LinkMap map);
  LinkMap& operator[](std::size_t i) { return maps_[i]; }
  const LinkMap& operator[](std::size_t i) const { return maps_[i]; }
  std::size_t size() const { return maps_.size(); }

  /// The first object of the chain that goes by `name`: path, name asked for before, or soname.
  std::size_t find(const std::string& name);
  std::size_t find(const FileId& id) const;
  /// Whether any object goes by `name`; takes no note of it.
  bool is_known(const std::string& name) const { return by_name_.contains(name); }
  void add_name(std::size_t map, const std::string& name);
  /// Takes `map` out of the chain and puts it before `other` (filters, elf/dl-deps.c).
  void move_before(std::size_t map, std::size_t other);
  void unlink(std::size_t map);
  void insert_after(std::size_t map, std::size_t other);

 private:
  std::size_t first_in_chain(const std::vector<std::size_t>& candidates) const;

  std::deque<LinkMap> maps_;
  std::size_t last_ = kNone;
  bool reordered_ = false;
  std::unordered_map<std::string, std::vector<std::size_t>> by_name_;
  std::unordered_map<FileId, std::vector<std::size_t>> by_id_;
};

}  // namespace heddle
