// SPDX-License-Identifier: MIT
#pragma once

// What earlier runs found out, so that fs-gen resolves a program once. Below
// `$XDG_CACHE_HOME/heddle/runs`, one immutable file an answer, written aside and renamed:
//   KEY          the index for --via direct, then a CachedRun and the Seen that it holds for
//   KEY.map      the map, if a mount pays
//   plain-KEY    a command line that gains nothing from heddle
//   learn-KEY    what a rank of fs-launch loads (resolver/map/learn_format.hpp), for the next
//                launch; locked by that rank and its children
// docs/formats/cache.md has the bytes. The directory is its owner's alone; nothing is shared
// between users, and root uses no directory that another user could replace. The worst: a process
// of the same user can have that user's later runs guided to other libraries.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/run_directory.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/search/os_world.hpp"

namespace heddle {

struct CachedRun {
  std::vector<MapProgram> programs;  ///< without their guided names
  std::string app;                   ///< programs[].path; for `fs-gen cache show`
  bool mount = false;                ///< a mount pays: KEY.map is there
  bool slow_libraries = false;       ///< else it pays only for trees
  bool trees = false;                ///< the map has trees
  std::string map_id;                ///< its id
  std::string serve;                 ///< for fs-mount --serve
  std::vector<std::string> speeds;   ///< "DIR: slow: WHY", for --explain
  std::vector<std::string> tree_notes;
  LearnedRun learned;
  std::uint64_t late_probes = 0;  ///< failed look-ups that the learned names save
  std::string index;              ///< for --via direct
};

class RunCache {
 public:
  /// Failure: there is no directory that this user alone can write to.
  static Result<RunCache> open();
  /// Writes and removes a file as large as an entry. Failure: no run can be stored, as on a full
  /// disk.
  Result<void> check() const;

  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  std::string learn_log(const std::string& key) const { return path("learn-" + key); }
  /// Whether processes may map its files: on a network file system that is a SIGBUS when another
  /// node removes them.
  bool is_local() const;
  /// The run `key`. `valid`: all that it depends on is unchanged, looked up by many threads where
  /// files are slow, and on each node by one rank of a job for the others that start within ten
  /// seconds. Also asked, once all of that is unchanged: `holds`, if given.
  std::optional<CachedRun> find(const std::string& key, bool& valid,
                                const std::function<bool(const CachedRun&)>& holds = {}) const;
  /// The run `key` as it was stored, whether it holds or not.
  std::optional<CachedRun> peek(const std::string& key) const;
  /// What `ask` answers, asked on each node by one rank of a job for the others that start within
  /// ten seconds, and after `after_ns`; an empty answer is not for others. `what` is a hash.
  static std::string once_a_job(const std::string& what, std::int64_t after_ns,
                                const std::function<std::string()>& ask);
  /// Held while `key` is resolved, so that of many processes one does it; nullopt: after `limit`.
  std::optional<Fd> lock(const std::string& key, std::chrono::milliseconds limit) const;
  /// Failure, and nothing is stored: something in `seen` is younger than 2 s before `started_ns`
  /// (its next change may not change its stamp), or the directory takes no more, as on a full disk.
  Result<void> store(const std::string& key, const CachedRun& run, Seen seen,
                     std::int64_t started_ns) const;
  static bool is_young(std::int64_t time_ns, std::int64_t started_ns);
  static std::optional<FileStamp> stamp_of(const std::string& path);

  /// Whether the last run of this command line within a day had nothing to gain. `trees`: what may
  /// become trees of it, empty for no Python; asked if that run had some.
  bool is_plain(const std::string& key, const std::string& program,
                const std::function<std::string()>& trees) const;
  void mark_plain(const std::string& key, const std::string& program,
                  const std::string& trees) const;

  /// `fs-gen cache show`: a line an entry.
  std::string show() const;
  void clear() const;

 private:
  explicit RunCache(RunDirectory directory) : directory_(std::move(directory)) {}
  Result<void> write(const std::string& name, std::string_view bytes) const;
  bool make_room() const;
  bool is_valid(const std::string& key, const CachedRun& run, const Seen& seen,
                const std::function<bool(const CachedRun&)>& holds) const;
  RunDirectory directory_;
};

/// Whether the file is there and was not changed in the 2 s before `now_ns`.
bool is_settled(const std::string& path, std::int64_t now_ns);

}  // namespace heddle
