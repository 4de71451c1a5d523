// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuseovl/files/object_files.hpp"
#include "fuseovl/files/reader_pool.hpp"
#include "fuseovl/files/tree_files.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "fuseovl/overlay/tree.hpp"
#include "fuseovl/session/session.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {

/// A file of the mount that has no origin.
struct OwnFile {
  std::shared_ptr<const std::string> bytes;
  timespec modified{};
  mode_t mode = 0444;
};

/// Requests that would have changed the mount.
struct RefusedWrites {
  std::atomic<std::uint64_t> count = 0;
  std::atomic<bool> is_named = false;  ///< a process writes, or has written, `path`
  std::atomic<bool> has_path = false;
  /// Of the first, but for those in __pycache__: Python tries, and goes on without.
  std::array<char, PATH_MAX> path{};
};

/// The state that outlives a worker, in memory that it shares with the supervisor
/// (fuseovl/supervise/serve.hpp).
struct ServingState {
  /// Progress of start_prefetch().
  enum class Prefetch : std::uint8_t { none, running, done };

  SessionMemory session;
  std::atomic<Prefetch> prefetch = Prefetch::none;
  std::atomic<pid_t> supervisor = 0;
  std::atomic<pid_t> worker = 0;
  std::atomic<std::uint64_t> workers_lost = 0;
  std::atomic<bool> is_confined = false;  ///< the supervisor is, as far as the node allows it
  std::atomic<bool> ready_is_sent = false;
  RefusedWrites refused;
  /// The worker's exit status, once its work has ended. The process may be unable to end: a thread
  /// of it may wait for a file system that does not answer.
  std::atomic<int> exit_status = kWorks;
  static constexpr int kWorks = -1;
  std::atomic<pid_t> thread = 0;              ///< a thread that ends with the worker
  std::atomic<bool> giving_up = false;        ///< reads that block are answered with EIO
  std::atomic<bool> wants_originals = false;  ///< of the bundle's libraries: a frame is damaged
  std::array<char, 1024> failure{};           ///< why the worker gave up; read when it has ended
};

/// The constant part of the statistics.
struct StatsFacts {
  std::string map_path;
  std::string map_id;
  std::string mount_point;
  std::size_t views = 0;
  std::size_t names = 0;
  std::uint64_t index_bytes = 0;
  /// map_directory() of earlier maps of the mount point, the latest first.
  std::vector<std::string> previous_maps;
  std::string start_time;  ///< of the mount, UTC
};

/// All that one mount serves; made before mounting, then constant.
struct OverlayContent {
  std::shared_ptr<const std::string> map;  ///< its bytes: `tree` and `trees` have views of them
  Tree tree;
  ObjectFiles files;
  std::unique_ptr<TreeFiles> trees = std::make_unique<TreeFiles>();
  std::shared_ptr<BundleFrames> bundle;  ///< null: there is none
  std::vector<OwnFile> own;              ///< by Tree::own()
  StatsFacts facts;
  timespec made{};  ///< time of directories and of files without an origin
  /// Groups whose files this user may read though the mount's user namespace does not map them: it
  /// maps the user alone, so to the kernel it is not in them.
  std::vector<gid_t> unmapped_groups;
  /// Limit of a read whose file system does not answer; 0: none.
  std::chrono::milliseconds origin_timeout = kOriginTimeout;
};

/// The file system: answers the kernel's requests from an OverlayContent. Thread-safe; the client
/// of Session::create() with ops(). Forked processes share its state, and each can continue the
/// work of another.
class Overlay {
 public:
  explicit Overlay(OverlayContent content);

  static const fuse_lowlevel_ops& ops();

  ObjectFiles& files() { return content_.files; }
  /// Of all files and directories that are open for as long as the mount lasts.
  std::vector<int> descriptors() const;
  /// Of the mounted bundle, nullopt: there is none. Of trees' files the first in it, as many as a
  /// prefetch would have names for.
  std::optional<BundlePlaces> places_in_bundle() const;
  /// The value of kStatsAttribute (fuseovl/mount/stats_attribute.hpp), at most kMostStatsBytes.
  /// Takes no lock: another thread may be forking a process that calls this too.
  std::string stats_text() const;
  ServingState& state() { return *state_; }
  const OverlayContent& content() const { return content_; }
  /// Called by each serving process when the protocol is agreed upon.
  void on_ready(std::function<void()> callback) { on_ready_ = std::move(callback); }
  /// The session of this process, for notifications; nullptr: none are sent.
  void notify_through(fuse_session* session) { session_ = session; }

  // The FUSE operations; each answers its request exactly once.
  void init(fuse_conn_info& connection);
  void lookup(fuse_req_t request, fuse_ino_t parent, const char* name);
  void getattr(fuse_req_t request, fuse_ino_t ino, fuse_file_info*);
  void getxattr(fuse_req_t request, fuse_ino_t ino, const char* name, std::size_t size);
  void readlink(fuse_req_t request, fuse_ino_t ino);
  void open(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info);
  void opendir(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info);
  void read(fuse_req_t request, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info*);
  template <bool plus>
  void list(fuse_req_t request, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info*);
  void statfs(fuse_req_t request, fuse_ino_t);
  void listxattr(fuse_req_t request, fuse_ino_t, std::size_t size);
  /// EROFS, for the file `ino`, or for `name` in that directory.
  void refuse(fuse_req_t request, fuse_ino_t ino, const char* name);
  void write(fuse_req_t request, fuse_ino_t ino, const char*, std::size_t, off_t, fuse_file_info*);

 private:
  struct stat attributes(InodeNumber ino) const;
  struct stat attributes(const TreeNode& node) const;
  fuse_entry_param entry(InodeNumber ino) const;
  void reply_bytes(fuse_req_t request, std::string_view bytes);
  /// Answers with the result of `read`: without blocking here, else in a thread of the pool.
  template <class Read>
  void reply_read(fuse_req_t request, std::size_t lane, std::string_view path, std::size_t size,
                  Read read);

  OverlayContent content_;
  Shared<ServingState> state_;
  ReaderPool pool_;
  std::function<void()> on_ready_;
  uid_t owner_ = ::getuid();
  gid_t group_ = ::getgid();
  bool opendirs_can_be_skipped_ = false;
  fuse_session* session_ = nullptr;
};

}  // namespace heddle
