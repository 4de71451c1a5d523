// SPDX-License-Identifier: MIT
#include "fsgen/mount_lease.hpp"

#include <cerrno>
#include <cstdlib>

#include "base/launch/private_mount.hpp"
#include "base/mount_service.hpp"
#include "base/run_directory.hpp"
#include "base/socket_pair.hpp"
#include "fsgen/guided_environment.hpp"
#include "fsgen/lease_name.hpp"

namespace heddle {
namespace {

constexpr int kListenFd = 3;
// A slow file system may need long to give the map's files; a stopped daemon must not hold us for
// ever.
constexpr std::chrono::milliseconds kMountLimit{120'000};
constexpr std::chrono::milliseconds kLockLimit{5'000};
constexpr int kAttempts = 200;  // to find or found a daemon, a few milliseconds each

Result<Child> start_daemon(const Fd& socket, const LeaseRequest& request) {
  auto here = own_program_dir();
  if (!here) return fail(std::move(here.error()));
  SpawnOptions options;
  options.fds = {{socket.get(), kListenFd}};
  options.environment = daemon_environment();
  options.untraced = true;
  std::vector<std::string> argv{"fs-mount", "--keep",
                                request.kind == KeepKind::privately ? "private" : "fusermount",
                                "--listen-fd", std::to_string(kListenFd)};
  argv.insert(argv.end(), request.mount_options.begin(), request.mount_options.end());
  argv.push_back(request.map_path);
  return spawn(*here + "/fs-mount", argv, options);
}

}  // namespace

Result<void> MountLease::greet(const std::string& map_id, std::chrono::milliseconds limit) {
  // A daemon that gives up says why before it is asked.
  const auto sent = send_message(socket_.get(), MountWord::want, map_id);
  auto answer = receive_message(socket_.get(), sent ? limit : std::chrono::milliseconds(0));
  if (!sent && !answer) return fail_errno("fs-mount", "has ended", ECONNRESET);
  if (!answer) return fail(std::move(answer.error()));
  if (answer->word == MountWord::failed) return fail(error_of(*answer));
  if (answer->word != MountWord::mounted) return fail("fs-mount", "cannot understand it");
  auto notice = parse_mounted_notice(answer->text);
  if (!notice) return fail(std::move(notice.error()));
  mount_ = std::move(*notice);
  tree_ = std::move(answer->descriptor);
  return {};
}

/// Starts the daemon at `door`, where `client` waits already: with nobody there it would end at
/// once.
Result<MountLease> MountLease::begin(Fd door, Fd client, const LeaseRequest& request,
                                     const std::string& map_id) {
  auto daemon = start_daemon(door, request);
  if (!daemon) return fail(std::move(daemon.error()));
  door.reset();
  MountLease lease(std::move(client), std::move(*daemon));
  if (auto greeted = lease.greet(map_id, kMountLimit); !greeted) {
    (void)lease.daemon_->wait_for(std::chrono::seconds(1));
    return fail(std::move(greeted.error()));
  }
  return lease;
}

Result<MountLease> MountLease::take(const LeaseRequest& request) {
  auto map_id = id_of_map(request.map_path);
  if (!map_id) return fail(std::move(map_id.error()));
  if (request.sharing == Sharing::own) {
    auto pair = make_socket_pair();
    if (!pair) return fail(std::move(pair.error()));
    return begin(std::move(pair->other), std::move(pair->one), request, *map_id);
  }
  auto name = lease_name(request, *map_id);
  if (!name) return fail(std::move(name.error()));
  const auto directory = RunDirectory::open();
  if (!directory) return fail(directory.error());
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto lock = directory->lock(*name, kLockLimit);
    if (!lock) return fail(std::move(lock.error()));
    auto socket = directory->connect_to(*name);
    if (socket) {
      lock->reset();
      MountLease lease(std::move(*socket), std::nullopt);
      auto greeted = lease.greet(*map_id, kMountLimit);
      if (greeted) return lease;
      // It ended while we came, or was killed: we look again, and may be the next to start one.
      if (greeted.error().code() == ECONNRESET) continue;
      return fail(std::move(greeted.error()));
    }
    const int code = socket.error().code();
    if (code != ECONNREFUSED && code != ENOENT) return fail(std::move(socket.error()));
    directory->remove(*name);  // of one that was killed
    auto listener = directory->listen_at(*name);
    if (!listener) return fail(std::move(listener.error()));
    socket = directory->connect_to(*name);
    if (!socket) return fail(std::move(socket.error()));
    lock->reset();
    return begin(std::move(*listener), std::move(*socket), request, *map_id);
  }
  return fail("fs-mount", "cannot be shared", "it comes and goes");
}

Result<void> MountLease::enter() const {
  if (!tree_) return {};
  return attach_privately(tree_.get(), mount_.mount_point);
}

void MountLease::tell_warm() const { (void)send_message(socket_.get(), MountWord::warm, {}); }

Result<MountLease::End> MountLease::finish(std::chrono::milliseconds limit) {
  tree_.reset();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  Result<MountMessage> answer = fail_errno("", "cannot hear from the mount's daemon", ECONNRESET);
  if (send_message(socket_.get(), MountWord::bye, {}))
    answer = receive_message(socket_.get(), limit);
  if (!answer && answer.error().code() == ETIMEDOUT) return fail(std::move(answer.error()));
  if (!answer || answer->word != MountWord::counters)  // it was killed
    return fail_errno(mount_.mount_point, "the mount has ended", ECONNRESET);
  End end;
  char* json = nullptr;
  end.last = std::strtoul(answer->text.c_str(), &json, 10) == 0;
  end.counters = json;
  if (!end.last) return end;
  // The socket closes with the daemon.
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  auto closed = receive_message(socket_.get(), left);
  end.still_used = !closed && closed.error().code() == ETIMEDOUT;
  if (!end.still_used && daemon_) (void)daemon_->wait_for(limit);
  return end;
}

MountLease::~MountLease() {
  // It ends by itself, when nobody holds the mount.
  if (daemon_) (void)daemon_->release();
}

}  // namespace heddle
