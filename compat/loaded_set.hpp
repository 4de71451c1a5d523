// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "compat/symbol_set.hpp"
#include "compat/target.hpp"

namespace heddle::compat {

/// The libraries that a target maps for a program, and what holds for them whatever the program
/// itself asks for: made once for all programs with the same closure.
struct LoadedSet {
  std::optional<Reason> refused;
  Closure closure;
  int glibc_minor = 0;
  SymbolSet exports;            ///< of all but the program
  bool symbols_known = true;    ///< false: the target cannot tell
  std::vector<Reason> reasons;  ///< `program` is yet to be set
  /// References of libraries that no library satisfies: the program may.
  struct Open {
    DynamicSymbol symbol;
    SymbolSet::Reference reference;
    std::string required_by;
  };
  std::vector<Open> open;
  std::unordered_map<std::string, std::size_t> by_name;  ///< name ld.so knows it by -> object
};

/// Makes the set of `program` on `target`. Fails as Target::load does.
Result<LoadedSet> make_loaded_set(Target& target, const Program& program);

/// The version check of ld.so for one object's needs (elf/dl-version.c, _dl_check_map_versions).
/// Reasons lack `program` and `package`.
void check_versions(const LoadedSet& set, const std::vector<VersionNeed>& needs,
                    const std::string& required_by, std::vector<Reason>& out);

/// The name to show for a library.
std::string shown_name(const LoadedObject& object);

}  // namespace heddle::compat
