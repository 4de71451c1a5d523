// SPDX-License-Identifier: MIT
#include "fuseovl/keep/keeper.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "base/temp_dir.hpp"
#include "fuseovl/mount/warm_up.hpp"

namespace heddle {
namespace {

/// A thread that no signal is delivered to: one that was blocked elsewhere only would be taken here
/// and lost (SIGCHLD, which serve() waits for).
template <class Work>
std::thread start_deaf_thread(Work work) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

// Of a mount by fusermount3 whose last program has left children behind: the kernel tells nobody
// when a mount stops being busy, so it is asked again, ever more rarely.
constexpr int kFirstRetryMs = 5;
constexpr int kLastRetryMs = 1000;

Fd accept_client(const Fd& listener) {
  pollfd entry{listener.get(), POLLIN, 0};
  if (!listener || ::poll(&entry, 1, 0) <= 0) return Fd();
  return Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

std::string words_of(const Error& error) {
  return error.message() + (error.hint().empty() ? "" : "\nhint: " + error.hint());
}

}  // namespace

void refuse_clients(const Fd& listener, KeeperWord word, const Error& error) {
  for (Fd client = accept_client(listener); client; client = accept_client(listener)) {
    // Its hello is on the way. A socket closed with something unread takes our words along.
    (void)receive_message(client.get(), std::chrono::seconds(1));
    (void)send_message(client.get(), word, words_of(error));
  }
}

Keeper::Keeper(Fd listener, Fd ready, KeptMount& mount, Overlay& overlay)
    : listener_(std::move(listener)),
      ready_(std::move(ready)),
      mount_(mount),
      overlay_(overlay),
      stop_(value_or_throw(make_pipe())),
      thread_(start_deaf_thread([this] { run(); })) {}

void Keeper::stop() {
  if (!thread_.joinable()) return;
  stop_.write_end.reset();
  thread_.join();
}

void Keeper::accept_clients() {
  for (Fd client = accept_client(listener_); client; client = accept_client(listener_))
    if (is_own_user(client.get())) clients_.push_back({std::move(client), {}});
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
  if (!failure_.empty()) {
    (void)send_message(client.socket.get(), KeeperWord::failed, failure_);
    return;
  }
  auto copy = mount_.copy();
  if (!copy) {
    (void)send_message(client.socket.get(), KeeperWord::failed, words_of(copy.error()));
    return;
  }
  const auto& counters = overlay_.counters();
  const MountedNotice notice{warm_, counters.total(), counters.bytes_read(), mount_.mount_point()};
  (void)send_message(client.socket.get(), KeeperWord::mounted, to_text(notice), copy->get());
}

void Keeper::say_goodbye(Client& client) {
  client.holds = false;
  if (!client.folder.empty()) (void)remove_tree(client.folder);
  client.folder.clear();
  (void)send_message(client.socket.get(), KeeperWord::counters,
                     std::to_string(holders()) + " " + overlay_.stats_text());
}

bool Keeper::hear(Client& client) {
  auto message = receive_message(client.socket.get(), std::chrono::milliseconds(0));
  if (!message) return message.error().code() == ETIMEDOUT;
  if (message->word == KeeperWord::hello) {
    client.waits = true;
  } else if (message->word == KeeperWord::warm) {
    warm_ = true;
  } else if (message->word == KeeperWord::folder) {
    if (message->text.starts_with('/') && message->text != "/") client.folder = message->text;
  } else if (message->word == KeeperWord::bye && client.holds) {
    say_goodbye(client);
  }
  return true;
}

std::size_t Keeper::holders() const {
  return static_cast<std::size_t>(
      std::count_if(clients_.begin(), clients_.end(), [](const Client& c) { return c.holds; }));
}

void Keeper::release_if_unused() {
  if (released_ || holders() > 0) return;
  accept_clients();  // who came in the meantime is served; who comes later finds the name free
  if (holders() > 0) return;
  listener_.reset();
  released_ = mount_.release();
}

void Keeper::run() {
  int retry_ms = kFirstRetryMs;
  for (bool stopping = false; !stopping;) {
    std::vector<pollfd> polled{
        {stop_.read_end.get(), POLLIN, 0}, {ready_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const auto& client : clients_) polled.push_back({client.socket.get(), POLLIN, 0});
    const bool retrying = !listener_ && !released_;
    const int n = ::poll(polled.data(), polled.size(), retrying ? retry_ms : -1);
    if (n < 0 && errno != EINTR) break;
    if (n < 0) continue;
    if (retrying && n == 0) retry_ms = std::min(2 * retry_ms, kLastRetryMs);
    stopping = polled[0].revents != 0;
    if (polled[1].revents != 0) hear_ready();
    std::size_t at = 3;
    for (auto client = clients_.begin(); client != clients_.end(); ++at) {
      if (polled[at].revents == 0 || hear(*client)) {
        ++client;
        continue;
      }
      if (!client->folder.empty()) (void)remove_tree(client->folder);
      client = clients_.erase(client);
    }
    if (polled[2].revents != 0) accept_clients();
    if (answers_ || !failure_.empty())
      for (auto& client : clients_)
        if (client.waits) answer(client);
    if (!retrying || n == 0) release_if_unused();
  }
  // The session has ended, before or after it answered; sockets close behind this.
  if (ready_) hear_ready();
  const Error gone("fs-mount", "does not serve", failure_.empty() ? "its mount is gone" : failure_);
  for (auto& client : clients_) {
    if (client.waits) (void)send_message(client.socket.get(), KeeperWord::failed, words_of(gone));
    if (!client.folder.empty()) (void)remove_tree(client.folder);
  }
  refuse_clients(listener_, KeeperWord::failed, gone);
  clients_.clear();
}

}  // namespace heddle
