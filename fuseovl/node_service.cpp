// SPDX-License-Identifier: MIT
#include "fuseovl/node_service.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/log.hpp"
#include "base/process.hpp"
#include "base/socket_pair.hpp"
#include "fuseovl/keep/keeper_protocol.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/mount_state.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// A map is an image with a program; a node that runs more at once is thinkable, but not that all
/// stay in use.
constexpr std::size_t kMostMounts = 32;
constexpr std::size_t kLongestRequest = 8192;
constexpr auto kLongestMount = std::chrono::seconds(20);
constexpr timeval kPatience{1, 0};

bool is_id(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

Result<void> make_folder(const std::string& folder) {
  std::error_code none;
  fs::create_directories(fs::path(folder).parent_path(), none);
  (void)::mkdir(folder.c_str(), 0755);
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) return fail_errno(folder, "cannot use");
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 0022) != 0)
    return fail(folder, "cannot use", "others may write to it", "give --node a folder of its own");
  return {};
}

Result<Fd> listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return fail_errno(path, "cannot listen", ENAMETOOLONG);
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  (void)::unlink(path.c_str());  // of one that was killed: we have the lock
  Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(listener.get(), SOMAXCONN) != 0)
    return fail_errno(path, "cannot listen");
  return listener;
}

bool is_mounted(const std::string& place) {
  const auto mounted = find_mount(place);
  return mounted && *mounted && (*mounted)->type == kMountType;
}

/// What is in a pipe that may still have writers.
std::string drain(const Fd& pipe) {
  char text[4096];
  std::string out;
  (void)::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  for (ssize_t n; (n = ::read(pipe.get(), text, sizeof(text))) > 0;)
    out.append(text, static_cast<std::size_t>(n));
  while (out.ends_with('\n')) out.pop_back();
  return out;
}

}  // namespace

Result<NodeService> NodeService::start(const MountSettings& settings, const std::string& folder) {
  if (auto made = make_folder(folder); !made) return fail(std::move(made.error()));
  auto lock = open_file(folder + "/lock", O_RDWR | O_CREAT, 0600);
  if (!lock) return fail(std::move(lock.error()));
  if (::flock(lock->get(), LOCK_EX | LOCK_NB) != 0)
    return fail_errno(folder, "cannot serve", EADDRINUSE, "an fs-mount --node runs already");
  auto listener = listen_at(folder + "/socket");
  if (!listener) return fail(std::move(listener.error()));
  NodeService service(settings, folder, std::move(*lock), std::move(*listener));
  service.adopt_mounts();
  return service;
}

void NodeService::adopt_mounts() {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(folder_, gone)) {
    const auto id = entry.path().filename().string();
    if (!is_id(id)) continue;
    mounts_.push_back(id);
    if (!is_mounted(place(id)) || is_dead(place(id))) drop(std::prev(mounts_.end()));
  }
}

void NodeService::run(int signals) {
  for (;;) {
    std::vector<pollfd> entries{{signals, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const auto& asked : asked_) entries.push_back({asked.check.ended(), POLLIN, 0});
    if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (entries[0].revents != 0) return;
    auto entry = entries.begin() + 2;
    for (auto asked = asked_.begin(); asked != asked_.end(); ++entry) {
      const auto next = std::next(asked);
      if (entry->revents != 0) {
        answer(*asked);
        asked_.erase(asked);
      }
      asked = next;
    }
    if (Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); client)
      hear(std::move(client));
  }
}

void NodeService::hear(Fd client) {
  // A client that says nothing must not hold up the others.
  (void)::setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  std::string request(kLongestRequest, '\0');
  const ssize_t n = ::recv(client.get(), request.data(), request.size(), 0);
  if (n <= 0) return;
  request.resize(static_cast<std::size_t>(n));
  const auto space = std::min(request.find(' '), request.size());
  auto id = request.substr(0, space);
  auto map = request.substr(std::min(space + 1, request.size()));
  auto check = [&]() -> Result<NodeCheck> {
    if (!is_id(id) || !map.starts_with('/') || map.find('\0') != map.npos)
      return fail("fs-mount --node", "cannot understand it", "is it of another version?");
    // Root may reach any socket.
    if (!is_own_user(client.get())) return fail("fs-mount --node", "is another user's");
    return NodeCheck::start(id, map, settings_.load.origin_timeout);
  }();
  if (check)
    asked_.push_back({std::move(client), std::move(id), std::move(map), std::move(*check)});
  else
    send_failure(client.get(), check.error());
}

void NodeService::answer(Asked& asked) {
  const auto tree = [&]() -> Result<Fd> {
    if (auto provided = provide(asked.id, asked.map, asked.check.result()); !provided)
      return fail(std::move(provided.error()));
    return copy_mount(place(asked.id));
  }();
  if (tree)
    (void)send_fd(asked.client.get(), tree->get());
  else
    send_failure(asked.client.get(), tree.error());
}

Result<void> NodeService::provide(const std::string& id, const std::string& map,
                                  const Result<void>& fits) {
  const auto found = std::find(mounts_.begin(), mounts_.end(), id);
  const bool is_known = found != mounts_.end();
  if (!fits) {
    if (is_known && fits.error().code() == ESTALE) drop(found);
    return fits;
  }
  if (is_known && is_mounted(place(id)) && !is_dead(place(id))) {
    mounts_.splice(mounts_.begin(), mounts_, found);
    return {};
  }
  if (is_known) drop(found);
  return mount(id, map);
}

Result<void> NodeService::mount(const std::string& id, const std::string& map) {
  if (mounts_.size() >= kMostMounts) drop(std::prev(mounts_.end()));
  if (::mkdir(place(id).c_str(), 0755) != 0 && errno != EEXIST)
    return fail_errno(place(id), "cannot make the mount point");
  mounts_.push_front(id);
  auto talk = make_pipe();
  if (!talk) return fail(std::move(talk.error()));
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fs-mount", "cannot start a daemon");
  if (pid == 0) {
    ::dup2(talk->write_end.get(), STDERR_FILENO);
    lock_.reset();
    listener_.reset();
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    MountSettings settings = settings_;
    settings.load.map_path = map;
    settings.mount_point = place(id);
    settings.foreground = false;
    ::_exit(mount_program(settings));
  }
  Child child(pid);
  talk->write_end.reset();
  const auto status = child.wait_for(kLongestMount);
  if (status && *status && **status == 0) return {};
  auto words = drain(talk->read_end);
  drop(mounts_.begin());
  if (status && !*status) words = "it takes too long";
  return fail(Error({}, words.empty() ? "fs-mount: it ended without a word" : words));
}

void NodeService::drop(std::list<std::string>::iterator id) {
  const auto where = place(*id);
  if (is_mounted(where)) (void)unmount_fuse(where, Unmount::detach);
  (void)::rmdir(where.c_str());
  mounts_.erase(id);
}

void NodeService::end() {
  (void)::unlink((folder_ + "/socket").c_str());
  while (!mounts_.empty()) drop(mounts_.begin());
  (void)::unlink((folder_ + "/lock").c_str());
  (void)::rmdir(folder_.c_str());
}

}  // namespace heddle
