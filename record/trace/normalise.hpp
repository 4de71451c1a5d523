// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace heddle::trace {

/// The differences between two runs' paths that are noise. docs/man/fs-diff.1.scd specifies the
/// rules.
struct NormaliseOptions {
  bool soname = true;  ///< libx.so.1.2.3 -> libx.so.1
  bool pid = true;     ///< /proc/4711/maps -> /proc/<pid>/maps
  bool temp = true;    ///< /tmp/ccA8x2Qz.o -> /tmp/cc<temp>.o
  bool hash = true;    ///< zlib-1.3-<32 characters> -> zlib-1.3-<hash>, as Spack and Nix write them
  /// Directories FROM that are replaced by TO, before all other rules; the longest match wins.
  std::vector<std::pair<std::string, std::string>> maps;

  /// Adds `FROM=TO`. Failure: there is no `=`, or FROM is empty.
  Result<void> add_map(std::string_view text);
  /// The active rules, for output: "soname", "pid", "temp", "hash", "map:/a=/b".
  std::vector<std::string> names() const;
};

/// Gives paths their normal form.
class Normaliser {
 public:
  explicit Normaliser(NormaliseOptions options);
  /// `pids`: the run's processes, whose numbers are noise below /tmp, /run and the like.
  std::string operator()(std::string_view path,
                         const std::unordered_set<std::int32_t>& pids = {}) const;

 private:
  NormaliseOptions options_;
};

}  // namespace heddle::trace
