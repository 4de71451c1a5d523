// SPDX-License-Identifier: MIT
#pragma once

#include <list>
#include <string>

#include "base/fd.hpp"
#include "fuseovl/mount_program.hpp"
#include "fuseovl/node_check.hpp"

namespace heddle {

inline constexpr const char* kNodeFolder = "/run/heddle/node";

/// One mount a map for all containers of a node (fs-mount --node): `FOLDER/ID`, ID being the hash
/// of the map's bytes. Each is served by a daemon of its own, which outlives the service; a service
/// that starts again goes on with the mounts it finds.
///
/// Who wants a map connects to FOLDER/socket (SOCK_SEQPACKET) and sends `ID PATH`; the answer is
/// a detached copy of the mount, or an error (base/socket_pair.hpp). Only the service's own user is
/// heard: a map makes it open files. The answer is given when every file of the host is still as
/// the map says; a mount whose files have changed leaves the tree, and its users keep it.
class NodeService {
 public:
  /// Makes the folder, which must be this user's alone to write to. EADDRINUSE: a service runs.
  static Result<NodeService> start(const MountSettings& settings, const std::string& folder);
  /// Answers until the descriptor `signals` (signalfd(2)) has something to read.
  void run(int signals);
  /// Takes all mounts out of the tree; each ends with its last user. Removes the folder.
  void end();

 private:
  NodeService(const MountSettings& settings, std::string folder, Fd lock, Fd listener)
      : settings_(settings),
        folder_(std::move(folder)),
        lock_(std::move(lock)),
        listener_(std::move(listener)) {}

  void adopt_mounts();
  /// Somebody who waits until his map is checked.
  struct Asked {
    Fd client;
    std::string id;
    std::string map;
    NodeCheck check;
  };

  void hear(Fd client);
  void answer(Asked& asked);
  /// `fits`: what the check has found.
  Result<void> provide(const std::string& id, const std::string& map, const Result<void>& fits);
  Result<void> mount(const std::string& id, const std::string& map);
  void drop(std::list<std::string>::iterator id);
  std::string place(const std::string& id) const { return folder_ + "/" + id; }

  MountSettings settings_;
  std::string folder_;
  Fd lock_;
  Fd listener_;
  std::list<Asked> asked_;
  std::list<std::string> mounts_;  ///< ids; the one asked for last is the first
};

}  // namespace heddle
