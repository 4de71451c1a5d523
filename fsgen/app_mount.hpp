// SPDX-License-Identifier: MIT
#pragma once

// How APP's process gets the map's mount. A lease is a share of a mount that a service holds
// (fs-mount --keep): one for all running fs-gens of a user and map. Otherwise APP's process makes a
// mount of its own, in a user namespace or where no lease is possible, and a daemon that fs-gen
// starts (fs-mount --fuse-fd) serves it.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/mount_service.hpp"
#include "fsgen/gen_options.hpp"
#include "fuseovl/mount/kernel_mount.hpp"

namespace heddle {

/// `wanted`, or for Via::best the ways that may work for this user, in the order to try: with trees
/// first the private mount, which alone can have them.
std::vector<Via> ways_to_try(Via wanted, bool trees);
/// As the report names it.
std::string name_of(Via via);
/// How APP's environment differs from an unguided run; one short sentence each.
std::vector<std::string> limits_of(Via via);
/// What the way requires: the hint of its failure.
std::string hint_for(Via via);

struct MountOrder {
  std::string map_path;              ///< absolute
  int map = -1;                      ///< open on the map; another one may be at its path by now
  std::string map_id;                ///< of that file
  std::vector<std::string> options;  ///< of fs-mount; only equal ones share a mount
  std::string log;                   ///< of a daemon that is started for it; empty: none
  bool no_child = false;             ///< the service is no child of this process, which becomes APP
};

struct DaemonCounters {
  std::uint64_t requests = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t tree_files = 0;                   ///< of the trees, that were read
  std::uint64_t writes_refused = 0;               ///< to trees
  std::optional<std::string> first_refused = "";  ///< outside __pycache__; nullopt: unknown
  std::vector<std::string> changed;  ///< files of trees that changed: some of the paths
  std::uint64_t changed_files = 0;
  std::uint64_t bad_frame_reads = 0;     ///< of the bundle: no copy has the frame as it was packed
  std::vector<std::string> from_origin;  ///< files that the bundle lacks: some of the paths
  std::uint64_t from_origin_files = 0;

  /// Since `before`. Paths that another run met before this one are left out.
  DaemonCounters since(const DaemonCounters& before) const;
};

/// The state of a mount when APP has ended.
struct MountEnd {
  std::optional<DaemonCounters> counters;  ///< nullopt: the daemon did not answer
  bool still_used = false;                 ///< by processes that APP left behind
};

/// A lease of a service's mount: the first fs-gen starts the service, others with the same map
/// connect to its socket in the user's run directory, and it ends with its last client. A lock on
/// the socket's name is held while a service is looked up, started or closed.
class MountLease {
 public:
  enum class Sharing : std::uint8_t { own, shared };
  enum class Kind : std::uint8_t { privately, fusermount };  ///< fs-mount --keep
  static Result<MountLease> take(Kind kind, Sharing sharing, const MountOrder& order);

  const std::string& mount_point() const { return mount_.mount_point; }
  /// Whether another process started the service.
  bool joined() const { return !service_; }
  /// In APP's process: makes the mount visible there.
  Result<void> enter() const;

  /// This process becomes APP, which then holds the lease.
  Result<void> keep_over_exec() const { return client_.keep_over_exec(); }

  /// After APP has ended; counts since take(). Failure: the mount ended before APP. A service too
  /// busy to answer is no failure.
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

/// In APP's process, single-threaded: makes a private mount. Result: the device to serve.
Result<Fd> mount_privately(const std::string& mount_point);

/// fs-mount, serving a device that APP's process mounted. It ends with the last process that uses
/// the mount, which may be after fs-gen.
class OwnDaemon {
 public:
  /// Waits until the daemon answers; it removes `cleanup` when it ends.
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
