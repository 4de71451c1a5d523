// SPDX-License-Identifier: MIT
#include "fsgen/mount_lease.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/launch/private_mount.hpp"
#include "base/temp_dir.hpp"
#include "fsgen/guided_environment.hpp"
#include "fsgen/lease_name.hpp"

namespace heddle {
namespace {

constexpr int kListenFd = 3;
// A slow file system may need long to give the map's files; a stopped daemon must not hold us for
// ever.
constexpr std::chrono::milliseconds kMountLimit{120'000};
constexpr int kAttempts = 200;  // to find or found a daemon, a few milliseconds each

/// An abstract name (unix(7)); empty: any that is free.
struct Address {
  explicit Address(const std::string& name) {
    where.sun_family = AF_UNIX;
    size = sizeof(sa_family_t);
    if (name.empty()) return;
    std::memcpy(where.sun_path + 1, name.data(), name.size());
    size += static_cast<socklen_t>(name.size() + 1);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&where); }
  sockaddr_un where{};
  socklen_t size = 0;
};

Result<Fd> new_socket() {
  Fd out(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!out) return fail_errno("", "cannot make a socket");
  return out;
}

/// Fails with ECONNREFUSED when nobody listens there.
Result<Fd> connect_to(const Address& address) {
  auto out = new_socket();
  if (!out) return out;
  int rc;
  do {
    rc = ::connect(out->get(), address.get(), address.size);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) return fail_errno("fs-mount", "cannot reach it");
  if (!is_own_user(out->get()))
    return fail_errno("fs-mount", "another user's process has taken its place", EPERM);
  return out;
}

/// Fails with EADDRINUSE when somebody listens there.
Result<Fd> listen_at(const Address& address) {
  auto out = new_socket();
  if (!out) return out;
  if (::bind(out->get(), address.get(), address.size) != 0 || ::listen(out->get(), 4096) != 0)
    return fail_errno("fs-mount", "cannot listen for it");
  return out;
}

Result<Address> address_of(const Fd& listener) {
  Address out{std::string()};
  out.size = sizeof(out.where);
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&out.where), &out.size) != 0)
    return fail_errno("fs-mount", "cannot listen for it");
  return out;
}

Result<Child> start_daemon(const Fd& listener, const LeaseRequest& request) {
  auto here = own_program_dir();
  if (!here) return fail(std::move(here.error()));
  SpawnOptions options;
  options.fds = {{listener.get(), kListenFd}};
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

Result<void> MountLease::greet(std::chrono::milliseconds limit) {
  if (auto sent = send_message(socket_.get(), KeeperWord::hello, {}); !sent) {
    // A daemon that gives up says why before it is asked.
    if (auto last = receive_message(socket_.get(), std::chrono::milliseconds(0));
        last && last->word == KeeperWord::unfit)
      return fail(Error::with_code(ESTALE, {}, last->text));
    return fail_errno("fs-mount", "has ended", ECONNRESET);
  }
  auto answer = receive_message(socket_.get(), limit);
  if (!answer) return fail(std::move(answer.error()));
  if (answer->word == KeeperWord::unfit) return fail(Error::with_code(ESTALE, {}, answer->text));
  if (answer->word != KeeperWord::mounted) return fail("", answer->text);
  auto notice = parse_mounted_notice(answer->text);
  if (!notice) return fail(std::move(notice.error()));
  mount_ = std::move(*notice);
  tree_ = std::move(answer->descriptor);
  return {};
}

Result<MountLease> MountLease::take(const LeaseRequest& request) {
  std::string name;
  if (request.sharing == Sharing::shared) {
    auto made = lease_name(request);
    if (!made) return fail(std::move(made.error()));
    name = std::move(*made);
  }
  const Address address(name);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (!name.empty()) {
      if (auto socket = connect_to(address)) {
        MountLease lease(std::move(*socket), std::nullopt);
        auto greeted = lease.greet(kMountLimit);
        if (greeted) return lease;
        // It ended while we came, or was killed: we look again, and may be the next to start one.
        if (greeted.error().code() == ECONNRESET) continue;
        return fail(std::move(greeted.error()));
      } else if (socket.error().code() != ECONNREFUSED) {
        return fail(std::move(socket.error()));
      }
    }
    auto listener = listen_at(address);
    if (!listener && listener.error().code() == EADDRINUSE) {
      ::poll(nullptr, 0, 2);  // bound by another, who is about to listen
      continue;
    }
    if (!listener) return fail(std::move(listener.error()));
    // First a client, then a daemon: it would end at once with nobody there.
    auto own = address_of(*listener);
    if (!own) return fail(std::move(own.error()));
    auto socket = connect_to(*own);
    if (!socket) return fail(std::move(socket.error()));
    auto daemon = start_daemon(*listener, request);
    if (!daemon) return fail(std::move(daemon.error()));
    listener->reset();
    MountLease lease(std::move(*socket), std::move(*daemon));
    if (auto greeted = lease.greet(kMountLimit); !greeted) {
      (void)lease.daemon_->wait_for(std::chrono::seconds(1));
      return fail(std::move(greeted.error()));
    }
    return lease;
  }
  return fail("fs-mount", "cannot be shared", "it comes and goes");
}

void MountLease::guard_folder(const std::string& folder) {
  (void)send_message(socket_.get(), KeeperWord::folder, folder);
}

Result<void> MountLease::enter() const {
  if (!tree_) return {};
  return attach_privately(tree_.get(), mount_.mount_point);
}

void MountLease::tell_warm() const { (void)send_message(socket_.get(), KeeperWord::warm, {}); }

Result<MountLease::End> MountLease::finish(std::chrono::milliseconds limit) {
  tree_.reset();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  Result<KeeperMessage> answer = fail_errno("", "cannot hear from the mount's daemon", ECONNRESET);
  if (send_message(socket_.get(), KeeperWord::bye, {}))
    answer = receive_message(socket_.get(), limit);
  if (!answer && answer.error().code() == ETIMEDOUT) return fail(std::move(answer.error()));
  if (!answer || answer->word != KeeperWord::counters) {
    // It was killed. Its folder is nobody's now; what is still mounted there is left.
    if (const auto slash = mount_.mount_point.rfind("/m"); slash != std::string::npos)
      (void)remove_tree(mount_.mount_point.substr(0, slash));
    return fail_errno(mount_.mount_point, "the mount has ended", ECONNRESET);
  }
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
