// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <string>
#include <vector>

#include "resolver/map/map_content.hpp"
#include "tests/support/fuse_kernel.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// The fs-mount under test: $HEDDLE_FS_MOUNT, else the staged one.
std::string fs_mount();

/// A map's content made of real files, without a resolver.
class MapMaker {
 public:
  /// The object of the file at `path`, stamped and hashed as it is now; one for each (dev, ino).
  ObjectId add_file(const std::string& path);
  /// From here on objects get no hash: for files too large to read in a test.
  void skip_hash() { hashes_ = false; }
  /// `name` of `view` leads to the file at `path`.
  void add_name(const std::string& view, const std::string& name, const std::string& path);
  /// Every regular file below `directory` under its relative name.
  void add_directory(const std::string& view, const std::string& directory);

  /// Sorted as map_content.hpp asks.
  MapContent content() const;
  /// Throws heddle::Error. Returns `path`.
  std::string write(const std::string& path) const;

 private:
  MapContent content_;
  bool hashes_ = true;
};

/// One mount made by running fs-mount; unmounted at the end, and the daemon must be gone by then.
class Mount {
 public:
  /// Throws heddle::Error when fs-mount does.
  Mount(const std::string& map, const std::string& directory,
        std::vector<std::string> options = {});
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  ~Mount();

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// The daemon: its supervisor, and who answers now.
  int pid() const { return pid_; }
  int worker() const { return static_cast<int>(stat_number("worker_pid")); }
  /// The number behind `name` in the statistics, wherever it stands; throws without one.
  std::uint64_t stat_number(const std::string& name) const;
  /// The text behind `name`.
  std::string stat_text(const std::string& name) const;
  /// Polls until the prefetch is done.
  void wait_for_prefetch() const;
  /// Polls until the files are staged, or cannot be; `staging` then.
  std::string wait_for_staging() const;
  /// By `fs-mount --reload`, which puts another daemon in the place of this one: with `map`, unless
  /// that is empty.
  RunResult reload(const std::string& map = {}, std::vector<std::string> options = {}) const;
  /// By `fs-mount -u`.
  RunResult unmount() const;

 private:
  std::string path_;
  int pid_ = -1;
};

/// Stops a process, such as a worker, while it lives. Whoever needs an answer then waits, so each
/// test has a deadline.
class Stopped {
 public:
  explicit Stopped(int pid) : pid_(pid) { ::kill(pid, SIGSTOP); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  ~Stopped() { ::kill(pid_, SIGCONT); }

 private:
  int pid_;
};

}  // namespace heddle::test

/// System tests need a device to mount with.
#define HEDDLE_NEEDS_FUSE()                                                         \
  if (::access("/dev/fuse", R_OK | W_OK) != 0) HEDDLE_SKIP("no /dev/fuse to open"); \
  if (::geteuid() != 0) HEDDLE_SKIP("not root")
