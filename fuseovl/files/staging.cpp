// SPDX-License-Identifier: MIT
#include "fuseovl/files/staging.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/log.hpp"
#include "fuseovl/mount/background.hpp"

namespace heddle {
namespace {

constexpr std::int64_t kFirstRestMs = 20;
constexpr std::int64_t kLastRestMs = 2000;

void rest(std::int64_t ms) {
  const timespec pause{ms / 1000, ms % 1000 * 1'000'000};
  ::nanosleep(&pause, nullptr);
}

void say_incomplete(const std::string& folder, const std::string& why) {
  warn(Error(folder, "not everything is staged", why));
}

}  // namespace

Staging::Staging(StagedCopies& copies, const Origins& origins, std::uint64_t budget)
    : copies_(copies), budget_(budget) {
  for (ObjectId id = 0; id < origins.files.size(); ++id) {
    const Origin& origin = origins.files[id];
    if (origin.hash != ContentHash()) items_.push_back({id, origin.stamp.size, origin.hash});
  }
  std::stable_sort(items_.begin(), items_.end(),
                   [](const Item& a, const Item& b) { return a.size < b.size; });
}

std::optional<pid_t> Staging::start(const Origins& origins, const std::vector<std::string>& paths) {
  if (state() == State::done) return std::nullopt;
  *state_ = State::running;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    warn(Error::from_errno(folder().path(), "cannot start to stage"));
    *state_ = State::incomplete;
    return std::nullopt;
  }
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  live(origins, paths);
}

void Staging::live(const Origins& origins, const std::vector<std::string>& paths) {
  ::prctl(PR_SET_NAME, "heddle-stage");
  auto keep = copies_.descriptors();
  for (const auto& origin : origins.files)
    if (origin.fd) keep.push_back(origin.fd.get());
  close_fds_but(keep);
  for (const int n : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) ::signal(n, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Whoever waits for a library comes first.
  (void)::setpriority(PRIO_PROCESS, 0, 10);
  bool all = false;
  try {
    all = stage_all(origins, paths);
    (void)folder().trim(budget_, 0);
  } catch (const std::exception& error) {
    say_incomplete(folder().path(), error.what());
  }
  *state_ = all ? State::done : State::incomplete;
  ::_exit(0);
}

/// Result: whether every item is staged. What is missing is said, once.
bool Staging::stage_all(const Origins& origins, const std::vector<std::string>& paths) {
  folder().sweep();
  StageRoom room(folder(), budget_);
  std::vector<const Item*> todo;
  for (const auto& item : items_)
    if (!copies_.has(item.object)) todo.push_back(&item);
  std::size_t left_out = 0;
  std::int64_t pause = kFirstRestMs;
  while (!todo.empty()) {
    std::vector<const Item*> later;
    bool no_room = false;  // to ask for each of thousands would take long
    for (const Item* item : todo) {
      const auto step = no_room
                            ? Step::later
                            : stage(*item, origins.files[item->object], paths[item->object], room);
      if (step == Step::stop) return false;
      no_room = no_room || step == Step::no_room_yet;
      if (step == Step::later || step == Step::no_room_yet) later.push_back(item);
      left_out += step == Step::left_out;
    }
    if (!later.empty()) {
      // Another mount's process is at these: it finishes, or dies and leaves them to us. Two that
      // wait for each other's room would wait for ever.
      room.release();
      rest(pause);
      // One that waits for an origin that does not answer may stay at it for long.
      pause = later.size() < todo.size() ? kFirstRestMs : std::min(2 * pause, kLastRestMs);
    }
    todo = std::move(later);
  }
  return left_out == 0;
}

Staging::Step Staging::stage(const Item& item, const Origin& origin, const std::string& path,
                             StageRoom& room) {
  if (const auto found = folder().verify(item.hash, item.size)) {
    publish(item, *found);
    return Step::ready;
  }
  const auto got = room.take(item.size);
  if (!got) {
    say_incomplete(folder().path(), got.error().message());
    return Step::stop;
  }
  if (*got == StageRoom::Got::later) return Step::no_room_yet;
  if (*got == StageRoom::Got::no) {
    say_incomplete(folder().path(),
                   "the budget of " + std::to_string(budget_) + " bytes is used up");
    return Step::stop;  // the others are larger
  }
  Fd reopened;
  if (!origin.fd) {
    auto file = open_file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!file) return Step::left_out;  // said by who is asked for it
    reopened = std::move(*file);
  }
  return copy(item, reopened ? reopened.get() : origin.fd.get(), room);
}

Staging::Step Staging::copy(const Item& item, int source, StageRoom& room) {
  const auto copied = folder().copy(source, item.hash, item.size);
  if (!copied) {
    const int code = copied.error().code();
    if ((code == ENOSPC || code == EDQUOT) && folder().trim(folder().used(), item.size))
      return Step::later;
    say_incomplete(folder().path(), copied.error().message());
    return Step::stop;
  }
  if (copied->how == StageFolder::Copied::again) return Step::later;
  if (copied->how == StageFolder::Copied::no) return Step::left_out;
  room.used(item.size);
  publish(item, copied->stamp);
  return Step::ready;
}

void Staging::publish(const Item& item, const FileStamp& stamp) {
  copies_.publish(item.object, {stamp.id.ino, stamp.mtime_ns});
}

std::uint64_t Staging::objects() const {
  return static_cast<std::uint64_t>(std::count_if(
      items_.begin(), items_.end(), [this](const Item& item) { return copies_.has(item.object); }));
}

std::uint64_t Staging::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& item : items_)
    if (copies_.has(item.object)) sum += item.size;
  return sum;
}

}  // namespace heddle
