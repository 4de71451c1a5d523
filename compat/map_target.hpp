// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <unordered_map>

#include "compat/target.hpp"
#include "resolver/elf/facts_source.hpp"
#include "resolver/map/map_content.hpp"

namespace heddle::compat {

/// A map: a soname is what it names in the view of the program (where the map has the program),
/// else in the only view, or in the first one that has it. Symbols are read from the files
/// themselves, where they are still what the map says; CPU and kernel are this node's.
class MapTarget final : public Target {
 public:
  /// `source` must outlive this. Fails as MapReader does.
  static Result<MapTarget> open(FactsSource& source, const std::string& path);
  /// As above, of a map in memory.
  MapTarget(FactsSource& source, MapContent content);

  Result<Loaded> load(const Program& program) override;
  std::string closure_key(const Program& program) override;
  std::optional<Result<ElfFacts>> symbols(const std::string& path) override;
  void prefetch_symbols(const std::vector<std::string>& paths) override;
  ElfNotes notes(const std::string& path) override;
  std::string find_library(const Program& program, const std::string& soname) override;
  bool has_file(const std::string& path) override;
  std::string package_of(const std::string& path) override;
  std::uint32_t isa_levels() override;
  std::string kernel() override;

  const MapContent& content() const { return content_; }

 private:
  const MapObject* find(const Program& program, const std::string& name) const;
  bool is_unchanged(const MapObject& object) const;

  FactsSource* source_;
  MapContent content_;
  std::unordered_map<std::string, ObjectId> by_path_;
};

}  // namespace heddle::compat
