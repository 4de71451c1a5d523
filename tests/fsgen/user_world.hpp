// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// Runs fs-gen as a user like those of a cluster, in a world made for him by in_world.cpp: a
/// /dev/fuse that is open to all or absent, system calls that are forbidden. Everything he meets
/// lies below one directory that he can read; his home, caches and temporary files too.
class UserWorld {
 public:
  /// Throws Error when programs are not installed in $HEDDLE_STAGE.
  UserWorld();

  struct World {
    unsigned uid = 1500;
    std::string fuse = "open";           ///< or "absent"
    std::vector<std::string> forbidden;  ///< system calls
    std::string mtab = "open";           ///< or "absent": /etc/mtab
  };
  /// `sh -c script` there; $FS_GEN and $OUT (a directory) are set.
  RunResult sh(const World& world, const std::string& script) const;
  RunResult sh(const std::string& script) const;
  /// The command that sh() runs, to be started otherwise.
  std::vector<std::string> command(const World& world, const std::string& script) const;
  nlohmann::json report(const std::string& name) const;  ///< of $OUT
  std::string out(const std::string& name) const;        ///< text of a file in $OUT
  /// What is left in the directory for temporary files.
  std::vector<std::string> left() const;
  /// Processes of ours that still run: their directory is in their command line or environment.
  std::vector<int> processes() const;

  const TestDir& dir() const { return dir_; }
  const std::string& fs_gen() const { return fs_gen_; }

 private:
  TestDir dir_;
  std::string fs_gen_;
};

}  // namespace heddle::test
