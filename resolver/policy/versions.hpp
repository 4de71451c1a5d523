// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "resolver/elf/elf_facts.hpp"
#include "resolver/search/os_world.hpp"

namespace heddle::policy {

/// Which of two files of one soname offers all of the other.
enum class Contains { equal, first, second, neither };
Contains compare_offers(const std::set<std::string>& first, const std::set<std::string>& second);

/// The difference `first` - `second`.
std::vector<std::string> missing_offers(const std::set<std::string>& first,
                                        const std::set<std::string>& second);

std::set<std::string> defined_versions(const ElfFacts& facts);
/// Exported names, with their versions where they have one.
std::set<std::string> exported_names(const ElfFacts& facts);

/// Whether the file is part of glibc: it defines or needs GLIBC_PRIVATE, which only files of one
/// build share, or defines GLIBC_* versions alone.
bool is_glibc_part(const ElfFacts& facts);

/// The versions that `user` needs of `soname` and `provider` does not define, weak ones excluded.
std::vector<std::string> missing_versions(const ElfFacts& user, const std::string& soname,
                                          const ElfFacts& provider);

/// Undefined symbols of `user` in `has` and not in `lacks`, weak ones excluded.
std::vector<std::string> lost_symbols(const ElfFacts& user, const std::set<std::string>& has,
                                      const std::set<std::string>& lacks);

/// By strverscmp(3), "4.0.2" < "4.1"; false for an empty version.
bool is_older(const std::string& version, const std::string& than);

inline bool holds(const std::vector<std::string>& list, const std::string& value) {
  return std::ranges::find(list, value) != list.end();
}

/// "a", "a, b and 3 more".
std::string shortened(const std::vector<std::string>& list);

/// Reads facts with symbols of one side's files, each once.
class SymbolReader {
 public:
  explicit SymbolReader(OsWorld& world) : world_(world) {}

  /// Null: unreadable.
  const ElfFacts* of(const std::string& path);
  /// Exported names without versions. Empty: unreadable.
  const std::set<std::string>& exports(const std::string& path);

 private:
  OsWorld& world_;
  std::map<std::string, std::optional<ElfFacts>> facts_;
  std::map<std::string, std::set<std::string>> exports_;
};

}  // namespace heddle::policy
