// SPDX-License-Identifier: MIT
#pragma once

#include "resolver/map/map_content.hpp"
#include "tests/support/fuse_kernel.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// The fs-mount under test: $HEDDLE_FS_MOUNT, else the staged one.
std::string fs_mount();

/// `size` bytes that no compression makes smaller; another `seed` gives others.
inline std::string random_bytes(std::size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string out(size, '\0');
  for (auto& c : out) c = static_cast<char>(random());
  return out;
}

/// A map's content made of real files, without a resolver.
class MapMaker {
 public:
  /// The object of the file at `path`, stamped and hashed as it is now; one for each (dev, ino).
  ObjectId add_file(const std::string& path);
  /// Later objects get no hash: for files too large to read in a test.
  void skip_hash() { hashes_ = false; }
  /// `name` of `view` leads to the file at `path`.
  void add_name(const std::string& view, const std::string& name, const std::string& path);
  /// Every regular file below `directory` under its relative name.
  void add_directory(const std::string& view, const std::string& directory);

  /// The whole directory, as it is now, is a tree of the map; its names are in `as` if that is not
  /// empty. `excluded`: a path below it.
  void add_tree(const std::string& directory, const std::string& as = {},
                const std::string& excluded = {});

  /// Sorted as map_content.hpp asks.
  MapContent content() const;
  /// Throws heddle::Error. Returns `path`.
  std::string write(const std::string& path) const;

 private:
  MapContent content_;
  bool hashes_ = true;
};

/// A mount made by running fs-mount; unmounted at the end.
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
  /// The daemon's supervisor, and its current worker.
  int pid() const { return pid_; }
  int worker() const { return static_cast<int>(stat_number("worker_pid")); }
  /// The number at key `name`, at any depth of the statistics; throws without one.
  std::uint64_t stat_number(const std::string& name) const;
  /// The text at key `name`.
  std::string stat_text(const std::string& name) const;
  /// Polls until the prefetch is done.
  void wait_for_prefetch() const;
  /// Polls until staging ends; returns its state.
  std::string wait_for_staging() const;
  /// `fs-mount --reload`, with `map` unless that is empty.
  RunResult reload(const std::string& map = {}, std::vector<std::string> options = {}) const;
  /// `fs-mount -u`.
  RunResult unmount() const;

 private:
  std::string path_;
  int pid_ = -1;
};

/// Stops a process, such as a worker, until the end. Its clients block, so use deadlines.
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

/// For tests that mount.
#define HEDDLE_NEEDS_FUSE()                                                         \
  if (::access("/dev/fuse", R_OK | W_OK) != 0) HEDDLE_SKIP("no /dev/fuse to open"); \
  if (::geteuid() != 0) HEDDLE_SKIP("not root")
