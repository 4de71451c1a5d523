// SPDX-License-Identifier: MIT
#pragma once

// How APP's process gets to see the map's mount. A lease is a share of a mount that a service keeps
// (fs-mount --keep): one for all fs-gens of this user and map that run at a time. A mount of its
// own is made by APP's process and served by a daemon that we start (fs-mount --fuse-fd): in a user
// namespace, and where a lease cannot be had.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/mount_service.hpp"
#include "fsgen/gen_options.hpp"

namespace heddle {

/// The ways to bring the map before APP, in the order to try: the one that was asked for, or, for
/// Via::best, all that this user can hope for. None of the result is Via::best.
std::vector<Via> ways_to_try(Via wanted);
/// As the report names it.
std::string name_of(Via via);
/// What APP meets under this way that it does not meet without; one short sentence each.
std::vector<std::string> limits_of(Via via);
/// What this way needs, for a user who asked for it and cannot have it.
std::string hint_for(Via via);

struct MountOrder {
  std::string map_path;              ///< absolute
  std::vector<std::string> options;  ///< of fs-mount: what differs in them shares nothing
};

/// What the daemon of a mount says of it.
struct DaemonCounters {
  std::uint64_t requests = 0;
  std::uint64_t bytes_read = 0;
};
/// Of its statistics' JSON; nullopt: it is none.
std::optional<DaemonCounters> parse_daemon_counters(const std::string& statistics);

/// What is left of a mount when APP has ended.
struct MountEnd {
  std::optional<DaemonCounters> counters;  ///< nullopt: the daemon did not say
  bool still_used = false;                 ///< by what APP left behind
};

/// Our hold on a mount that a service keeps: the first fs-gen starts the service, others with the
/// same map find it, and it ends when the last has gone. What finds it is a socket in the user's
/// run directory; its name's lock is held while a service is looked for, started or closed.
class MountLease {
 public:
  enum class Sharing : std::uint8_t { own, shared };
  enum class Kind : std::uint8_t { privately, fusermount };  ///< fs-mount --keep
  static Result<MountLease> take(Kind kind, Sharing sharing, const MountOrder& order);

  const std::string& mount_point() const { return mount_.mount_point; }
  /// The service ran already.
  bool joined() const { return !service_; }
  /// In APP's process: makes the mount visible there.
  Result<void> enter() const;

  /// After APP has ended; the counters are those since take(). Failure: the mount has ended before.
  Result<MountEnd> finish();
  MountLease(MountLease&&) = default;
  MountLease& operator=(MountLease&&) = delete;
  ~MountLease();

 private:
  MountLease(Fd socket, std::optional<Child> service)
      : client_(std::move(socket)), service_(std::move(service)) {}
  Result<DaemonCounters> count() const;

  MountClient client_;
  std::optional<Child> service_;
  GrantedMount mount_;
  DaemonCounters before_;
};

/// In APP's process, single-threaded: a private mount of its own. Result: the device to serve.
Result<Fd> mount_privately(const std::string& mount_point);

/// fs-mount, serving a device that APP's process mounted. It outlives us while APP's own children
/// still use the mount, and ends with the last of them.
class OwnDaemon {
 public:
  /// Starts it and waits until it answers; it removes `cleanup` when it ends.
  static Result<OwnDaemon> start(const Fd& device, const MountOrder& order,
                                 const std::string& mount_point, const std::string& cleanup);
  /// After APP has ended.
  MountEnd finish();

 private:
  OwnDaemon(Child child, Fd ready) : child_(std::move(child)), ready_(std::move(ready)) {}
  Child child_;
  Fd ready_;
};

}  // namespace heddle
