// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/search/tiny_elf.hpp"

namespace heddle::test {

/// One directory of tests/search/rules: what to build, how to start it and what to expect.
/// rules/README.md describes the language.
struct RuleCase {
  struct Expected {
    std::string name;
    std::string path;
    std::string by;
  };
  std::string directory;         ///< where it was built
  std::vector<std::string> env;  ///< NAME=value
  std::string cwd;               ///< absolute
  std::string run;               ///< as given to execve
  bool is_program = true;        ///< false: a library, given to ld.so
  std::vector<Expected> expected;
  std::vector<Expected> missing;   ///< path: a part of the reason
  std::optional<std::string> etc;  ///< a directory in place of /etc: ld.so.cache, ld.so.preload
  int newest_minor = 1000;         ///< the last glibc 2.N with the rule
  int oldest_minor = 0;            ///< the first
};

/// Reads `file` and builds what it says in `directory`; `platform` is ld.so's. Throws heddle::Error
/// naming the line.
RuleCase build_rule_case(const std::string& file, const std::string& directory,
                         const std::string& platform);

}  // namespace heddle::test
