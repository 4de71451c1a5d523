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

// How much of the budget is used is asked again after so many bytes: others fill the folder too.
constexpr std::uint64_t kLookAgain = 64U << 20;

void rest() {
  constexpr timespec pause{0, 20'000'000};
  ::nanosleep(&pause, nullptr);
}

void say_incomplete(const std::string& folder, const std::string& why) {
  warn(Error(folder, "not everything is staged", why));
}

}  // namespace

Staging::Staging(StageFolder folder, Fd announced, std::uint64_t budget, std::size_t objects)
    : folder_(std::move(folder)),
      announced_(std::move(announced)),
      budget_(budget),
      in_memory_(is_in_memory(folder_.objects())),
      names_(objects),
      slots_(objects) {}

std::unique_ptr<Staging> Staging::create(const StageOptions& options, const MapContent& content,
                                         const Origins& origins) {
  if (options.directory.empty()) return nullptr;
  const auto give_up = [](const Error& error) {
    warn(error);
    return nullptr;
  };
  auto folder = StageFolder::open(options.directory);
  if (!folder) return give_up(folder.error());
  std::vector<Item> items;
  std::vector<ContentHash> hashes;
  for (ObjectId id = 0; id < content.objects.size(); ++id) {
    const auto& object = content.objects[id];
    if (!origins.files[id].as_mapped || object.hash == ContentHash()) continue;
    items.push_back({id, object.stamp.size, object.hash});
    hashes.push_back(object.hash);
  }
  auto announced = folder->announce(hashes);
  if (!announced) return give_up(announced.error());
  std::unique_ptr<Staging> out(new Staging(std::move(*folder), std::move(*announced),
                                           options.budget, content.objects.size()));
  for (const auto& item : items) out->names_[item.object] = item.hash.hex();
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.size < b.size; });
  out->items_ = std::move(items);
  return out;
}

std::vector<int> Staging::descriptors() const {
  auto out = folder_.descriptors();
  out.push_back(announced_.get());
  return out;
}

std::optional<pid_t> Staging::start(const Origins& origins, const std::vector<std::string>& paths) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    warn(Error::from_errno(folder_.path(), "cannot start to stage"));
    return std::nullopt;
  }
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  live(origins, paths);
}

void Staging::live(const Origins& origins, const std::vector<std::string>& paths) {
  ::prctl(PR_SET_NAME, "heddle-stage");
  auto keep = descriptors();
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
  } catch (const std::exception& error) {
    say_incomplete(folder_.path(), error.what());
  }
  progress_->state = all ? State::done : State::incomplete;
  ::_exit(0);
}

/// Result: whether every item is staged. What is missing is said, once.
bool Staging::stage_all(const Origins& origins, const std::vector<std::string>& paths) {
  folder_.sweep();
  std::vector<const Item*> todo;
  for (const auto& item : items_) todo.push_back(&item);
  std::size_t left_out = 0;
  while (!todo.empty()) {
    std::vector<const Item*> later;
    for (const Item* item : todo) {
      const auto step = stage(*item, origins.files[item->object], paths[item->object]);
      if (step == Step::stop) return false;
      if (step == Step::later) later.push_back(item);
      left_out += step == Step::left_out;
    }
    // Another mount's process is at these: it finishes, or dies and leaves them to us.
    if (!later.empty()) rest();
    todo = std::move(later);
  }
  (void)folder_.trim(budget_, 0);
  return left_out == 0;
}

Staging::Step Staging::stage(const Item& item, const Origin& origin, const std::string& path) {
  if (const auto found = folder_.verify(item.hash, item.size)) {
    publish(item, *found);
    return Step::ready;
  }
  if (!make_room(item.size)) {
    say_incomplete(folder_.path(),
                   "the budget of " + std::to_string(budget_) + " bytes is used up");
    return Step::stop;  // the others are larger
  }
  Fd reopened;
  if (!origin.fd) {
    auto file = open_file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!file) return Step::left_out;  // said by who is asked for it
    reopened = std::move(*file);
  }
  const auto copied =
      folder_.copy(reopened ? reopened.get() : origin.fd.get(), item.hash, item.size);
  if (!copied) {
    const int code = copied.error().code();
    if ((code == ENOSPC || code == EDQUOT) && folder_.trim(folder_.used(), item.size))
      return Step::later;
    say_incomplete(folder_.path(), copied.error().message());
    return Step::stop;
  }
  if (copied->how == StageFolder::Copied::again) return Step::later;
  if (copied->how == StageFolder::Copied::no) return Step::left_out;
  publish(item, copied->stamp);
  return Step::ready;
}

bool Staging::make_room(std::uint64_t size) {
  if (size > room_) {
    const auto wanted = std::max(size, std::min(kLookAgain, budget_ / 4));
    if (folder_.trim(budget_, wanted))
      room_ = wanted;
    else if (folder_.trim(budget_, size))
      room_ = size;
    else
      return false;
  }
  room_ -= size;
  return true;
}

void Staging::publish(const Item& item, const FileStamp& stamp) {
  Slot& slot = slots_[item.object];
  slot.ino = stamp.id.ino;
  slot.mtime_ns = stamp.mtime_ns;
  slot.ready.store(true, std::memory_order_release);
  ++progress_->objects;
  progress_->bytes += item.size;
}

bool Staging::has(ObjectId object) const {
  return slots_[object].ready.load(std::memory_order_acquire);
}

std::optional<tl::expected<std::size_t, int>> Staging::read(ObjectId object, std::span<char> into,
                                                            off_t offset, MayBlock block) {
  if (!has(object)) return std::nullopt;
  const Slot& slot = slots_[object];
  const Fd file(::openat(folder_.objects(), names_[object].c_str(),
                         O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
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
  if (slots_[object].ready.exchange(false))
    warn(Error(folder_.path() + "/objects/" + names_[object], "a staged copy is not used any more",
               wrong));
  return std::nullopt;
}

}  // namespace heddle
