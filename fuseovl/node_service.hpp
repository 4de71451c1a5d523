// SPDX-License-Identifier: MIT
#pragma once

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/listener.hpp"
#include "fuseovl/mount/task.hpp"
#include "fuseovl/node_mounts.hpp"

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
///
/// For each map one process at a time checks or mounts, whatever the number of those who wait: who
/// comes while it works gets the next one's answer, since files may have changed behind it.
class NodeService {
 public:
  /// Makes the folder, which must be this user's alone to write to. EADDRINUSE: a service runs.
  static Result<NodeService> start(const MountSettings& settings, const std::string& folder);
  /// Answers until the descriptor `signals` (signalfd(2)) has something to read.
  void run(const Fd& signals);
  /// Takes all mounts out of the tree; each ends with its last user. Removes the folder.
  void end();

 private:
  NodeService(const MountSettings& settings, std::string folder, Fd lock, Fd listener)
      : settings_(settings),
        folder_(std::move(folder)),
        lock_(std::move(lock)),
        listener_(std::move(listener)),
        mounts_(folder_) {}

  struct Client {
    Fd socket;
    std::string map;
  };
  /// What is done for one map.
  struct Work {
    std::string id;
    std::string map;
    std::optional<Task> task = {};
    bool mounts = false;             ///< and does not check any more
    std::vector<Client> heard = {};  ///< get its answer
    std::vector<Client> later = {};  ///< get the next one's
  };

  std::vector<pollfd> entries(int signals) const;
  int poll_timeout() const;
  void hear_clients(const std::vector<pollfd>& polled);
  void hear(Fd client);
  void want(const std::string& id, Client client);
  void go_on(const std::vector<pollfd>& polled);
  /// Those who came later for the same file are to get the next answer.
  void take_later(Work& work);
  /// Starts on those who came later. False: there are none.
  bool begin(Work& work);
  /// The task has ended. False: there is no more to do.
  bool go_on(Work& work);
  void answer(Work& work, const Result<void>& ready);

  MountSettings settings_;
  std::string folder_;
  Fd lock_;
  Listener listener_;
  NodeMounts mounts_;
  std::vector<Fd> silent_;  ///< clients that have not said what they want
  std::list<Work> works_;   ///< one a map
};

}  // namespace heddle
