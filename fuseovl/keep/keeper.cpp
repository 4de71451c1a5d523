// SPDX-License-Identifier: MIT
#include "fuseovl/keep/keeper.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/monotonic.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/mount/background.hpp"
#include "fuseovl/mount/warm_up.hpp"

namespace heddle {
namespace {

// Of a mount by fusermount3 whose last program has left children behind: the kernel tells nobody
// when a mount stops being busy, so it is asked again, ever more rarely.
constexpr std::int64_t kFirstRetryMs = 5;
constexpr std::int64_t kLastRetryMs = 1000;

std::string words_of(const Error& error) {
  return error.message() + (error.hint().empty() ? "" : "\nhint: " + error.hint());
}

}  // namespace

void refuse_clients(Listener& listener, KeeperWord word, const Error& error) {
  for (Fd client = listener.accept(); client; client = listener.accept()) {
    // Its hello is on the way. A socket closed with something unread takes our words along.
    (void)receive_message(client.get(), std::chrono::seconds(1));
    (void)send_message(client.get(), word, words_of(error));
  }
}

Keeper::Keeper(Listener listener, Fd ready, KeptMount& mount, Overlay& overlay)
    : listener_(std::move(listener)),
      ready_(std::move(ready)),
      mount_(mount),
      overlay_(overlay),
      retry_pause_(kFirstRetryMs) {}

void Keeper::accept_clients() {
  for (Fd client = listener_.accept(); client; client = listener_.accept())
    if (is_own_user(client.get())) clients_.push_back({std::move(client), {}});
}

std::int64_t Keeper::wakes_at() const {
  const auto accept_at = listener_.wakes_at();
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
  const auto words = std::to_string(holders()) + " " + overlay_.stats_text();
  tidy_up(client, [&] { (void)send_message(client.socket.get(), KeeperWord::counters, words); });
}

/// Removes the client's folder and does `last`, in a process of its own: the folder may lie where
/// nothing answers.
void Keeper::tidy_up(Client& client, const std::function<void()>& last) {
  const auto folder = std::exchange(client.folder, {});
  const pid_t child = folder.empty() ? -1 : ::fork();
  if (child > 0) {
    tidying_.push_back(child);
    return;
  }
  if (child == 0) {
    const int kept[] = {client.socket.get()};
    close_fds_but(kept);
    (void)::chdir("/");
  }
  if (!folder.empty()) (void)remove_tree(folder);
  last();
  if (child == 0) ::_exit(0);
}

bool Keeper::hear_client(Client& client) {
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
  if (holders() > 0) return;
  accept_clients();  // who came in the meantime is served; who comes later finds the name free
  if (holders() > 0) return;
  listener_.reset();
  retry_at_ = 0;
  if (mount_.kind() == KeepKind::privately) return hear_release(mount_.release());
  // fusermount3 may wait for a folder that does not answer.
  auto task = Task::start([this] { return mount_.release(); });
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
  listener_.add_to(polled);
  for (const auto& client : clients_) polled.push_back({client.socket.get(), POLLIN, 0});
  if (release_) polled.push_back({release_->ended(), POLLIN, 0});
}

void Keeper::hear_clients(const std::vector<pollfd>& polled) {
  for (auto& client : clients_) {
    if (!has_input(polled, client.socket) || hear_client(client)) continue;
    client.holds = false;  // nor is it counted among those who do, for the next in turn
    tidy_up(client);
    client.socket.reset();
  }
  std::erase_if(clients_, [](const Client& client) { return !client.socket; });
}

void Keeper::hear(const std::vector<pollfd>& polled) {
  std::erase_if(tidying_, [](pid_t child) { return ::waitpid(child, nullptr, WNOHANG) != 0; });
  if (has_input(polled, ready_)) hear_ready();
  hear_clients(polled);
  if (listener_.is_due(polled)) accept_clients();
  if (answers_ || !failure_.empty())
    for (auto& client : clients_)
      if (client.waits) answer(client);
  if (release_ && release_->has_ended(polled)) hear_release(release_->result());
  if (listener_ || (retry_at_ != 0 && monotonic_ms() >= retry_at_)) release_if_unused();
}

void Keeper::end() {
  if (ready_) hear_ready();
  const Error gone("fs-mount", "does not serve", failure_.empty() ? "its mount is gone" : failure_);
  for (auto& client : clients_) {
    if (client.waits) (void)send_message(client.socket.get(), KeeperWord::failed, words_of(gone));
    tidy_up(client);
  }
  refuse_clients(listener_, KeeperWord::failed, gone);
  clients_.clear();
}

}  // namespace heddle
