// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "base/result.hpp"
#include "fuseovl/keep/keeper_protocol.hpp"
#include "fuseovl/keep/kept_mount.hpp"

namespace heddle {

enum class Sharing : std::uint8_t {
  own,     ///< a mount of one's own
  shared,  ///< one for all fs-gens of this user and map that run here at a time
};

struct LeaseRequest {
  KeepKind kind = KeepKind::privately;
  Sharing sharing = Sharing::shared;
  std::string map_path;                    ///< absolute
  std::vector<std::string> mount_options;  ///< of fs-mount: what differs in them shares nothing
};

/// Our hold on a mount that a daemon keeps (fs-mount --keep): the first fs-gen starts the daemon,
/// others with the same map find it, and it ends when the last has gone. What finds it is the name
/// of an abstract unix socket: taken by one at a time, gone with its owner however he ends, and
/// nothing on disk can be stale or planted. The other end must be our own user's.
class MountLease {
 public:
  /// Failure: code() ESTALE when the map does not fit this node, so that no other way to mount can
  /// help; else the mount could not be made in this way.
  static Result<MountLease> take(const LeaseRequest& request);

  const MountedNotice& mount() const { return mount_; }
  /// It stood already.
  bool joined() const { return !daemon_; }
  /// The daemon is to remove `folder` should we be killed; it may do so as soon as the lease ends.
  void guard_folder(const std::string& folder);
  /// In APP's process: makes the mount visible there.
  Result<void> enter() const;
  /// There, behind a warm-up pass: others need none.
  void tell_warm() const;

  struct End {
    std::string counters;     ///< the daemon's, JSON
    bool last = false;        ///< nobody else holds the mount
    bool still_used = false;  ///< ... but it is used at the deadline, by what APP left behind
  };
  /// After APP has ended. Failure: code() ETIMEDOUT when the daemon, which serves on, has not
  /// answered within `limit`; else it is not there any more.
  Result<End> finish(std::chrono::milliseconds limit);
  MountLease(MountLease&&) = default;
  MountLease& operator=(MountLease&&) = delete;
  ~MountLease();

 private:
  MountLease(Fd socket, std::optional<Child> daemon)
      : socket_(std::move(socket)), daemon_(std::move(daemon)) {}
  Result<void> greet(std::chrono::milliseconds limit);

  Fd socket_;
  std::optional<Child> daemon_;
  MountedNotice mount_;
  Fd tree_;
};

}  // namespace heddle
