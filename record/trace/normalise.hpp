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

/// Which differences between two runs' paths are taken for noise. docs/man/fs-diff.1.scd says each
/// rule in full, with what it leaves alone.
struct NormaliseOptions {
  bool soname = true;  ///< libx.so.1.2.3 -> libx.so.1
  bool pid = true;     ///< /proc/4711/maps -> /proc/<pid>/maps
  bool temp = true;    ///< /tmp/ccA8x2Qz.o -> /tmp/cc<temp>.o
  bool hash = true;    ///< zlib-1.3-<32 characters> -> zlib-1.3-<hash>, as Spack and Nix write them
  /// Directory FROM is taken for TO, before everything else; the longest FROM that fits wins.
  std::vector<std::pair<std::string, std::string>> maps;

  /// Adds `FROM=TO`. Fails when there is no `=` or FROM is empty.
  Result<void> add_map(std::string_view text);
  /// What is on: "soname", "pid", "temp", "hash", "map:/a=/b"; for outputs to list.
  std::vector<std::string> names() const;
};

/// Gives paths their normal form. A pure function of its arguments.
class Normaliser {
 public:
  explicit Normaliser(NormaliseOptions options);
  /// `pids`: the run's own processes, whose numbers count as noise below /tmp, /run and the like.
  std::string operator()(std::string_view path,
                         const std::unordered_set<std::int32_t>& pids = {}) const;

 private:
  NormaliseOptions options_;
};

}  // namespace heddle::trace
