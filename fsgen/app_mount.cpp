// SPDX-License-Identifier: MIT
#include "fsgen/app_mount.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/backoff.hpp"
#include "base/content_hash.hpp"
#include "base/log.hpp"
#include "base/mounts.hpp"
#include "base/run_directory.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "fuseovl/service/leftovers.hpp"

namespace heddle {
namespace {

// Opening the map's files on a slow file system takes long; a stopped service must not block a run.
constexpr std::chrono::milliseconds kMountLimit{120'000};
constexpr std::chrono::milliseconds kLockLimit{5'000};
constexpr std::chrono::milliseconds kNotAnsweredFor{60};  // the start of fs-mount takes some
constexpr int kAttempts = 200;  // to find or start a service, a few milliseconds each
// The daemon ends within milliseconds of the mount's last process; a mount that is still there
// after this is used by processes that APP left behind.
constexpr std::chrono::milliseconds kDaemonEnd{1000};

/// Starts fs-mount with `fds` as its descriptors 3, 4, ...
Result<Child> start_fs_mount(std::vector<std::string> arguments, const MountOrder& order,
                             std::initializer_list<int> fds) {
  if (is_traced_by_filter())
    return fail("fs-mount", "cannot start", "the tracer's seccomp filter would stop the daemon",
                "strace without --seccomp-bpf, or fs-gen strace APP");
  const std::string here = TRY(own_program_dir());
  SpawnOptions options;
  for (int number = 3; const int fd : fds) options.fds.emplace_back(fd, number++);
  options.environment = daemon_environment();
  options.untraced = true;
  arguments.insert(arguments.begin(), "fs-mount");
  arguments.insert(arguments.end(), order.options.begin(), order.options.end());
  if (!order.log.empty()) arguments.insert(arguments.end(), {"--log", order.log});
  return spawn(here + "/fs-mount", arguments, options);
}

Result<std::string> file_identity(const char* path) {
  struct stat st {};
  if (::stat(path, &st) != 0) return fail_errno(path, "cannot stat");
  return fmt::format("{}:{}", st.st_dev, st.st_ino);
}

/// /proc/self/cgroup without a task's own part: Slurm starts and kills the tasks of a step together
/// and gives each a group below it, .../step_0/user/task_3 (cgroup v1: .../step_0/task_3).
std::string own_cgroup() {
  std::string out;
  std::istringstream lines(read_file("/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const auto task = line.rfind("/task_");
    if (task != std::string::npos &&
        line.find_first_not_of("0123456789", task + 6) == std::string::npos)
      line.resize(task);
    out += line + "\n";
  }
  return out;
}

/// The name of the service's socket: equal only for fs-gens that one service can serve.
Result<std::string> lease_name(MountLease::Kind kind, const MountOrder& order) {
  const std::string program = TRY(own_program_dir());
  // Mount namespaces may share a run directory, and the daemon opens the map's files in its own.
  const std::string mounts = TRY(file_identity("/proc/self/ns/mnt"));
  const std::string root = TRY(file_identity("/"));
  // Contains the mount point. Slurm sets a TMPDIR of /tmp for the first task of a node alone.
  const char* tmp = std::getenv("TMPDIR");
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
  (void)::getgroups(static_cast<int>(groups.size()), groups.data());
  std::string all;
  // A job's end kills its processes by cgroup: a service must not serve other jobs.
  for (const std::string& part :
       {std::string(HEDDLE_VERSION), program, mounts, root, own_cgroup(),
        std::string(tmp ? tmp : "/tmp"), order.map_id, std::to_string(static_cast<int>(kind)),
        // A user's mount is for this group only (mount_fuse_device()), and shows what these groups
        // may read (LoadOptions::unmapped_groups).
        std::to_string(::getegid()), fmt::format("{}", fmt::join(groups, " ")),
        // Else one could refuse the other's service (is_own_server()).
        TRY(own_confinement())})
    all += part + '\0';
  for (const auto& word : order.options) all += word + '\0';
  return std::string(kLeasePrefix) + hash_bytes(all).hex();
}

struct Connection {
  Fd socket;
  std::optional<Child> service;  ///< if this process started it
};

std::optional<DaemonCounters> parse_daemon_counters(const std::string& statistics) {
  const auto parsed = nlohmann::json::parse(statistics, nullptr, false);
  if (!parsed.is_object()) return std::nullopt;
  DaemonCounters out;
  out.requests = parsed.value("requests_total", std::uint64_t{0});
  out.bytes_read = parsed.value("bytes_read", std::uint64_t{0});
  out.tree_files = parsed.value("tree_files_opened", std::uint64_t{0});
  const auto refused = parsed.value("refused_writes", nlohmann::json::object());
  out.writes_refused = refused.value("count", std::uint64_t{0});
  out.first_refused = refused.value("path", "");
  out.changed_files = parsed.value("tree_changed_files", std::uint64_t{0});
  out.changed = parsed.value("tree_changed", std::vector<std::string>());
  out.bad_frame_reads =
      parsed.value("bundle", nlohmann::json::object()).value("bad", std::uint64_t{0});
  out.from_origin_files = parsed.value("from_origin_files", std::uint64_t{0});
  out.from_origin = parsed.value("from_origin", std::vector<std::string>());
  return out;
}

Result<Child> start_service(const Fd& door, MountLease::Kind kind, const MountOrder& order) {
  const auto start = [&] {
    return start_fs_mount({"--keep", kind == MountLease::Kind::privately ? "private" : "fusermount",
                           "--listen-fd", "3"},
                          order, {door.get()});
  };
  if (!order.no_child) return start();
  const auto start_and_leave = [&]() -> Result<void> {
    auto service = TRY(start());
    (void)service.release();
    return {};
  };
  TRY(run_in_child(kMountLimit, {.dies_with_parent = false}, start_and_leave));
  return Child(-1);
}

/// A connection to the service. A confined process that may write to the directory could listen in
/// its place, and its mount would choose what APP loads: EPERM, with a warning.
Result<Fd> connect_to_own(const RunDirectory& directory, const std::string& name) {
  // The fs-gen that made the socket may end before the service that it started answers for it.
  const auto end = std::chrono::steady_clock::now() + kNotAnsweredFor;
  Backoff pauses(std::chrono::milliseconds(1), std::chrono::milliseconds(16));
  do {
    auto socket = directory.connect_to(name);
    if (socket ? is_own_server(socket->get()) : socket.error().code() != EADDRNOTAVAIL)
      return socket;
  } while (pauses.sleep_before(end));
  warn(Error(directory.path(), "another process listens in place of the mount service",
             "continuing without it", "does a container or sandbox have this directory?"));
  return fail_errno(name, "is not used", EPERM);
}

Result<Connection> connect_or_start(const std::string& name, MountLease::Kind kind,
                                    const MountOrder& order) {
  const auto directory = TRY(RunDirectory::open());
  const Fd lock = TRY(directory.lock(name, kLockLimit));
  auto socket = connect_to_own(directory, name);
  if (socket) return Connection{std::move(*socket), std::nullopt};
  const int code = socket.error().code();
  if (code != ECONNREFUSED && code != ENOENT) return fail(std::move(socket.error()));
  directory.remove(name);  // a killed service leaves it
  const Fd door = TRY(directory.listen_at(name));
  // Before the start: a service without clients ends.
  Fd client = TRY(connect_to_own(directory, name));
  return Connection{std::move(client), TRY(start_service(door, kind, order))};
}

}  // namespace

DaemonCounters DaemonCounters::since(const DaemonCounters& before) const {
  DaemonCounters out = *this;
  out.requests -= before.requests;
  out.bytes_read -= before.bytes_read;
  out.tree_files -= before.tree_files;
  out.writes_refused -= before.writes_refused;
  if (before.first_refused != "") out.first_refused.reset();
  out.changed_files -= before.changed_files;
  out.bad_frame_reads -= before.bad_frame_reads;
  // A file that changes during the run is no longer among them.
  out.from_origin_files -= std::min(out.from_origin_files, before.from_origin_files);
  const auto leave_new = [](std::vector<std::string>& paths, const std::vector<std::string>& old) {
    const std::set<std::string_view> known(old.begin(), old.end());
    std::erase_if(paths, [&](const std::string& path) { return known.contains(path); });
  };
  leave_new(out.changed, before.changed);
  leave_new(out.from_origin, before.from_origin);
  return out;
}

std::vector<Via> ways_to_try(Via wanted, bool trees) {
  if (wanted != Via::best) return {wanted};
  if (usable_namespace_kind() == NamespaceKind::mount) return {Via::private_mount, Via::direct};
  if (trees) return {Via::private_mount, Via::fusermount, Via::direct};
  // fusermount3 first: a user namespace has limits_of().
  return {Via::fusermount, Via::private_mount, Via::direct};
}

std::string name_of(Via via) {
  const bool is_root = usable_namespace_kind() == NamespaceKind::mount;
  switch (via) {
    case Via::private_mount:
      return is_root ? "mount namespace" : "user namespace";
    case Via::fusermount:
      return "fusermount3";
    case Via::direct:
      return "direct";
    case Via::best:
      break;
  }
  return "best";
}

std::vector<std::string> limits_of(Via via) {
  if (via != Via::private_mount || usable_namespace_kind() == NamespaceKind::mount) return {};
  // Measured on Linux 6.18; user_namespaces(7): one uid and one gid are mapped, setgroups is
  // denied, and execve(2) honours set-user-ID only for mapped owners.
  return {"supplementary groups show as 65534 (nogroup)", "chgrp to a supplementary group fails",
          "setuid and setgid programs gain no privilege"};
}

std::string hint_for(Via via) {
  switch (via) {
    case Via::private_mount:
      return usable_namespace_kind() == NamespaceKind::mount
                 ? "needs CAP_SYS_ADMIN and /dev/fuse; --via direct needs neither"
                 : "needs user namespaces (user.max_user_namespaces) and a /dev/fuse that users "
                   "may open; --via direct needs neither";
    case Via::fusermount:
      return "needs the setuid program fusermount3 (package fuse3), /dev/fuse, and a user with a "
             "name; --via private does not need fusermount3";
    case Via::direct:
    case Via::best:
      break;
  }
  return {};
}

Result<MountLease> MountLease::take(Kind kind, Sharing sharing, const MountOrder& order) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Connection connection;
    if (sharing == Sharing::own) {
      auto pair = TRY(make_socket_pair());
      connection.service = TRY(start_service(pair.other, kind, order));
      connection.socket = std::move(pair.one);
    } else {
      const std::string name = TRY(lease_name(kind, order));
      auto connected = connect_or_start(name, kind, order);
      if (!connected) return take(kind, Sharing::own, order);
      connection = std::move(*connected);
    }
    MountLease lease(std::move(connection.socket), std::move(connection.service));
    auto mount = lease.client_.want(order.map_id, order.map, kMountLimit);
    if (!mount) {
      // The service ended meanwhile: look it up or start it again.
      if (mount.error().cause() == Cause::lost && lease.joined()) continue;
      if (lease.service_) (void)lease.service_->wait_for(std::chrono::seconds(1));
      return fail(std::move(mount.error()));
    }
    lease.mount_ = std::move(*mount);
    if (lease.joined() && !order.no_child)  // else there is no report of APP's run
      if (const auto counted = lease.count()) lease.before_ = *counted;
    return lease;
  }
  return take(kind, Sharing::own, order);
}

Result<void> MountLease::enter() const {
  if (!mount_.tree) return {};
  // Not declared by every glibc, and <linux/mount.h> cannot stand beside <sys/mount.h>.
  constexpr unsigned kMoveMountEmptyPath = 4;  // MOVE_MOUNT_F_EMPTY_PATH
  TRY(enter_private_namespace(usable_namespace_kind()));
  if (::syscall(SYS_move_mount, mount_.tree.get(), "", AT_FDCWD, mount_point().c_str(),
                kMoveMountEmptyPath) != 0)
    return fail_errno(mount_point(), "cannot attach the mount");
  return {};
}

Result<DaemonCounters> MountLease::count() const {
  const auto root =
      mount_.tree ? "/proc/self/fd/" + std::to_string(mount_.tree.get()) : mount_point();
  const std::string text = TRY(text_from_child(kDaemonEnd, [&] { return read_stats_text(root); }));
  const auto counters = parse_daemon_counters(text);
  if (!counters) return fail(mount_point(), "its statistics are invalid");
  return *counters;
}

Result<MountEnd> MountLease::finish() {
  MountEnd end;
  const auto counted = count();
  if (counted)
    end.counters = counted->since(before_);
  else if (counted.error().code() != ETIMEDOUT)
    return fail(counted.error());
  mount_.tree.reset();
  const auto holders = client_.leave(kDaemonEnd);
  // A busy service is not a lost one: it learns of the end by the closed connection.
  if (!holders && holders.error().code() == ETIMEDOUT) return end;
  if (!holders) return fail(holders.error());
  if (*holders > 0) return end;
  // The service ends with the daemon.
  end.still_used = !client_.await_end(kDaemonEnd);
  if (!end.still_used && service_) (void)service_->wait_for(std::chrono::milliseconds(0));
  return end;
}

MountLease::~MountLease() {
  if (service_) (void)service_->release();  // ends with its last client
}

Result<Fd> mount_privately(const std::string& mount_point) {
  TRY(enter_private_namespace(usable_namespace_kind()));
  // After unshare: FUSE requires the descriptor's user namespace to be the mount's.
  auto device = TRY(open_fuse_device());
  TRY(mount_fuse_device(device.get(), mount_point));
  return device;
}

Result<OwnDaemon> OwnDaemon::start(const Fd& device, const MountOrder& order,
                                   const std::string& mount_point, const std::string& cleanup) {
  auto ready = TRY(make_socket_pair());
  auto child = TRY(start_fs_mount({"--fuse-fd", "3", "--ready-fd", "4", "--mount-point",
                                   mount_point, "--cleanup", cleanup, order.map_path},
                                  order, {device.get(), ready.other.get()}));
  ready.other.reset();
  TRY(await_ready(ready.one.get()));
  return OwnDaemon(std::move(child), std::move(ready.one));
}

MountEnd OwnDaemon::finish() {
  MountEnd end;
  const auto statistics = receive_packet(ready_.get(), kDaemonEnd);
  if (statistics) end.counters = parse_daemon_counters(statistics->text);
  end.still_used = !statistics && statistics.error().code() == ETIMEDOUT;
  const auto ended = child_.wait_for(end.still_used ? std::chrono::milliseconds(0) : kDaemonEnd);
  if (!ended || !*ended) (void)child_.release();
  return end;
}

}  // namespace heddle
