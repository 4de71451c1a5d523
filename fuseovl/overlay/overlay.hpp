// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fuseovl/files/object_files.hpp"
#include "fuseovl/files/reader_pool.hpp"
#include "fuseovl/overlay/serving_state.hpp"
#include "fuseovl/overlay/stats.hpp"
#include "fuseovl/overlay/tree.hpp"
#include "fuseovl/session/counters.hpp"
#include "fuseovl/session/session.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {

/// All that one mount serves; made before mounting, constant while it stands.
struct OverlayContent {
  Tree tree;
  ObjectFiles files;
  std::string index;  ///< bytes of `.heddle/index`
  /// Bytes of the map's generated files, in its order.
  std::vector<std::string> generated;
  Fd map_file;  ///< in memory; served as `.heddle/map`
  struct stat map_status {};
  StatsFacts facts;
  timespec made{};  ///< time of all that has none of its own
  /// After so long a read that its file system does not answer is an error; 0: never.
  std::chrono::milliseconds origin_timeout = kOriginTimeout;
};

/// The file system: answers the kernel's requests from an OverlayContent. Thread-safe; the ops
/// table goes to Session::create with the Overlay as its client. Processes forked from the one that
/// made it have its state in common, and any of them can go on where another stopped.
class Overlay final : public SessionClient {
 public:
  explicit Overlay(OverlayContent content);

  static const fuse_lowlevel_ops& ops();

  /// Every descriptor it serves from.
  std::vector<int> descriptors() const;
  /// Every file and directory that it may have to open by its path.
  std::vector<std::string> reopened() const { return content_.files.reopened(); }
  /// The directory of the staged copies, when there is one.
  std::vector<std::string> staged_in() const;
  /// ObjectFiles::start_staging().
  std::optional<pid_t> start_staging() { return content_.files.start_staging(); }
  /// The statistics of this moment (render_stats()).
  std::string stats_text() const { return render_stats(content_.facts, *state_, content_.files); }
  const RequestCounters& counters() const { return state_->counters; }
  ServingState& state() { return *state_; }
  const OverlayContent& content() const { return content_; }
  /// Called when the kernel and we have agreed on the protocol, by each process that serves:
  /// requests are answered from here.
  void on_ready(std::function<void()> callback) { on_ready_ = std::move(callback); }

  void on_request(std::uint32_t opcode) noexcept override { state_->counters.count(opcode); }

  // One for each operation; each answers the request exactly once.
  void init(fuse_conn_info& connection);
  void lookup(fuse_req_t request, fuse_ino_t parent, const char* name);
  void getattr(fuse_req_t request, fuse_ino_t ino, fuse_file_info*);
  void getxattr(fuse_req_t request, fuse_ino_t ino, const char* name, std::size_t size);
  void readlink(fuse_req_t request, fuse_ino_t ino);
  void open(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info);
  void opendir(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info);
  void read(fuse_req_t request, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info*);
  void readdir(fuse_req_t request, fuse_ino_t ino, std::size_t size, off_t offset, fuse_file_info*);
  void readdirplus(fuse_req_t request, fuse_ino_t ino, std::size_t size, off_t offset,
                   fuse_file_info*);
  void statfs(fuse_req_t request, fuse_ino_t);

 private:
  struct stat attributes(InodeNumber ino) const;
  fuse_entry_param entry(InodeNumber ino) const;
  void list(fuse_req_t request, InodeNumber ino, std::size_t size, off_t offset, bool plus);
  void reply_bytes(fuse_req_t request, std::string_view bytes, std::size_t size, off_t offset);
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
  bool opens_can_be_skipped_ = false;
  bool opendirs_can_be_skipped_ = false;
};

}  // namespace heddle
