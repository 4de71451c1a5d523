// SPDX-License-Identifier: MIT
// fs-mount --node: one mount for each map, for all containers of a node, at `DIRECTORY/ID`, ID
// being the hash of the map's bytes. The daemons outlive the service, and a new service takes over
// their mounts. A mount whose files have changed is detached; its users keep it.

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/notify_ready.hpp"
#include "base/run_directory.hpp"
#include "base/trusted_path.hpp"
#include "fuseovl/files/map_file.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/service/mount_server.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRootRunDirectory = "/run/heddle";
/// The least recently used mount beyond these is detached.
constexpr std::size_t kMostMounts = 32;

struct NodePlace {
  RunDirectory directory;
  Fd lock;
  Fd listener;

  /// Makes the directory, writable for this user only. EADDRINUSE: a service runs.
  static Result<NodePlace> take(const std::string& path) {
    std::error_code none;
    if (fs::path(path).parent_path() == kRootRunDirectory)
      (void)RunDirectory::open_at(kRootRunDirectory);
    else
      fs::create_directories(fs::path(path).parent_path(), none);
    auto directory = RunDirectory::open_at(path);
    if (!directory) {
      const auto& error = directory.error();
      return fail(Error::with_code(error.code(), {}, error.message(), {},
                                   "give --node a directory of its own"));
    }
    // mountinfo has the path without links, which no other user may change.
    const auto real = TRY(resolve_mount_point(path));
    if (is_systems_root()) TRY(check_trusted_directory(real));
    directory = RunDirectory::open_at(real);
    if (!directory) return fail(Error(directory.error()));
    auto lock = TRY(open_file(real + "/lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
      return fail_errno(path, "cannot serve", EADDRINUSE, "an fs-mount --node runs already");
    directory->remove(kNodeSocket);  // a killed service's: the lock is held
    auto listener = TRY(directory->listen_at(kNodeSocket));
    return NodePlace{std::move(*directory), std::move(lock), std::move(listener)};
  }
};

class NodeService : public MountServer {
 public:
  NodeService(const MountSettings& settings, NodePlace place)
      : MountServer(Holding::no),
        settings_(settings),
        directory_(std::move(place.directory)),
        lock_(std::move(place.lock)) {
    listen(std::move(place.listener));
    for (const auto& name : directory_.names())
      if (is_map_hash(name)) ids_.push_back(name);
    for (const auto& id : std::list(ids_))
      if (!stands(id)) drop(id);
  }

  /// Detaches all mounts, which end with their last users, and removes the directory.
  void end() {
    directory_.remove(kNodeSocket);
    for (const auto& id : abandon()) drop(id);
    while (!ids_.empty()) drop(ids_.front());
    directory_.remove("lock");
    directory_.remove("locks");
    (void)::rmdir(directory_.path().c_str());
  }

 private:
  std::string mount_point(const std::string& id) const override {
    return directory_.path() + "/" + id;
  }
  bool stands(const std::string& id) const {
    return is_heddle_mount(mount_point(id)) && !is_dead(mount_point(id));
  }

  bool has(const std::string& id) override {
    const auto found = std::ranges::find(ids_, id);
    if (found == ids_.end()) return false;
    if (!stands(id)) return drop(id), false;
    ids_.splice(ids_.begin(), ids_, found);
    return true;
  }

  /// Opens the files themselves: a file that hangs must not block the mount's daemon.
  Result<void> check(const std::string& id, int map) const override {
    const auto limit = settings_.load.origin_timeout;
    const auto file = TRY(MapFile::of(map, limit));
    if (TRY(file.hash()).hex() != id)
      return fail(file.path, "cannot use", "it is not the requested map");
    auto reader = TRY(file.read());
    const auto content = TRY(reader.read_all());
    const auto origins = open_origins(content, 0, limit, Compare::stamp, reader.bundle().get());
    if (origins.drifts.empty()) return {};
    // A file that differs is reported before one that does not answer.
    for (const auto& drift : origins.drifts)
      if (!drift.silent)
        return fail(Error(file.path, "does not fit this node", drift.path + ": " + drift.what)
                        .because(Cause::unfit));
    const auto& silent = origins.drifts.front();
    return fail(Error(silent.path, "cannot be checked", silent.what).because(Cause::silent));
  }
  void checked(const std::string& id, const Result<void>& done) override {
    if (!done && done.error().cause() == Cause::unfit) drop(id);
  }

  Result<void> make(const std::string& id, int map) const override {
    if (::mkdir(mount_point(id).c_str(), 0755) != 0 && errno != EEXIST)
      return fail_errno(mount_point(id), "cannot make the mount point");
    MountSettings settings = settings_;
    settings.load.map_fd = map;
    settings.map_id = id;  // of the bytes that are mounted, which check() did not read
    settings.mount_point = mount_point(id);
    return start_daemon(settings);
  }
  void made(const std::string& id, const Result<void>& done) override {
    if (!done) return drop(id);
    if (ids_.size() >= kMostMounts) drop(ids_.back());
    ids_.push_front(id);
  }
  Result<Fd> copy(const std::string& id) const override {
    return copy_mount(AT_FDCWD, mount_point(id));
  }

  /// `id` may be unknown, or half made.
  void drop(const std::string& id) {
    const auto where = mount_point(id);
    // Before Linux 6.5 an exchange leaves the old mount beneath.
    while (is_heddle_mount(where) && unmount_fuse(where, Unmount::detach)) {
    }
    (void)::rmdir(where.c_str());
    ids_.remove(std::string(id));  // `id` may be one of these
  }

  MountSettings settings_;
  RunDirectory directory_;
  Fd lock_;
  std::list<std::string> ids_;  ///< the most recently used first
};

}  // namespace

Result<void> node_program(const MountSettings& settings) {
  const sigset_t ending = ending_signals();
  ::sigprocmask(SIG_BLOCK, &ending, nullptr);
  TRY(confine_service());
  const Fd signals(::signalfd(-1, &ending, SFD_CLOEXEC));
  if (!signals) return fail_errno("", "cannot wait for signals");
  auto place = TRY(NodePlace::take(settings.node));
  NodeService service(settings, std::move(place));
  notify_ready();
  service.run(signals.get());
  service.end();
  return {};
}

}  // namespace heddle
