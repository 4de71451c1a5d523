// SPDX-License-Identifier: MIT
// fs-mount --keep: one mount for the fs-gens that connect. A private one is in a mount namespace of
// its own, and clients get copies of it, each for its own namespace. Root's service is in that
// namespace itself. A user's is below a user namespace, in which the service could not examine its
// clients (is_trusted_peer()), so it stays outside, and a child enters for each copy. Else the
// mount is made by fusermount3 in the user's namespace. The service unmounts when the last client
// has disconnected, be it by kill -9; a daemon whose service was killed unmounts by itself.

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>

#include "base/backoff.hpp"
#include "base/log.hpp"
#include "base/mounts.hpp"
#include "base/run_directory.hpp"
#include "base/sandbox/privileges.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/service/leftovers.hpp"
#include "fuseovl/service/mount_server.hpp"
#include "fuseovl/supervise/worker_sandbox.hpp"

namespace heddle {
namespace {

constexpr std::chrono::seconds kUnmountLimit{3};
// All clients wait meanwhile. No file server is asked: a millisecond, unless the child is stopped.
constexpr std::chrono::seconds kCopyLimit{2};
// Of unmounting what fusermount3 mounted and a program's children still use: the kernel reports no
// end of that.
constexpr std::int64_t kFirstRetryMs = 5;

/// The last part of the path that a socket is bound to; empty: one of a pair.
std::string name_of(int socket) {
  sockaddr_un address{};
  socklen_t size = sizeof(address) - 1;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const std::string path = address.sun_path;
  return path.substr(path.rfind('/') + 1);
}

class LeaseService : public MountServer {
 public:
  /// `listener` may be one of a pair: the only client.
  LeaseService(const MountSettings& settings, Fd listener)
      : MountServer(Holding::until_disconnect), settings_(settings) {
    name_ = name_of(listener.get());
    // A client looks at this process, and not at the fs-gen that made the socket.
    if (!name_.empty()) ready_ = answer_for(listener.get());
    name_.empty() ? add_client(std::move(listener)) : listen(std::move(listener));
    if (ready_) ready_ = set_up();
  }

  /// Unmounts before the clients see the service's end.
  void end() {
    const std::string directory = work_ ? work_->directory.path() : "";
    if (work_ && is_heddle_mount(settings_.mount_point))
      (void)unmount_fuse(settings_.mount_point, Unmount::detach, kUnmountLimit);
    work_.reset();
    hang_up();
    if (!directory.empty()) sweep_leftovers(directory.substr(0, directory.rfind('/')));
  }

 private:
  /// Makes the mount point, and enters root's namespace. A failure is every client's answer.
  Result<void> set_up() {
    sweep_sockets();
    work_ = TRY(WorkDirectory::make());
    settings_.mount_point = work_->directory.path() + "/m";
    if (::mkdir(settings_.mount_point.c_str(), 0755) != 0)
      return fail_errno(work_->directory.path(), "cannot make the mount point");
    if (*settings_.keep == KeepKind::fusermount || stays_outside()) return {};
    TRY(enter_private_namespace(NamespaceKind::mount));
    TRY(confine_service(clears_by_owner() ? 0 : std::uint64_t{1} << CAP_DAC_OVERRIDE));
    if (auto filtered = filter_service(); !filtered) warn(filtered.error());
    return {};
  }

  /// Whether the mount is in a user's namespaces, which its maker has entered alone.
  bool stays_outside() const {
    return *settings_.keep == KeepKind::privately &&
           usable_namespace_kind() == NamespaceKind::user_and_mount;
  }

  /// Whether root without any capability can remove the directory.
  bool clears_by_owner() const {
    const auto path = work_->directory.path();
    struct stat above {};
    if (::stat(path.substr(0, path.rfind('/')).c_str(), &above) != 0) return false;
    const mode_t write = above.st_uid == 0 ? S_IWUSR : S_IWOTH;
    return is_open_to_powerless_root(path) && (above.st_mode & write) != 0;
  }

  bool has(const std::string& id) override { return stands_ && id == id_; }
  Result<void> check(const std::string&, int) const override { return {}; }
  std::vector<int> prepare(const std::string& id) override {
    if (stands_ || !making_.empty()) return {};  // make() refuses
    making_ = id;
    auto pair = make_socket_pair();
    if (!pair) return {};
    daemon_ = std::move(pair->one);
    service_ = std::move(pair->other);
    return {service_.get()};
  }
  Result<void> make(const std::string& id, int map) const override {
    TRY(Result<void>(ready_));
    if (id != making_) return fail("fs-mount", "serves another map here");
    if (!service_) return fail_errno("fs-mount", "cannot start a daemon", EMFILE);
    MountSettings settings = settings_;
    settings.load.map_fd = map;
    settings.map_id = id;
    settings.service_fd = service_.get();
    settings.cleanup = work_->directory.path();  // if the service is killed
    if (!stays_outside()) return start_daemon(settings);
    settings.load.unmapped_groups = supplementary_groups();
    TRY(enter_private_namespace(NamespaceKind::user_and_mount));
    const Fd user = TRY(open_file("/proc/self/ns/user", O_RDONLY));
    const Fd mounts = TRY(open_file("/proc/self/ns/mnt", O_RDONLY));
    TRY(start_daemon(settings));
    return send_packet(service_.get(), "+", std::array{user.get(), mounts.get()});
  }
  /// Less than the 120 s that clients wait.
  std::chrono::milliseconds longest_mount() const override { return std::chrono::seconds(115); }
  void made(const std::string& id, const Result<void>& done) override {
    if (id != making_) return;  // another map was asked for
    making_.clear();
    service_.reset();
    if (done && stays_outside())
      if (auto entered = receive_packet(daemon_.get(), std::chrono::milliseconds(0)))
        namespaces_ = std::move(entered->fds);
    if (!done) {
      daemon_.reset();
      // A child that is late or killed may have mounted.
      if (is_heddle_mount(settings_.mount_point))
        (void)unmount_fuse(settings_.mount_point, Unmount::detach);
      return;
    }
    stands_ = true;
    id_ = id;
  }
  std::string mount_point(const std::string&) const override { return settings_.mount_point; }
  Result<Fd> copy(const std::string&) const override {
    if (*settings_.keep == KeepKind::fusermount) return Fd();
    if (!stays_outside()) return copy_mount(AT_FDCWD, settings_.mount_point);
    if (namespaces_.size() != 2) return fail("fs-mount", "its namespaces are lost");
    const auto sockets = TRY(make_socket_pair());
    const auto copied = run_in_child(kCopyLimit, {}, [&]() -> Result<void> {
      if (::setns(namespaces_[0].get(), CLONE_NEWUSER) != 0 ||
          ::setns(namespaces_[1].get(), CLONE_NEWNS) != 0)
        return fail_errno("fs-mount", "cannot enter the mount's namespaces");
      const Fd tree = TRY(copy_mount(AT_FDCWD, settings_.mount_point));
      return send_fd(sockets.other.get(), tree.get());
    });
    if (!copied) return fail(copied.error());
    return receive_fd(sockets.one.get());
  }

  void add_to(std::vector<pollfd>& polled) const override {
    if (stands_) polled.push_back({daemon_.get(), POLLIN, 0});
  }
  std::int64_t wakes_at() const override { return retry_at_; }

  bool is_done(const std::vector<pollfd>& polled) override {
    if (stands_ && has_input(polled, daemon_)) return close_door(), true;
    if (is_busy() || monotonic_ms() < retry_at_) return false;
    retry_at_ = 0;
    if (!close_door()) {
      retry_at_ = monotonic_ms() + kFirstRetryMs;
      return false;
    }
    if (!stands_) return true;
    if (!released_) release();
    return false;  // until the daemon has ended
  }

  /// Stops listening and frees the socket's name, unless a client has just connected: clients hold
  /// the name's lock while they connect. False: try again.
  bool close_door() {
    if (!listens()) return true;
    const auto directory = RunDirectory::open();
    const auto lock = directory ? directory->lock(name_, {}) : Fd();
    if (!lock && lock.error().code() == ETIMEDOUT) return false;
    accept();
    if (is_busy()) return false;
    if (directory) directory->remove(name_);
    stop_listening();
    return true;
  }

  /// Unmounts, at once or at a later try.
  void release() {
    if (stays_outside()) {  // the daemon unmounts
      released_ = ::shutdown(daemon_.get(), SHUT_WR) == 0;
      return;
    }
    const auto how = *settings_.keep == KeepKind::privately ? Unmount::detach : Unmount::now;
    const auto done = unmount_fuse(settings_.mount_point, how, kUnmountLimit);
    released_ = done.has_value();
    if (done) return;
    if (done.error().cause() == Cause::silent && !std::exchange(hang_is_reported_, true))
      say(done.error().message() + "; the mount stays until it does");
    retry_at_ =
        monotonic_ms() + std::chrono::ceil<std::chrono::milliseconds>(pauses_.next()).count();
  }

  MountSettings settings_;
  std::string name_;  ///< of the socket in the run directory; empty: none
  std::optional<WorkDirectory> work_;
  Result<void> ready_;
  Fd daemon_;                   ///< hangs up when the daemon has ended
  Fd service_;                  ///< the daemon's end of that pair
  std::vector<Fd> namespaces_;  ///< stays_outside(): user and mount namespace of the mount
  std::string making_;          ///< id of the map that is being mounted
  bool stands_ = false;
  std::string id_;  ///< of the map that is mounted
  bool released_ = false;
  bool hang_is_reported_ = false;
  std::int64_t retry_at_ = 0;  ///< monotonic_ms(); 0: never
  Backoff pauses_{std::chrono::milliseconds(kFirstRetryMs), std::chrono::seconds(1)};
};

}  // namespace

Result<void> lease_program(const MountSettings& settings) {
  Fd socket(settings.listen_fd);
  if (::fcntl(socket.get(), F_SETFD, FD_CLOEXEC) != 0)
    return fail_errno("--listen-fd", "cannot use");
  close_fds_but(std::vector<int>{socket.get()});
  TRY(leave_terminal(settings.log_path));
  // A job's signals stay blocked: the service ends with the last client.
  LeaseService service(settings, std::move(socket));
  service.run(-1);
  service.end();
  return {};
}

}  // namespace heddle
