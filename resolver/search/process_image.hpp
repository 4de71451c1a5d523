// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "resolver/search/name_search.hpp"

namespace heddle {

/// One process as ld.so builds it up, from the program to the point where LD_TRACE_LOADED_OBJECTS
/// prints the chain: what dl_main (elf/rtld.c) and _dl_map_object_deps (elf/dl-deps.c) do.
class ProcessImage {
 public:
  ProcessImage(World& world, const LoaderProfile& loader, const SearchOptions& options)
      : world_(world), loader_(loader), options_(options) {}

  Result<Closure> run(const std::string& program);

 private:
  /// One node of ld.so's breadth-first list. Filters swap nodes in place, so it stays a linked
  /// list.
  struct Node {
    std::size_t map;
    bool done = false;
    std::size_t next = kNone;
  };

  Result<void> start(const std::string& program);
  void preload(const std::vector<std::string>& names, const std::string& where);
  std::size_t load(const std::string& name, std::size_t requester, bool preload,
                   std::string& reason);
  void load_dependencies();
  void take_needed(std::size_t requester, const std::string& name);
  /// Result: the node that now holds the requester.
  std::size_t take_filtee(std::size_t node, const Dependency& dependency, const std::string& name);
  std::size_t add_node(std::size_t map);
  void place_interpreter();
  Closure finish();

  World& world_;
  const LoaderProfile& loader_;
  const SearchOptions& options_;
  LinkMaps maps_;
  std::optional<NameSearch> search_;
  std::size_t interpreter_ = kNone;
  bool interpreter_shown_ = false;
  std::vector<Node> nodes_;
  std::size_t tail_ = kNone;
  Closure closure_;
};

}  // namespace heddle
