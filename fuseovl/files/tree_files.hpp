// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "base/fd.hpp"
#include "fuseovl/files/bundle_frames.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/session/shared.hpp"
#include "resolver/map/tree_index.hpp"

namespace heddle {

/// A directory tree of the map, on this node.
struct ServedTree {
  std::string path;
  TreeIndex index;
  /// O_PATH. It shows the original also when the mount covers it. Invalid: the tree is missing.
  Fd root;
  bool is_served = false;  ///< else it is an empty directory
  bool is_fuse = false;    ///< of its file system
};

/// Opens the directories of `trees`. One that is missing, or whose file system has not answered for
/// `limit`, is a drift in `found`.
void open_tree_roots(std::vector<ServedTree>& trees, std::chrono::milliseconds limit,
                     Origins& found);

/// The files of the map's trees while mounted: in the bundle, else the originals. A file
/// is opened when it is first read. One that is not the map's (size, mtime), or no longer the one
/// that this mount opened before, answers EIO from then on; on FUSE a change may take a second to
/// be seen. Safe for many threads; forked processes share the findings, and each has its own open
/// files.
///
/// Origins may be slow and must not be asked twice. A directory costs one lookup, as its descriptor
/// is kept; a file one lookup, an open and a read for each MiB. The kernel asks for 128 KiB at a
/// time: the rest of the MiB is kept for its next requests.
///
/// The tree's owner may change it at any time, and the daemon may be root. Each step is one name
/// below a descriptor, follows no symbolic link and crosses no mount; only a regular file is
/// opened. Root's daemon also requires the owner and permissions that it shows, of files and
/// directories: no user reads by it what it cannot read natively.
class TreeFiles {
 public:
  /// `descriptors`: how many may be open.
  explicit TreeFiles(std::vector<ServedTree> trees = {}, std::size_t descriptors = 0);
  TreeFiles(const TreeFiles&) = delete;
  TreeFiles& operator=(const TreeFiles&) = delete;
  ~TreeFiles();

  const std::vector<ServedTree>& trees() const { return trees_; }
  /// Of the trees' directories.
  std::vector<int> descriptors() const;

  /// Before the first read: files that are in the bundle are read from it, and from their originals
  /// only where it is damaged.
  void from_bundle(std::shared_ptr<BundleFrames> frames) { frames_ = std::move(frames); }
  bool is_in_bundle(std::size_t tree, TreeNodeId node) const {
    return frames_ && frames_->index().trees[tree][node] != kAtOrigin;
  }

  /// Reads `into.size()` bytes of a regular file. They are within its size in the map.
  tl::expected<std::size_t, int> read(std::size_t tree, TreeNodeId node, std::span<char> into,
                                      off_t offset, MayBlock block);

  /// The path of `node`'s original.
  std::string path(std::size_t tree, TreeNodeId node) const;
  std::uint64_t files_opened() const { return counters_->opened; }
  /// Read from the originals.
  std::uint64_t bytes_read() const { return counters_->bytes; }
  /// Not found: neither in the bundle nor on this node.
  std::uint64_t unreachable() const { return counters_->unreachable; }
  /// How many files have changed. `paths` gets the first, at most `most`.
  std::size_t changed(std::size_t most, std::vector<std::string>& paths) const;
  /// The paths of the files that were opened since the bundle does not have them; without a bundle
  /// none.
  std::vector<std::string> missed() const;

 private:
  class OpenFile;
  class OpenFiles;
  class Directories;
  struct Counters {
    std::atomic<std::uint64_t> opened = 0;
    std::atomic<std::uint64_t> bytes = 0;
    std::atomic<std::uint64_t> changed = 0;
    std::atomic<std::uint64_t> unreachable = 0;
  };
  /// What was found at a file: 0, kChanged, or print_of() the file that was opened.
  using Seen = SharedArray<std::atomic<std::uint64_t>>;

  tl::expected<void, int> open(OpenFile& file, std::size_t tree, TreeNodeId node);
  tl::expected<Fd, int> open_once(std::size_t tree, TreeNodeId node);
  /// Whether the file system is asked for a file's attributes; else they are those it last said.
  enum class Ask { never, if_other, always };
  tl::expected<void, int> compare(int file, std::size_t tree, TreeNodeId node, Ask ask);
  int fail_with(int code, std::size_t tree, TreeNodeId node);
  int refuse(std::size_t tree, TreeNodeId node);

  std::vector<ServedTree> trees_;
  std::shared_ptr<BundleFrames> frames_;  ///< null: there is no bundle
  std::vector<Seen> seen_;                ///< by tree, node
  Shared<Counters> counters_;
  std::unique_ptr<Directories> directories_;
  std::unique_ptr<OpenFiles> open_;
};

}  // namespace heddle
