// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "resolver/elf/elf_facts.hpp"
#include "resolver/search/os_world.hpp"

namespace heddle {

/// Facts with symbols of one side's files, each read once.
class SymbolReader {
 public:
  explicit SymbolReader(OsWorld& world) : world_(world) {}

  /// Null when it cannot be read.
  const ElfFacts* of(const std::string& path);
  /// Names it exports, without versions. Empty when it cannot be read.
  const std::set<std::string>& exports(const std::string& path);

 private:
  OsWorld& world_;
  std::map<std::string, std::optional<ElfFacts>> facts_;
  std::map<std::string, std::set<std::string>> exports_;
};

}  // namespace heddle
