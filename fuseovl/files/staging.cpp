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
    if (origin.hash != ContentHash()) candidates_.push_back({id, {origin.hash, origin.stamp.size}});
  }
  std::ranges::stable_sort(candidates_, {}, [](const auto& one) { return one.item.size; });
}

Result<std::unique_ptr<Staging>> Staging::create(StageDirectory directory, const Origins& origins,
                                                 std::uint64_t budget) {
  std::unique_ptr<Staging> out(new Staging(std::move(directory), origins, budget));
  out->user_ = TRY(out->directory_.join());
  return out;
}

std::vector<int> Staging::descriptors() const {
  auto out = directory_.descriptors();
  out.push_back(user_.get());
  return out;
}

void Staging::say_incomplete(const std::string& why) const {
  warn(Error(directory_.path(), "not everything is staged", why));
}

std::optional<tl::expected<std::size_t, int>> Staging::read(ObjectId object, std::span<char> into,
                                                            off_t offset, MayBlock block) {
  if (!has(object)) return std::nullopt;
  Slot& slot = slots_[object];
  const auto name = hashes_[object].hex();
  const Fd file(
      ::openat(directory_.objects(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  // These do not concern the copy.
  if (!file && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) return std::nullopt;
  std::string wrong = "is gone";
  if (file) {
    const auto got = read_at(file.get(), into, offset, in_memory_ ? MayBlock::yes : block);
    if (!got && got.error() == EAGAIN) return got;
    struct stat now {};
    // After the read, as for origins; without ctime, which verify() changes.
    const bool same = ::fstat(file.get(), &now) == 0 && now.st_ino == slot.ino &&
                      file_stamp(now).mtime_ns == slot.mtime_ns;
    if (got && same) return got;
    wrong = got ? "has changed" : Error::from_errno({}, "cannot read", got.error()).message();
  }
  if (slot.ready.exchange(false))
    warn(Error(directory_.path() + "/objects/" + name, "a staged copy is no longer used", wrong));
  return std::nullopt;
}

void Staging::start(const Origins& origins, const std::vector<std::string>& paths) {
  *state_ = State::running;
  auto keep = descriptors();
  for (const auto& origin : origins.files)
    if (origin.fd) keep.push_back(origin.fd.get());
  auto child = fork_child({.keep = std::move(keep), .name = "heddle-stage"}, [&] {
    // Reads of the mount come first.
    (void)::setpriority(PRIO_PROCESS, 0, 10);
    bool all = false;
    try {
      all = stage_all(origins, paths);
    } catch (const std::exception& error) {
      say_incomplete(error.what());
    }
    *state_ = all ? State::done : State::incomplete;
    return 0;
  });
  if (child) return (void)child->release();
  warn(Error::from_errno(directory_.path(), "cannot start to stage", child.error().code()));
  *state_ = State::incomplete;
}

/// Result: whether all candidates are staged. What is missing is reported once.
bool Staging::stage_all(const Origins& origins, const std::vector<std::string>& paths) {
  std::vector<StageDirectory::Item> items;
  for (const auto& candidate : candidates_) items.push_back(candidate.item);
  const auto claimed = directory_.claim(user_, items, budget_);
  if (!claimed) return say_incomplete(claimed.error().message()), false;
  std::vector<const Candidate*> todo;
  for (std::size_t i = 0; i < *claimed; ++i) todo.push_back(&candidates_[i]);
  bool all = *claimed == items.size();
  if (!all) say_incomplete("the budget of " + std::to_string(budget_) + " bytes is used up");
  Backoff pauses(milliseconds(20), milliseconds(2000));
  while (!todo.empty()) {
    std::vector<const Candidate*> later;
    for (const Candidate* one : todo) {
      const auto step = stage(*one, origins.files[one->object], paths[one->object]);
      if (step == Step::stop) return false;
      if (step == Step::later) later.push_back(one);
      all = all && step != Step::left_out;
    }
    // Another mount's process makes these. It may wait for an origin that does not answer.
    if (later.size() < todo.size()) pauses.restart();
    if (!later.empty()) pauses.sleep();
    todo = std::move(later);
  }
  return all;
}

Staging::Step Staging::stage(const Candidate& candidate, const Origin& origin,
                             const std::string& path) {
  if (const auto found = directory_.verify(candidate.item)) {
    publish(candidate.object, *found);
    return Step::ready;
  }
  if (origin.fd) return copy(candidate, origin.fd.get());
  const auto file = open_regular(path);
  return file ? copy(candidate, file->get()) : Step::left_out;  // reported when it is read
}

Staging::Step Staging::copy(const Candidate& candidate, int source) {
  const auto copied = directory_.copy(source, candidate.item);
  if (!copied) {
    const int code = copied.error().code();
    if ((code == ENOSPC || code == EDQUOT) && directory_.make_room(candidate.item.size))
      return Step::later;
    say_incomplete(copied.error().message());
    return Step::stop;
  }
  if (copied->how == StageDirectory::Copied::again) return Step::later;
  if (copied->how == StageDirectory::Copied::no) return Step::left_out;
  publish(candidate.object, copied->stamp);
  return Step::ready;
}

void Staging::publish(ObjectId object, const FileStamp& stamp) {
  Slot& slot = slots_[object];
  slot.ino = stamp.id.ino;
  slot.mtime_ns = stamp.mtime_ns;
  slot.ready.store(true, std::memory_order_release);
}

std::uint64_t Staging::objects() const {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(candidates_, [this](const auto& one) { return has(one.object); }));
}

std::uint64_t Staging::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& one : candidates_)
    if (has(one.object)) sum += one.item.size;
  return sum;
}

}  // namespace heddle
