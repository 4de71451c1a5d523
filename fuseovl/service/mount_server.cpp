// SPDX-License-Identifier: MIT
#include "fuseovl/service/mount_server.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>

#include "base/backoff.hpp"
#include "base/run_directory.hpp"
#include "base/sandbox/privileges.hpp"

namespace heddle {
namespace {

constexpr std::int64_t kPatienceMs = 5000;
constexpr std::int64_t kRestMs = 50;
constexpr std::ptrdiff_t kMostSilent = 256;

void wake_at(std::int64_t& next, std::int64_t at) {
  if (at != 0 && (next == 0 || at < next)) next = at;
}

}  // namespace

Result<void> confine_service(std::uint64_t also) {
  // Without CAP_SYS_PTRACE, as in a container, the kernel shows a service only the namespaces of
  // clients whose capabilities it has, and clients only those of a service that is dumpable.
  if (!has_capability(CAP_SYS_PTRACE)) return give_up_new_privileges("fs-mount");
  const auto kept = also | std::uint64_t{1} << CAP_SYS_ADMIN |
                    std::uint64_t{1} << CAP_DAC_READ_SEARCH | std::uint64_t{1} << CAP_SYS_PTRACE;
  TRY(drop_capabilities("fs-mount", kept));
  return give_up_new_privileges("fs-mount");
}

void MountServer::run(int signals) {
  for (;;) {
    auto polled = entries(signals);
    if (::poll(polled.data(), polled.size(), poll_timeout()) < 0 && errno != EINTR) return;
    if (polled.front().revents != 0) return;
    go_on(polled);
    for (auto& client : clients_)
      if (has_input(polled, client.socket)) receive_request(client);
    const auto now = monotonic_ms();
    std::erase_if(clients_, [now](const Client& client) {
      return !client.socket || (client.state == Client::State::silent && now >= client.until);
    });
    if (has_input(polled, listener_) || (accepts_at_ != 0 && now >= accepts_at_)) accept();
    if (is_done(polled)) return;
  }
}

std::vector<pollfd> MountServer::entries(int signals) const {
  std::vector<pollfd> out{{signals, POLLIN, 0}};
  if (listener_ && monotonic_ms() >= accepts_at_) out.push_back({listener_.get(), POLLIN, 0});
  for (const auto& client : clients_) out.push_back({client.socket.get(), POLLIN, 0});
  for (const auto& work : works_) out.push_back({work.task->ended(), POLLIN, 0});
  add_to(out);
  return out;
}

int MountServer::poll_timeout() const {
  std::int64_t next = wakes_at();
  wake_at(next, accepts_at_);
  for (const auto& client : clients_)
    if (client.state == Client::State::silent) wake_at(next, client.until);
  for (const auto& work : works_) wake_at(next, work.task->late_at());
  return next == 0 ? -1 : static_cast<int>(std::max<std::int64_t>(0, next - monotonic_ms()));
}

void MountServer::accept() {
  accepts_at_ = 0;
  // Bounded: clients may connect without end.
  for (std::ptrdiff_t n = 0; listener_ && n < kMostSilent; ++n) {
    // The socket may be shared with another process, so its flags are not changed.
    pollfd entry{listener_.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) <= 0) return;
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) {
      // Out of descriptors or memory: the client stays in the listen queue.
      accepts_at_ = monotonic_ms() + kRestMs;
      return;
    }
    if (is_trusted_peer(socket.get())) add_client(std::move(socket));
  }
}

void MountServer::add_client(Fd socket) {
  if (std::ranges::count(clients_, Client::State::silent, &Client::state) >= kMostSilent)
    clients_.erase(std::ranges::find(clients_, Client::State::silent, &Client::state));
  (void)::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  clients_.push_back({.socket = std::move(socket), .until = monotonic_ms() + kPatienceMs});
}

void MountServer::receive_request(Client& client) {
  auto request = receive_record<MountRequest>(client.socket.get(), std::chrono::milliseconds(0));
  if (!request) {
    if (request.error().code() == ETIMEDOUT) return;
    if (request.error().code() == EPROTO) refuse_mount(client.socket.get(), request.error());
    client.socket.reset();
    return;
  }
  auto& [message, fds] = *request;
  if (message.verb == MountRequest::Verb::leave && client.state == Client::State::holds) {
    client.state = Client::State::left;
    const auto holders = std::ranges::count(clients_, Client::State::holds, &Client::state);
    return send_holders(client.socket.get(), static_cast<std::size_t>(holders));
  }
  if (message.version == kMountServiceVersion && message.verb == MountRequest::Verb::want &&
      client.state == Client::State::silent && is_map_hash(message.map_id) && fds.size() == 1)
    return request_mount(client, std::move(message.map_id), std::move(fds.front()));
  refuse_mount(client.socket.get(),
               Error("fs-mount", "invalid request: a map's hash and file are needed",
                     "is it of another version?"));
  client.socket.reset();
}

void MountServer::request_mount(Client& client, std::string id, Fd map) {
  // From the kernel's cache: no file server is asked.
  struct statx known {};
  if (::statx(map.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &known) != 0)
    return client.socket.reset();
  client.id = std::move(id);
  client.map = std::move(map);
  client.file = {::makedev(known.stx_dev_major, known.stx_dev_minor), known.stx_ino};
  client.state = Client::State::gets_next_answer;
  const auto same = [&](const Work& work) { return work.id == client.id; };
  if (std::ranges::any_of(works_, same)) return;
  works_.push_back({client.id});
  if (!begin(works_.back())) works_.pop_back();
}

bool MountServer::is_busy() const {
  return !works_.empty() || std::ranges::any_of(clients_, [](const Client& client) {
    return client.state != Client::State::left;
  });
}

std::vector<std::string> MountServer::abandon() {
  std::vector<std::string> out;
  for (auto& work : works_)
    if (work.mounts) out.push_back(work.id);
  works_.clear();
  return out;
}

/// Clients that wait with the same file share the answer.
void MountServer::share_answer(Work& work) {
  for (auto& client : clients_)
    if (client.state == Client::State::gets_next_answer && client.id == work.id &&
        (holding_ == Holding::until_disconnect || client.file == work.file))
      client.state = Client::State::waits;
}

bool MountServer::begin(Work& work) {
  for (;;) {
    const auto next = std::ranges::find_if(clients_, [&](const Client& client) {
      return client.state == Client::State::gets_next_answer && client.id == work.id;
    });
    if (next == clients_.end()) return false;
    work.map = Fd(::fcntl(next->map.get(), F_DUPFD_CLOEXEC, 3));
    work.file = next->file;
    share_answer(work);
    // A mount that clients hold is not checked again.
    const bool mounts = holding_ == Holding::until_disconnect;
    const bool stands = mounts && has(work.id);
    const auto started = stands ? Result<void>() : start(work, mounts);
    if (started && !stands) return true;
    answer(work, started);
  }
}

Result<void> MountServer::start(Work& work, bool mounts) {
  auto keep = mounts ? prepare(work.id) : std::vector<int>();
  keep.push_back(work.map.get());
  work.mounts = mounts;
  auto task = Task::start(
      {.keep = {keep}}, mounts ? longest_mount() : std::chrono::milliseconds(0), [&, mounts] {
        return mounts ? make(work.id, work.map.get()) : check(work.id, work.map.get());
      });
  if (!task) {
    if (mounts) made(work.id, fail(Error(task.error())));
    return fail(task.error());
  }
  work.task.emplace(std::move(*task));
  return {};
}

void MountServer::go_on(const std::vector<pollfd>& polled) {
  for (auto work = works_.begin(); work != works_.end();) {
    const auto late_at = work->task->late_at();
    const bool is_due =
        work->task->has_ended(polled) || (late_at != 0 && monotonic_ms() >= late_at);
    work = !is_due || go_on(*work) ? std::next(work) : works_.erase(work);
  }
}

bool MountServer::go_on(Work& work) {
  auto ready = work.task->result();
  work.mounts ? made(work.id, ready) : checked(work.id, ready);
  if (ready && !work.mounts && !has(work.id)) {
    ready = start(work, true);
    if (ready) return true;
  }
  answer(work, ready);
  return begin(work);
}

void MountServer::answer(Work& work, const Result<void>& ready) {
  // Clients that came later would wait as long for the same answer.
  if (!ready && ready.error().cause() == Cause::silent) share_answer(work);
  for (auto& client : clients_) {
    if (client.state != Client::State::waits || client.id != work.id) continue;
    client.map.reset();
    const auto tree = ready ? copy(work.id) : fail(ready.error());
    if (tree)
      grant_mount(client.socket.get(), mount_point(work.id), tree->get());
    else
      refuse_mount(client.socket.get(), tree.error());
    client.state = Client::State::holds;
    if (!tree || holding_ == Holding::no) client.socket.reset();
  }
}

}  // namespace heddle
