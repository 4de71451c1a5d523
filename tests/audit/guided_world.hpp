// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "resolver/map/counters_format.hpp"
#include "resolver/map/map_content.hpp"
#include "tests/support/run.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {

/// Stands in for fs-gen and fs-mount without FUSE: flat directories of links to a program's
/// libraries, their index and a page of counters. The real ld.so gives the closure.
class GuidedWorld {
 public:
  using Libraries = std::vector<std::pair<std::string, std::string>>;  ///< (name, path)

  /// Everything is made in `directory`.
  explicit GuidedWorld(std::string directory);
  /// Maps `program` with what LD_TRACE_LOADED_OBJECTS lists under `env`, and `more`. The map
  /// records the LD_LIBRARY_PATH of `env`.
  void add_program(const std::string& program, const Libraries& more = {},
                   const std::vector<std::string>& env = {});
  /// Makes directories and index from what was added.
  void publish();

  /// LD_AUDIT, HEDDLE_INDEX, HEDDLE_COUNTERS.
  std::vector<std::string> env() const;
  RunResult run(const std::vector<std::string>& argv, std::vector<std::string> more_env = {}) const;
  StraceResult strace(const std::vector<std::string>& argv,
                      std::vector<std::string> more_env = {}) const;
  Counters counters() const;
  void reset_counters() const;

  std::string flat() const { return directory_ + "/flat"; }
  std::string index_path() const { return directory_ + "/index"; }
  std::string counters_path() const { return directory_ + "/counters"; }
  /// The map's static_tls_bytes of a program; set before publish().
  std::uint64_t static_tls = 0;

 private:
  struct Added {
    std::string program;
    Libraries libraries;
    std::string library_path;
  };
  std::string directory_;
  std::vector<Added> added_;
};

/// The library under test.
std::string audit_library();

}  // namespace heddle::test
