// SPDX-License-Identifier: MIT
#include "fuseovl/keep/keeper.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/monotonic.hpp"
#include "base/run_directory.hpp"
#include "fuseovl/keep/leftovers.hpp"
#include "fuseovl/keep/mounted_notice.hpp"
#include "fuseovl/mount/background.hpp"
#include "fuseovl/mount/fusermount.hpp"
#include "fuseovl/mount/warm_up.hpp"

namespace heddle {
namespace {

// Of a mount by fusermount3 whose last program has left children behind: the kernel tells nobody
// when a mount stops being busy, so it is asked again, ever more rarely.
constexpr std::int64_t kFirstRetryMs = 5;
constexpr std::int64_t kLastRetryMs = 1000;

bool is_listening(int socket) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  return ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
}

/// The last part of the path that a socket is bound to.
std::string name_of(int socket) {
  sockaddr_un address{};
  socklen_t size = sizeof(address) - 1;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const std::string path = address.sun_path;
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

KeeperDoor::KeeperDoor(Fd socket) {
  if (is_listening(socket.get())) {
    name_ = name_of(socket.get());
    reception_ = Reception(Listener(std::move(socket)));
  } else {
    (void)::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
    only_client_ = std::move(socket);
  }
}

bool KeeperDoor::close_if_nobody_comes() {
  if (!reception_) return true;
  const auto directory = RunDirectory::open();
  const auto lock = directory ? directory->lock(name_, {}) : Fd();
  if (!lock && lock.error().code() == ETIMEDOUT) return false;
  reception_.accept();
  if (!reception_.is_empty()) return false;
  if (directory) directory->remove(name_);
  reception_.close();
  return true;
}

void KeeperDoor::refuse(const Error& error) {
  if (only_client_) {
    // What it says is on the way. A socket closed with something unread takes our words along.
    (void)receive_message(only_client_.get(), std::chrono::seconds(1));
    send_error(only_client_.get(), error);
    only_client_.reset();
  }
  if (!reception_) return;
  const auto directory = RunDirectory::open();
  const auto lock = directory ? directory->lock(name_, std::chrono::seconds(1)) : Fd();
  if (directory) directory->remove(name_);
  reception_.accept();
  // Those who connected are about to say what they want.
  for (const auto end = monotonic_ms() + 1000; !reception_.is_empty() && monotonic_ms() < end;) {
    std::vector<pollfd> polled;
    reception_.add_to(polled);
    (void)::poll(polled.data(), polled.size(), 100);
    for (const auto& visitor : reception_.hear(polled)) send_error(visitor.socket.get(), error);
  }
  reception_.close();
}

Keeper::Keeper(KeeperDoor& door, Fd ready, KeptMount& mount, Overlay& overlay)
    : door_(door),
      ready_(std::move(ready)),
      mount_(mount),
      overlay_(overlay),
      retry_pause_(kFirstRetryMs) {
  if (Fd client = door_.take_only_client()) clients_.push_back({std::move(client)});
}

std::int64_t Keeper::wakes_at() const {
  const auto accept_at = door_.reception().wakes_at();
  if (retry_at_ == 0 || accept_at == 0) return std::max(retry_at_, accept_at);
  return std::min(retry_at_, accept_at);
}

void Keeper::hear_ready() {
  char text[4096];
  const ssize_t n = ::read(ready_.get(), text, sizeof(text));
  if (n > 0 && text[0] == kReadyByte)
    answers_ = true;
  else
    failure_ = n > 0 ? std::string(text, static_cast<std::size_t>(n)) : "it ended without a word";
  ready_.reset();
}

void Keeper::answer(Client& client) {
  client.waits = false;
  if (!failure_.empty()) return send_error(client.socket.get(), Error({}, failure_));
  auto copy = mount_.copy();
  if (!copy) return send_error(client.socket.get(), copy.error());
  const auto& counters = overlay_.counters();
  const MountedNotice notice{warm_, counters.total(), counters.bytes_read(), mount_.mount_point()};
  (void)send_message(client.socket.get(), MountWord::mounted, to_text(notice), copy->get());
}

void Keeper::say_goodbye(Client& client) {
  client.holds = false;
  const auto words = std::to_string(holders()) + " " + overlay_.stats_text();
  (void)send_message(client.socket.get(), MountWord::counters, words);
}

void Keeper::sweep() {
  const auto folder = mount_.mount_point();
  const pid_t child = ::fork();
  if (child > 0) sweepers_.push_back(child);
  if (child != 0) return;
  close_fds_but({});
  sweep_folders(folder.substr(0, folder.rfind('/', folder.rfind('/') - 1)));
  ::_exit(0);
}

void Keeper::take(Client& client, const MountMessage& message) {
  if (message.word == MountWord::want) {
    if (message.text == overlay_.content().facts.map_id)
      client.waits = true;
    else
      send_error(client.socket.get(), Error("fs-mount", "serves another map here"));
  } else if (message.word == MountWord::warm) {
    warm_ = true;
  } else if (message.word == MountWord::bye && client.holds) {
    say_goodbye(client);
  }
}

std::size_t Keeper::holders() const {
  return static_cast<std::size_t>(
      std::count_if(clients_.begin(), clients_.end(), [](const Client& c) { return c.holds; }));
}

void Keeper::release_if_unused() {
  if (holders() > 0 || !door_.reception().is_empty()) return;
  if (!released_ && !door_.close_if_nobody_comes()) {
    retry_at_ = monotonic_ms() + kFirstRetryMs;
    return;
  }
  released_ = true;
  retry_at_ = 0;
  if (mount_.kind() == KeepKind::privately) return hear_release(mount_.release());
  // fusermount3 may wait for a folder that does not answer.
  auto task =
      Task::start({.keep = {{unmounting_delegate()}}}, {}, [this] { return mount_.release(); });
  if (!task) return hear_release(fail(std::move(task.error())));
  release_.emplace(std::move(*task));
}

void Keeper::hear_release(const Result<void>& done) {
  release_.reset();
  if (done) return;
  if (done.error().code() == ETIMEDOUT && !std::exchange(release_hangs_, true))
    say(done.error().message() + "; the mount stays until it does");
  retry_at_ = monotonic_ms() + retry_pause_;
  retry_pause_ = std::min(2 * retry_pause_, kLastRetryMs);
}

void Keeper::add_to(std::vector<pollfd>& polled) const {
  if (ready_) polled.push_back({ready_.get(), POLLIN, 0});
  door_.reception().add_to(polled);
  for (const auto& client : clients_) polled.push_back({client.socket.get(), POLLIN, 0});
  if (release_) polled.push_back({release_->ended(), POLLIN, 0});
}

void Keeper::hear_clients(const std::vector<pollfd>& polled) {
  bool killed = false;
  for (auto& client : clients_) {
    if (!has_input(polled, client.socket)) continue;
    const auto message = receive_message(client.socket.get(), std::chrono::milliseconds(0));
    if (message) {
      take(client, *message);
    } else if (message.error().code() != ETIMEDOUT) {
      killed = killed || client.holds;
      client.socket.reset();
    }
  }
  std::erase_if(clients_, [](const Client& client) { return !client.socket; });
  for (auto& visitor : door_.reception().hear(polled)) {
    clients_.push_back({std::move(visitor.socket)});
    take(clients_.back(), visitor.message);
  }
  if (killed) sweep();
}

void Keeper::hear(const std::vector<pollfd>& polled) {
  std::erase_if(sweepers_, [](pid_t child) { return ::waitpid(child, nullptr, WNOHANG) != 0; });
  if (has_input(polled, ready_)) hear_ready();
  hear_clients(polled);
  if (answers_ || !failure_.empty())
    for (auto& client : clients_)
      if (client.waits) answer(client);
  if (release_ && release_->has_ended(polled)) hear_release(release_->result());
  if (!release_ && (!released_ || (retry_at_ != 0 && monotonic_ms() >= retry_at_)))
    release_if_unused();
}

void Keeper::end() {
  if (ready_) hear_ready();
  const Error gone("fs-mount", "does not serve", failure_.empty() ? "its mount is gone" : failure_);
  for (auto& client : clients_)
    if (client.waits) send_error(client.socket.get(), gone);
  door_.refuse(gone);
  clients_.clear();
}

}  // namespace heddle
