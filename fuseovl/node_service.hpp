// SPDX-License-Identifier: MIT
#pragma once

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/file_stamp.hpp"
#include "base/run_directory.hpp"
#include "fuseovl/keep/reception.hpp"
#include "fuseovl/node_mounts.hpp"

namespace heddle {

inline constexpr const char* kNodeFolder = "/run/heddle/node";

/// One mount a map for all containers of a node (fs-mount --node): `FOLDER/ID`, ID being the hash
/// of the map's bytes. Each is served by a daemon of its own, which outlives the service; a service
/// that starts again goes on with the mounts it finds.
///
/// Who wants a map connects to FOLDER/socket and says its ID, with the map itself as a descriptor;
/// the answer is a detached copy of the mount, or an error (base/mount_service.hpp). Only who is
/// trusted is heard (base/run_directory.hpp): a map makes it open files. The answer is given when
/// every file of the host is still as the map says; a mount whose files have changed leaves the
/// tree, and its users keep it.
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
  NodeService(const MountSettings& settings, RunDirectory directory, Fd lock, Fd listener)
      : settings_(settings),
        directory_(std::move(directory)),
        lock_(std::move(lock)),
        reception_(Listener(std::move(listener))),
        mounts_(directory_.path()) {}

  struct Client {
    Fd socket;
    Fd map;
    FileId file;  ///< of the map: those who have opened the same one share its answer
  };
  /// What is done for one map.
  struct Work {
    std::string id;
    Fd map = {};
    FileId file = {};
    std::optional<Task> task = {};
    bool mounts = false;             ///< and does not check any more
    std::vector<Client> heard = {};  ///< get its answer
    std::vector<Client> later = {};  ///< get the next one's
  };

  std::vector<pollfd> entries(int signals) const;
  int poll_timeout() const;
  void hear(Reception::Visitor visitor);
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
  RunDirectory directory_;
  Fd lock_;
  Reception reception_;
  NodeMounts mounts_;
  std::list<Work> works_;  ///< one a map
};

}  // namespace heddle
