// SPDX-License-Identifier: MIT
#include "fuseovl/files/staging.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/backoff.hpp"
#include "base/child.hpp"
#include "base/file_systems.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"

namespace heddle {

using std::chrono::milliseconds;

Staging::Staging(StageDirectory directory, const Origins& origins, std::uint64_t budget)
    : directory_(std::move(directory)),
      budget_(budget),
      in_memory_(locality_of(directory_.objects()) == Locality::memory),
      slots_(origins.files.size()) {
  for (ObjectId id = 0; id < origins.files.size(); ++id) {
    const Origin& origin = origins.files[id];
    hashes_.push_back(origin.hash);
    if (origin.hash != ContentHash()) items_.push_back({id, origin.stamp.size, origin.hash});
  }
  std::stable_sort(items_.begin(), items_.end(),
                   [](const Item& a, const Item& b) { return a.size < b.size; });
}

Result<std::unique_ptr<Staging>> Staging::create(StageDirectory directory, const Origins& origins,
                                                 std::uint64_t budget) {
  std::unique_ptr<Staging> out(new Staging(std::move(directory), origins, budget));
  auto hashes = out->hashes_;
  std::erase(hashes, ContentHash());
  out->announced_ = TRY(out->directory_.announce(hashes));
  return out;
}

std::vector<int> Staging::descriptors() const {
  auto out = directory_.descriptors();
  out.push_back(announced_.get());
  return out;
}

void Staging::say_incomplete(const std::string& why) const {
  warn(Error(directory_.path(), "not everything is staged", why));
}

// What reads.

std::optional<tl::expected<std::size_t, int>> Staging::read(ObjectId object, std::span<char> into,
                                                            off_t offset, MayBlock block) {
  if (!has(object)) return std::nullopt;
  Slot& slot = slots_[object];
  const auto name = hashes_[object].hex();
  const Fd file(
      ::openat(directory_.objects(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  // Ours to run out of: the copy is as good as it was.
  if (!file && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) return std::nullopt;
  std::string wrong = "is gone";
  if (file) {
    const auto got = read_at(file.get(), into, offset, in_memory_ ? MayBlock::yes : block);
    if (!got && got.error() == EAGAIN) return got;
    struct stat now {};
    // Behind the read, as for origins; ctime is left out, since use is noted in atime.
    const bool same = ::fstat(file.get(), &now) == 0 && now.st_ino == slot.ino &&
                      file_stamp(now).mtime_ns == slot.mtime_ns;
    if (got && same) return got;
    wrong = got ? "has changed" : Error::from_errno({}, "cannot read", got.error()).message();
  }
  if (slot.ready.exchange(false))
    warn(
        Error(directory_.path() + "/objects/" + name, "a staged copy is not used any more", wrong));
  return std::nullopt;
}

// What stages.

std::optional<pid_t> Staging::start(const Origins& origins, const std::vector<std::string>& paths) {
  *state_ = State::running;
  auto keep = descriptors();
  for (const auto& origin : origins.files)
    if (origin.fd) keep.push_back(origin.fd.get());
  auto child = fork_child({.keep = std::move(keep), .name = "heddle-stage"}, [&] {
    // Whoever waits for a library comes first.
    (void)::setpriority(PRIO_PROCESS, 0, 10);
    bool all = false;
    try {
      all = stage_all(origins, paths);
      (void)directory_.trim(budget_, 0);
    } catch (const std::exception& error) {
      say_incomplete(error.what());
    }
    *state_ = all ? State::done : State::incomplete;
    return 0;
  });
  if (child) return child->release();
  warn(Error::from_errno(directory_.path(), "cannot start to stage", child.error().code()));
  *state_ = State::incomplete;
  return std::nullopt;
}

/// Result: whether every item is staged. What is missing is said, once.
bool Staging::stage_all(const Origins& origins, const std::vector<std::string>& paths) {
  directory_.sweep();
  StageRoom room(directory_, budget_);
  std::vector<const Item*> todo;
  for (const auto& item : items_)
    if (!has(item.object)) todo.push_back(&item);
  std::size_t left_out = 0;
  Backoff pauses(milliseconds(20), milliseconds(2000));
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
      // One that waits for an origin that does not answer may stay at it for long.
      if (later.size() < todo.size()) pauses.restart();
      pauses.sleep();
    }
    todo = std::move(later);
  }
  return left_out == 0;
}

Staging::Step Staging::stage(const Item& item, const Origin& origin, const std::string& path,
                             StageRoom& room) {
  if (const auto found = directory_.verify(item.hash, item.size)) {
    publish(item, *found);
    return Step::ready;
  }
  const auto got = room.take(item.size);
  if (!got) {
    say_incomplete(got.error().message());
    return Step::stop;
  }
  if (*got == StageRoom::Got::later) return Step::no_room_yet;
  if (*got == StageRoom::Got::no) {
    say_incomplete("the budget of " + std::to_string(budget_) + " bytes is used up");
    return Step::stop;  // the others are larger
  }
  Fd reopened;
  if (!origin.fd) {
    auto file = open_regular(path);
    if (!file) return Step::left_out;  // said by who is asked for it
    reopened = std::move(*file);
  }
  return copy(item, reopened ? reopened.get() : origin.fd.get(), room);
}

Staging::Step Staging::copy(const Item& item, int source, StageRoom& room) {
  const auto copied = directory_.copy(source, item.hash, item.size);
  if (!copied) {
    const int code = copied.error().code();
    if ((code == ENOSPC || code == EDQUOT) && directory_.trim(directory_.used(), item.size))
      return Step::later;
    say_incomplete(copied.error().message());
    return Step::stop;
  }
  if (copied->how == StageDirectory::Copied::again) return Step::later;
  if (copied->how == StageDirectory::Copied::no) return Step::left_out;
  room.used(item.size);
  publish(item, copied->stamp);
  return Step::ready;
}

void Staging::publish(const Item& item, const FileStamp& stamp) {
  Slot& slot = slots_[item.object];
  slot.ino = stamp.id.ino;
  slot.mtime_ns = stamp.mtime_ns;
  slot.ready.store(true, std::memory_order_release);
}

std::uint64_t Staging::objects() const {
  return static_cast<std::uint64_t>(std::count_if(
      items_.begin(), items_.end(), [this](const Item& item) { return has(item.object); }));
}

std::uint64_t Staging::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& item : items_)
    if (has(item.object)) sum += item.size;
  return sum;
}

}  // namespace heddle
