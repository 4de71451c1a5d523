// SPDX-License-Identifier: MIT
#include "fuseovl/node_service.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/monotonic.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/node_check.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWho = "fs-mount --node";
constexpr const char* kSocket = "socket";
constexpr const char* kRootRunDirectory = "/run/heddle";
constexpr auto kLongestMount = std::chrono::seconds(20);

}  // namespace

Result<NodeService> NodeService::start(const MountSettings& settings, const std::string& folder) {
  std::error_code none;
  if (fs::path(folder).parent_path() == kRootRunDirectory)
    (void)RunDirectory::open_at(kRootRunDirectory);
  else
    fs::create_directories(fs::path(folder).parent_path(), none);
  auto directory = RunDirectory::open_at(folder);
  if (!directory) {
    const auto& error = directory.error();
    return fail(
        Error::with_code(error.code(), {}, error.message(), {}, "give --node a folder of its own"));
  }
  auto lock = open_file(folder + "/lock", O_RDWR | O_CREAT, 0600);
  if (!lock) return fail(std::move(lock.error()));
  if (::flock(lock->get(), LOCK_EX | LOCK_NB) != 0)
    return fail_errno(folder, "cannot serve", EADDRINUSE, "an fs-mount --node runs already");
  directory->remove(kSocket);  // of one that was killed: we have the lock
  auto listener = directory->listen_at(kSocket);
  if (!listener) return fail(std::move(listener.error()));
  return NodeService(settings, std::move(*directory), std::move(*lock), std::move(*listener));
}

void NodeService::run(const Fd& signals) {
  for (;;) {
    auto polled = entries(signals.get());
    if (::poll(polled.data(), polled.size(), poll_timeout()) < 0 && errno != EINTR) return;
    if (has_input(polled, signals)) return;
    go_on(polled);
    for (auto& visitor : reception_.hear(polled)) hear(std::move(visitor));
  }
}

std::vector<pollfd> NodeService::entries(int signals) const {
  std::vector<pollfd> out{{signals, POLLIN, 0}};
  reception_.add_to(out);
  for (const auto& work : works_) out.push_back({work.task->ended(), POLLIN, 0});
  return out;
}

int NodeService::poll_timeout() const {
  std::int64_t next = reception_.wakes_at();
  for (const auto& work : works_)
    if (const auto at = work.task->late_at(); at != 0 && (next == 0 || at < next)) next = at;
  return next == 0 ? -1 : static_cast<int>(std::max<std::int64_t>(0, next - monotonic_ms()));
}

void NodeService::hear(Reception::Visitor visitor) {
  auto& message = visitor.message;
  if (message.word != MountWord::want || !NodeMounts::is_id(message.text) || !message.descriptor)
    return send_error(visitor.socket.get(),
                      Error(kWho, "wants a map's hash, and the map", "is it of another version?"));
  // What this kernel knows of it: no server is asked.
  struct statx known {};
  if (::statx(message.descriptor.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO,
              &known) != 0)
    return;
  const FileId file{::makedev(known.stx_dev_major, known.stx_dev_minor), known.stx_ino};
  want(message.text, {std::move(visitor.socket), std::move(message.descriptor), file});
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
                            [&](const Client& client) { return client.file != work.file; });
  std::move(same, work.later.end(), std::back_inserter(work.heard));
  work.later.erase(same, work.later.end());
}

bool NodeService::begin(Work& work) {
  while (!work.later.empty()) {
    work.map = std::move(work.later.front().map);
    work.file = work.later.front().file;
    take_later(work);
    work.mounts = false;
    auto task = Task::start({.keep = {{work.map.get()}}}, {}, [&] {
      return check_for_node(work.id, work.map.get(), settings_.load.origin_timeout);
    });
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
    auto task = Task::start({.keep = {{work.map.get()}}}, kLongestMount,
                            [&] { return mounts_.make(settings_, work.id, work.map.get()); });
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
      (void)send_message(client.socket.get(), MountWord::mounted, {}, tree->get());
    else
      send_error(client.socket.get(), tree.error());
  }
  work.heard.clear();
}

void NodeService::end() {
  directory_.remove(kSocket);
  for (auto& work : works_) {
    work.task.reset();  // or it would mount what nobody takes away
    if (work.mounts) mounts_.drop(work.id);
  }
  mounts_.drop_all();
  directory_.remove("lock");
  directory_.remove("locks");
  (void)::rmdir(directory_.path().c_str());
}

}  // namespace heddle
