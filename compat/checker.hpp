// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "compat/target.hpp"

namespace heddle::compat {

struct LoadedSet;

/// Checks artifacts against one target: which libraries ld.so would map there, whether it would
/// accept their symbol versions, and whether each symbol would be found (as under LD_BIND_NOW).
/// Caches the target's closures, up to a limit. Not for concurrent use.
class Checker {
 public:
  /// Borrows `target`.
  explicit Checker(Target& target);
  ~Checker();

  /// Fails when Target::load() does: there is no verdict.
  Result<Judgement> check(const Artifact& artifact);

 private:
  Result<void> check(const Program& program, Judgement& out);
  void check_machine(const Program& program, int glibc_minor, Judgement& out);
  void check_mpi(const Program& program, const LoadedSet& set, Judgement& out);
  void check_symbols(const Program& program, const LoadedSet& set, Judgement& out);
  void check_dlopened(const Program& program, Judgement& out);
  Result<const LoadedSet*> loaded_set(const Program& program);

  Target& target_;
  std::unordered_map<std::string, std::unique_ptr<const LoadedSet>> sets_;
};

}  // namespace heddle::compat
