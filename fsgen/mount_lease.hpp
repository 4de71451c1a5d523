// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/result.hpp"
#include "fuseovl/keep/kept_mount.hpp"
#include "fuseovl/keep/mounted_notice.hpp"

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
/// others with the same map find it, and it ends when the last has gone. What finds it is a socket
/// in the user's run directory (base/run_directory.hpp); who looks for one, founds one or closes
/// one has the name's lock meanwhile, so that a dead one is told from one that is about to be
/// there.
class MountLease {
 public:
  /// Failure: code() ESTALE when the map does not fit this node, so that no other way to mount can
  /// help; else the mount could not be made in this way.
  static Result<MountLease> take(const LeaseRequest& request);

  const MountedNotice& mount() const { return mount_; }
  /// It stood already.
  bool joined() const { return !daemon_; }
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
  static Result<MountLease> begin(Fd door, Fd client, const LeaseRequest& request,
                                  const std::string& map_id);
  Result<void> greet(const std::string& map_id, std::chrono::milliseconds limit);

  Fd socket_;
  std::optional<Child> daemon_;
  MountedNotice mount_;
  Fd tree_;
};

}  // namespace heddle
