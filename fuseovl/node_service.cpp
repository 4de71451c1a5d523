// SPDX-License-Identifier: MIT
#include "fuseovl/node_service.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/monotonic.hpp"
#include "base/socket_pair.hpp"
#include "fuseovl/keep/keeper_protocol.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/node_check.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWho = "fs-mount --node";
constexpr std::size_t kLongestRequest = 8192;
constexpr auto kLongestMount = std::chrono::seconds(20);

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

}  // namespace

Result<NodeService> NodeService::start(const MountSettings& settings, const std::string& folder) {
  if (auto made = make_folder(folder); !made) return fail(std::move(made.error()));
  auto lock = open_file(folder + "/lock", O_RDWR | O_CREAT, 0600);
  if (!lock) return fail(std::move(lock.error()));
  if (::flock(lock->get(), LOCK_EX | LOCK_NB) != 0)
    return fail_errno(folder, "cannot serve", EADDRINUSE, "an fs-mount --node runs already");
  auto listener = listen_at(folder + "/socket");
  if (!listener) return fail(std::move(listener.error()));
  return NodeService(settings, folder, std::move(*lock), std::move(*listener));
}

void NodeService::run(const Fd& signals) {
  for (;;) {
    auto polled = entries(signals.get());
    if (::poll(polled.data(), polled.size(), poll_timeout()) < 0 && errno != EINTR) return;
    if (has_input(polled, signals)) return;
    go_on(polled);
    hear_clients(polled);
    if (listener_.is_due(polled))
      while (Fd client = listener_.accept()) silent_.push_back(std::move(client));
  }
}

std::vector<pollfd> NodeService::entries(int signals) const {
  std::vector<pollfd> out{{signals, POLLIN, 0}};
  listener_.add_to(out);
  for (const auto& client : silent_) out.push_back({client.get(), POLLIN, 0});
  for (const auto& work : works_) out.push_back({work.task->ended(), POLLIN, 0});
  return out;
}

int NodeService::poll_timeout() const {
  std::int64_t next = listener_.wakes_at();
  for (const auto& work : works_)
    if (const auto at = work.task->late_at(); at != 0 && (next == 0 || at < next)) next = at;
  return next == 0 ? -1 : static_cast<int>(std::max<std::int64_t>(0, next - monotonic_ms()));
}

void NodeService::hear_clients(const std::vector<pollfd>& polled) {
  for (auto& client : silent_)
    if (has_input(polled, client)) hear(std::move(client));
  std::erase_if(silent_, [](const Fd& client) { return !client; });
}

void NodeService::hear(Fd client) {
  std::string request(kLongestRequest, '\0');
  const ssize_t n = ::recv(client.get(), request.data(), request.size(), MSG_DONTWAIT);
  if (n <= 0) return;
  request.resize(static_cast<std::size_t>(n));
  const auto space = std::min(request.find(' '), request.size());
  const auto id = request.substr(0, space);
  auto map = request.substr(std::min(space + 1, request.size()));
  if (!NodeMounts::is_id(id) || !map.starts_with('/') || map.find('\0') != map.npos)
    send_failure(client.get(), Error(kWho, "cannot understand it", "is it of another version?"));
  else if (!is_own_user(client.get()))  // root may reach any socket
    send_failure(client.get(), Error(kWho, "is another user's"));
  else
    want(id, {std::move(client), std::move(map)});
}

void NodeService::want(const std::string& id, Client client) {
  auto work = std::find_if(works_.begin(), works_.end(), [&](const Work& w) { return w.id == id; });
  const bool is_new = work == works_.end();
  if (is_new) work = works_.insert(work, Work{id});
  work->later.push_back(std::move(client));
  if (is_new && !begin(*work)) works_.erase(work);
}

void NodeService::take_later(Work& work) {
  const auto same =
      std::stable_partition(work.later.begin(), work.later.end(),
                            [&](const Client& client) { return client.map != work.map; });
  std::move(same, work.later.end(), std::back_inserter(work.heard));
  work.later.erase(same, work.later.end());
}

bool NodeService::begin(Work& work) {
  while (!work.later.empty()) {
    work.map = work.later.front().map;
    take_later(work);
    work.mounts = false;
    auto task = Task::start(
        [&] { return check_for_node(work.id, work.map, settings_.load.origin_timeout); });
    if (task) {
      work.task.emplace(std::move(*task));
      return true;
    }
    answer(work, fail(std::move(task.error())));
  }
  return false;
}

void NodeService::go_on(const std::vector<pollfd>& polled) {
  for (auto work = works_.begin(); work != works_.end();) {
    const auto late_at = work->task->late_at();
    const bool is_due =
        work->task->has_ended(polled) || (late_at != 0 && monotonic_ms() >= late_at);
    work = !is_due || go_on(*work) ? std::next(work) : works_.erase(work);
  }
}

bool NodeService::go_on(Work& work) {
  auto ready = work.task->result();
  if (ready && !work.mounts && !mounts_.has(work.id)) {
    auto task =
        Task::start([&] { return mounts_.make(settings_, work.id, work.map); }, kLongestMount);
    if (task) {
      work.task.emplace(std::move(*task));
      work.mounts = true;
      return true;
    }
    ready = fail(std::move(task.error()));
  } else if (ready && work.mounts) {
    mounts_.add(work.id);
  } else if (!ready && (work.mounts || ready.error().code() == ESTALE)) {
    mounts_.drop(work.id);
  }
  answer(work, ready);
  return begin(work);
}

void NodeService::answer(Work& work, const Result<void>& ready) {
  if (!ready && ready.error().code() == ETIMEDOUT)
    // Nothing has answered up to now: who came later would wait as long, for the same words.
    take_later(work);
  for (const auto& client : work.heard) {
    const auto tree = ready ? copy_mount(mounts_.place(work.id)) : fail(ready.error());
    if (tree)
      (void)send_fd(client.socket.get(), tree->get());
    else
      send_failure(client.socket.get(), tree.error());
  }
  work.heard.clear();
}

void NodeService::end() {
  (void)::unlink((folder_ + "/socket").c_str());
  for (auto& work : works_) {
    work.task.reset();  // or it would mount what nobody takes away
    if (work.mounts) mounts_.drop(work.id);
  }
  mounts_.drop_all();
  (void)::unlink((folder_ + "/lock").c_str());
  (void)::rmdir(folder_.c_str());
}

}  // namespace heddle
