// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>

#include "base/result.hpp"

namespace heddle {

/// What one program loaded in a run besides what the map knew.
struct LearnedProgram {
  /// Name -> the file (absolute path) that ld.so found for it.
  std::map<std::string, std::string> libraries;
  /// Names that led to several files, in several processes or at several times.
  std::set<std::string> ambiguous;
};

/// The programs of one run, by the path of /proc/PID/exe.
using LearnedRun = std::map<std::string, LearnedProgram>;

/// Reads the log that the audit library wrote (resolver/map/learn_format.hpp). A record that was
/// cut short, and all behind it, is left out. Names that mean something else for each caller are
/// not taken: relative paths, $ORIGIN and its kin.
Result<LearnedRun> read_learned_run(const std::string& path);

}  // namespace heddle
