// SPDX-License-Identifier: MIT
#include "fuseovl/files/file_work.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/backoff.hpp"
#include "base/channel.hpp"
#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "base/file_systems.hpp"
#include "base/mounts.hpp"
#include "base/paths.hpp"
#include "base/task_pool.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {
namespace {

using std::chrono::milliseconds;
using State = WorkResult::State;
using Pieces = std::vector<std::size_t>;

constexpr int kOtherFds = 40;                   ///< besides a descriptor for each piece
constexpr std::uint64_t kResolveCached = 0x20;  // RESOLVE_CACHED; headers before Linux 5.12 lack it

/// `pieces` by the mount that they are on, by their names alone.
std::vector<Pieces> by_mount(const Pieces& pieces, const FileWork& work) {
  const auto mounts = list_mounts().value_or(std::vector<MountEntry>());
  std::map<const MountEntry*, Pieces> groups;
  std::string_view last_directory;  // files of one directory mostly follow each other
  const MountEntry* last = nullptr;
  for (const auto piece : pieces) {
    const auto path = work.path_of(piece);
    const auto directory = path.substr(0, path.rfind('/') + 1);
    if (groups.empty() || directory != last_directory) {
      last = nullptr;
      for (const auto& mount : mounts)
        if (is_at_or_below(path, mount.point) &&
            (!last || mount.point.size() >= last->point.size()))
          last = &mount;
      last_directory = directory;
    }
    groups[last].push_back(piece);
  }
  std::vector<Pieces> out;
  for (auto& [mount, group] : groups) out.push_back(std::move(group));
  return out;
}

/// What parent and child share of a group.
struct Progress {
  std::atomic<std::int64_t> at_ms;  ///< of the last answer
  std::atomic<std::size_t> done;
};

/// Sends open files with the numbers of their pieces, many in a packet.
class FileSender {
 public:
  explicit FileSender(int socket) : socket_(socket) {}
  void add(std::size_t piece, Fd file) {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(piece);
    files_.push_back(std::move(file));
    if (files_.size() == kMostPacketFds) send();
  }
  void flush() {
    const std::lock_guard lock(mutex_);
    if (!files_.empty()) send();
  }

 private:
  void send() {
    std::vector<int> fds;
    for (const auto& file : files_) fds.push_back(file.get());
    const std::string_view text(reinterpret_cast<const char*>(pieces_.data()),
                                pieces_.size() * sizeof(pieces_[0]));
    // The descriptors in flight of a user are limited (unix(7), ETOOMANYREFS).
    Backoff pauses(milliseconds(1), milliseconds(16));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (;;) {
      const auto sent = send_packet(socket_, text, fds);
      if (sent || sent.error().code() != ETOOMANYREFS || !pauses.sleep_before(end)) break;
    }
    pieces_.clear();
    files_.clear();
  }

  int socket_;
  std::mutex mutex_;
  Pieces pieces_;
  std::vector<Fd> files_;
};

/// The child's threads of one group. A thread that had to wait starts another: a local open takes
/// microseconds, a parallel file system milliseconds, but it answers many requests at once.
class Group {
 public:
  Group(const FileWork& work, const Pieces& pieces, Progress& progress,
        const SharedArray<std::atomic<State>>& states, FileSender& files)
      : work_(work), pieces_(pieces), progress_(progress), states_(states), files_(files) {}

  void run() {
    std::vector<std::jthread> helpers;
    for (long waits = own_waits();;) {
      const auto at = next_++;
      if (at >= pieces_.size()) return;
      const auto begin = Clock::now();
      do_piece(pieces_[at]);
      if (Clock::now() - begin < kSlow) continue;
      // One that only lost its CPU needs no help.
      const long before = std::exchange(waits, own_waits());
      if (waits == before || ++threads_ > kMostThreads) continue;
      try {
        helpers.emplace_back([this] { run(); });
      } catch (const std::system_error&) {  // no more threads
      }
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostThreads = 16;
  static constexpr auto kSlow = std::chrono::microseconds(100);

  /// How often this thread has waited.
  static long own_waits() {
    rusage used{};
    return ::getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nvcsw : -1;
  }

  void do_piece(std::size_t piece) {
    states_[piece] = State::late;
    WorkPlace place{[this] { progress_.at_ms = monotonic_ms(); },
                    [&](Fd file) { files_.add(piece, std::move(file)); }};
    work_.work(piece, place);
    states_[piece] = State::done;
    progress_.at_ms = monotonic_ms();
    ++progress_.done;
  }

  const FileWork& work_;
  const Pieces& pieces_;
  Progress& progress_;
  const SharedArray<std::atomic<State>>& states_;
  FileSender& files_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::size_t> threads_ = 1;
};

void take_files(Packet& packet, std::vector<WorkResult>& results) {
  Pieces pieces(packet.text.size() / sizeof(std::size_t));
  std::memcpy(pieces.data(), packet.text.data(), pieces.size() * sizeof(std::size_t));
  for (std::size_t i = 0; i < std::min(pieces.size(), packet.fds.size()); ++i)
    if (pieces[i] < results.size()) results[pieces[i]].file = std::move(packet.fds[i]);
}

/// Whether no unfinished group has answered for the limit.
bool is_silent(const SharedArray<Progress>& progress, const std::vector<Pieces>& groups,
               const FileWork& work) {
  if (work.limit.count() == 0) return false;
  bool some_do_not_answer = false;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (progress[i].done == groups[i].size()) continue;
    if (progress[i].at_ms > monotonic_ms() - work.limit.count()) return false;
    some_do_not_answer = true;
  }
  return some_do_not_answer;
}

/// The pieces that are left for the child. As many threads as processors share the others.
Pieces work_in_caller(const FileWork& work, std::vector<WorkResult>& results) {
  constexpr std::size_t kPiecesOfThread = 200;  // 1 ms; starting a thread takes 0.05
  const auto is_left = [&](std::size_t piece) {
    WorkPlace place{[] {}, [&](Fd file) { results[piece].file = std::move(file); }};
    if (!work.try_in_caller || !work.try_in_caller(piece, place)) return true;
    results[piece].state = State::done;
    return false;
  };
  const std::size_t count = results.size();
  std::size_t parts = std::clamp<std::size_t>(count / kPiecesOfThread, 1,
                                              std::max(1U, std::thread::hardware_concurrency()));
  if (!work.try_in_caller) parts = 1;
  // To make a table of descriptors larger that threads share takes milliseconds (synchronize_rcu).
  if (parts > 1) {
    const Fd any(::open("/", O_PATH | O_CLOEXEC));
    if (!Fd(::fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(count) + kOtherFds))) parts = 1;
  }
  std::vector<Pieces> left(parts);
  const auto do_part = [&](std::size_t part) {
    for (auto i = count * part / parts; i < count * (part + 1) / parts; ++i)
      if (is_left(i)) left[part].push_back(i);
  };
  TaskPool others;
  for (std::size_t part = 1; part < parts; ++part) others.add([&do_part, part] { do_part(part); });
  do_part(0);
  others.wait();
  for (std::size_t part = 1; part < parts; ++part)
    left[0].insert(left[0].end(), left[part].begin(), left[part].end());
  return std::move(left[0]);
}

}  // namespace

LocalRoot::LocalRoot() {
  const Fd directory(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  is_local_ = directory && locality_of(directory.get()) >= Locality::local;
}

Fd LocalRoot::open(const std::string& path, int flags, std::uint64_t resolve) const {
  if (!is_local_) return Fd();
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags) | O_CLOEXEC;
  how.resolve = resolve | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS | kResolveCached;
  return Fd(static_cast<int>(::syscall(SYS_openat2, -1, path.c_str(), &how, sizeof(how))));
}

std::vector<WorkResult> work_on_files(std::size_t count, const FileWork& work) {
  std::vector<WorkResult> results(count);
  const auto left = work_in_caller(work, results);
  if (left.empty()) return results;
  auto sockets = value_or_throw(make_socket_pair());
  const auto groups = by_mount(left, work);
  const SharedArray<std::atomic<State>> states(count);
  const SharedArray<Progress> progress(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) progress[i].at_ms = monotonic_ms();
  ForkOptions options{.keep = work.kept, .null_stdio = true, .name = "heddle-check"};
  options.keep->push_back(sockets.other.get());
  auto child = value_or_throw(fork_child(options, [&] {
    (void)::chdir("/");
    // A table of descriptors that threads share grows by synchronize_rcu: so it grows before.
    (void)Fd(::fcntl(sockets.other.get(), F_DUPFD_CLOEXEC, 2 * kMostPacketFds));
    FileSender files(sockets.other.get());
    const auto run = [&files](Group& group) {
      group.run();
      files.flush();
    };
    std::list<Group> all;
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < groups.size(); ++i)
      all.emplace_back(work, groups[i], progress[i], states, files);
    for (Group& group : all) {
      try {
        if (&group != &all.back())
          threads.emplace_back(run, std::ref(group));
        else
          run(group);
      } catch (const std::system_error&) {  // no more threads
        run(group);
      }
    }
    return exit_done;
  }));
  sockets.other.reset();
  const auto pace = std::clamp(work.limit / 10, milliseconds(10), milliseconds(1000));
  for (bool goes_on = true; goes_on;) {
    auto packet = receive_packet(sockets.one.get(), pace);
    if (packet) take_files(*packet, results);
    const bool ended = !packet && packet.error().code() != ETIMEDOUT;
    if (ended && value_or_throw(child.wait()) != exit_done)
      throw Error("", "cannot open files", "the process that does it was ended");
    goes_on = !ended && !is_silent(progress, groups, work);
  }
  while (auto packet = receive_packet(sockets.one.get(), milliseconds(0)))
    take_files(*packet, results);
  for (const auto piece : left) results[piece].state = states[piece];
  const bool all_done =
      std::ranges::all_of(results, [](const auto& result) { return result.state == State::done; });
  if (!all_done) child.abandon();
  return results;
}

}  // namespace heddle
