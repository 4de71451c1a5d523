// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "compat/artifact.hpp"
#include "compat/verdict.hpp"
#include "resolver/search/closure.hpp"

namespace heddle::compat {

/// A machine that programs are held against: this node, a root file system, a map. Nothing of it
/// is ever run. Not for concurrent use.
class Target {
 public:
  virtual ~Target() = default;

  struct Loaded {
    std::optional<Reason> refused;  ///< the kernel would not start it: nothing else is set
    Closure closure;
    int glibc_minor = 0;
    std::set<std::string> not_searched;  ///< directories that this target does not look into
  };
  /// What would be mapped for `program` here: objects[0] is the program itself. Fails when it
  /// cannot be told (a loader that is not glibc's), which is no verdict.
  virtual Result<Loaded> load(const Program& program) = 0;
  /// What the closure depends on besides the target: programs with equal keys share it.
  virtual std::string closure_key(const Program& program) = 0;
  /// Facts with symbols of the library at `path`, a LoadedObject's; nullopt: this target has none.
  virtual std::optional<Result<ElfFacts>> symbols(const std::string& path) = 0;
  virtual void prefetch_symbols(const std::vector<std::string>& paths) = 0;
  /// The notes of the library at `path`; none when they cannot be read.
  virtual ElfNotes notes(const std::string& path) = 0;
  /// The file that `soname` would give if `program` asked for it; empty: none.
  virtual std::string find_library(const Program& program, const std::string& soname) = 0;
  virtual bool has_file(const std::string& path) = 0;
  /// "libc6 2.36-9"; empty: unknown.
  virtual std::string package_of(const std::string& path) = 0;
  /// GNU_PROPERTY_X86_ISA_1_*; 0: unknown.
  virtual std::uint32_t isa_levels() = 0;
  /// As uname -r; empty: unknown.
  virtual std::string kernel() = 0;
};

}  // namespace heddle::compat
