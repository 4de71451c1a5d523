// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "bench/timing.hpp"

namespace heddle::bench {

/// The installed programs under one prefix (build/stage).
struct Stage {
  std::string prefix;
  std::string program(const std::string& name) const { return prefix + "/bin/" + name; }
  std::string audit_library() const { return prefix + "/lib/heddle/libheddle-audit.so"; }
};

/// `program` run with ld.so guided by `index`.
Command guided(const Stage& stage, const std::string& program, const std::string& index);

/// Throws heddle::Error unless `command` maps libraries below `directory`: an unguided run would be
/// measured as if it were ours.
void expect_guided(const Command& command, const std::string& directory);

/// fs-resolve build.
void build_map(const Stage& stage, const std::string& map, const std::string& program);

/// Writes the files below `directory` to disk and drops them from the page cache, so that the next
/// run reads them, as after a reboot. What has just been written lies there in larger pieces than
/// what was read (ext4's large folios): programs then start 2 % faster than they ever will again.
void forget_pages(const std::string& directory);

/// A map mounted by fs-mount in a directory of its own; the destructor unmounts.
class Mount {
 public:
  /// `program`: in fs-mount's place; empty: the stage's.
  Mount(const Stage& stage, const std::string& map, std::string directory,
        const std::string& program = {});
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  ~Mount();

  const std::string& directory() const noexcept { return directory_; }
  std::string index() const { return directory_ + "/.heddle/index"; }
  /// What fs-mount took: it returns when the mount answers.
  double ready_ms() const noexcept { return ready_ms_; }
  /// VmRSS of the daemon's processes together in MiB, 0 when it is not found.
  double resident_mib() const;
  /// The process that answers now; throws heddle::Error.
  int worker() const;

 private:
  const Stage& stage_;
  std::string directory_;
  double ready_ms_ = 0;
};

/// The default view's files of `map` copied into `directory`, a plain directory, and an index
/// beside it that guides there: the floor that the mount is measured against. Returns the index's
/// path.
std::string make_flat_directory(const std::string& map, const std::string& directory);

}  // namespace heddle::bench
