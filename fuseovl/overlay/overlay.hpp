// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fuseovl/files/object_files.hpp"
#include "fuseovl/files/reader_pool.hpp"
#include "fuseovl/overlay/tree.hpp"
#include "fuseovl/session/session.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {

/// A file that is nobody's on disk.
struct OwnFile {
  std::string bytes;
  timespec modified{};
};

/// What outlives the process that answers the kernel's requests, in memory that it shares with the
/// one that watches over it (fuseovl/supervise/serve.hpp).
struct ServingState {
  /// How far whoever warmed the mount is with reading ahead.
  enum class Prefetch : std::uint8_t { none, running, done };

  SessionMemory session;
  std::atomic<Prefetch> prefetch = Prefetch::none;
  std::atomic<pid_t> supervisor = 0;
  std::atomic<pid_t> worker = 0;
  std::atomic<std::uint64_t> workers_lost = 0;
  std::atomic<bool> told_ready = false;
  /// The worker's exit status, once it has done its work. It may be unable to end, for a thread
  /// that stands in a file system that does not answer.
  std::atomic<int> exit_status = kWorks;
  static constexpr int kWorks = -1;
  std::atomic<pid_t> thread = 0;        ///< one of the worker's that ends when it does
  std::atomic<bool> giving_up = false;  ///< nothing is to be waited for any more
  std::array<char, 1024> failure{};     ///< why the worker gave up; read when it has ended
};

/// What the statistics say that does not change while the mount stands.
struct StatsFacts {
  std::string map_path;
  std::string map_id;
  std::string mount_point;
  std::size_t views = 0;
  std::size_t names = 0;
  std::uint64_t index_bytes = 0;
  /// map_directory() of the maps that the mount point showed before, the latest first.
  std::vector<std::string> previous_maps;
  std::string start_time;  ///< of the mount, UTC
};

/// All that one mount serves; made before mounting, constant while it stands.
struct OverlayContent {
  Tree tree;
  ObjectFiles files;
  std::vector<OwnFile> own;  ///< by Tree::own()
  StatsFacts facts;
  timespec made{};  ///< time of all that has none of its own
  /// After so long a read that its file system does not answer is an error; 0: never.
  std::chrono::milliseconds origin_timeout = kOriginTimeout;
};

/// The file system: answers the kernel's requests from an OverlayContent. Thread-safe; the ops
/// table goes to Session::create with the Overlay as its client. Processes forked from the one that
/// made it have its state in common, and any of them can go on where another stopped.
class Overlay {
 public:
  explicit Overlay(OverlayContent content);

  static const fuse_lowlevel_ops& ops();

  ObjectFiles& files() { return content_.files; }
  /// The statistics of this moment as JSON (docs/formats/report.md), at most kMostStatsBytes: the
  /// value of the root directory's extended attribute kStatsAttribute. Takes no lock: another
  /// thread may be forking a process that calls this too.
  std::string stats_text() const;
  ServingState& state() { return *state_; }
  const OverlayContent& content() const { return content_; }
  /// Called when the kernel and we have agreed on the protocol, by each process that serves:
  /// requests are answered from here.
  void on_ready(std::function<void()> callback) { on_ready_ = std::move(callback); }

  // One for each operation; each answers the request exactly once.
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

 private:
  struct stat attributes(InodeNumber ino) const;
  fuse_entry_param entry(InodeNumber ino) const;
  void reply_bytes(fuse_req_t request, std::string_view bytes);
  /// Answers with what `read` brings, which is tried here first and in a thread that may wait
  /// for it next.
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
};

}  // namespace heddle
