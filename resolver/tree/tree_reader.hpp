// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/mounts.hpp"
#include "base/result.hpp"
#include "base/task_pool.hpp"
#include "resolver/map/tree_index.hpp"

namespace heddle {

/// Reads one directory tree. Every name is reached from its directory's descriptor without
/// following a link, so that no rename meanwhile leads out of the tree. Each
/// directory is as it was at one moment: one that changes while it is read is read again.
class TreeReader {
 public:
  struct Options {
    std::unordered_set<std::string> exclude;  ///< canonical paths that become holes
    std::optional<TreeIndex> earlier;         ///< of the same path
    bool keeps_times = false;                 ///< keeps_directory_times() of the path
    std::uint64_t most = kMostTreeNodes;      ///< entries: each takes 500 bytes while it is read
  };
  /// `path` is canonical.
  TreeReader(std::string path, Options options);
  ~TreeReader();

  /// Adds the work to `pool`, which others may share; pool.wait(), then take().
  void start(TaskPool& pool);
  /// The tree's bytes. Failure: of the file system; EXDEV: a mount point in it; EPERM: a file with
  /// set-ID bits; EAGAIN: it changes all the time; EFBIG or ENAMETOOLONG: not for a map.
  Result<std::string> take();

  const std::string& path() const { return path_; }
  std::uint64_t listed() const { return listed_; }                      ///< directories
  const std::vector<Error>& unreadable() const { return unreadable_; }  ///< became holes

 private:
  struct Directory;
  using DirectoryPtr = std::shared_ptr<Directory>;
  using Entry = TreeIndexWriter::Entry;

  void spawn(std::function<void()> task);
  void open(const DirectoryPtr& directory);
  Result<void> list(Directory& directory);
  void stat_names(const DirectoryPtr& directory);
  void stat_batch(const DirectoryPtr& directory, std::size_t first);
  void finish(const DirectoryPtr& directory);
  void fail_with(Error error);
  Error too_large() const;
  bool is_excluded(const std::string& path) const;

  std::string path_;
  Options options_;
  TaskPool* pool_ = nullptr;
  DirectoryPtr root_;
  std::int64_t started_ns_ = 0;
  std::uint64_t device_ = 0;
  std::uint64_t mount_ = 0;  ///< 0: the kernel does not tell
  std::atomic<bool> may_keep_atime_ = true;
  std::atomic<bool> failed_ = false;
  std::atomic<std::uint64_t> listed_ = 0;
  std::atomic<std::uint64_t> count_ = 0;  ///< names
  std::mutex mutex_;                      ///< of what follows
  std::optional<Error> error_;
  std::vector<Error> unreadable_;
};

/// Whether the file system at `path` (canonical) gives a directory another time whenever it has
/// other names. That of images need not, when a new one is mounted at the same path, nor a server
/// that makes times up: such have one time, for mtime and ctime.
bool keeps_directory_times(const std::string& path, const std::vector<MountEntry>& mounts);
/// Whether a directory that was `then` has the same names now, as its times say. Of one that was
/// young when it was read they never do.
bool has_same_times(const TreeNode& then, std::int64_t mtime_ns, std::int64_t ctime_ns,
                    std::uint64_t size, bool keeps_times);

/// A difference between a tree of a map and the directory now.
struct TreeDrift {
  std::string path;
  std::string what;  ///< missing, added, changed
  std::string detail;
};
/// Names, types, permissions, links, and the sizes and times of files. A missing or added
/// directory is one difference. `root` is the tree's path.
std::vector<TreeDrift> compare_trees(const std::string& root, const TreeIndex& then,
                                     const TreeIndex& now);

}  // namespace heddle
