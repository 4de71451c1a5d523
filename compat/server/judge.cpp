// SPDX-License-Identifier: MIT
//
// The helper libexec/heddle/compat-judge: compat-server's processes that open files. A hanging file
// system, or an artifact that needs too much memory, costs one of them, not the server.
//   compat-judge judge   answers Questions until the socket's other end is closed
//   compat-judge watch   reads all libraries into the index, then sends Notices of changes
// The first message to both is NodeIndexOptions.
#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "base/file_stamp.hpp"
#include "base/log.hpp"
#include "base/run_main.hpp"
#include "base/sandbox/sanitized.hpp"
#include "compat/server/judge_protocol.hpp"

namespace heddle::compat {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// RLIMIT_DATA while parsing: within the parser's limits an artifact of 8 MiB takes up to 300 MiB.
constexpr rlim_t kMostParsingBytes = rlim_t{320} << 20;
/// A judge that uses more after an answer is replaced, so that memory does not add up.
constexpr std::size_t kMostResident = std::size_t{160} << 20;
/// An answer's overhead for each reason.
constexpr std::size_t kBytesPerReason = 64;

/// Changes within this time are one: a package's files arrive together.
constexpr milliseconds kBurst{500};
/// Interval of the checks for changes that inotify does not report, in milliseconds.
constexpr int kLookEvery = 700;

/// This process's resident memory without file mappings, in bytes.
std::size_t resident() {
  std::size_t size = 0, pages = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> size >> pages >> shared;
  return (pages - std::min(pages, shared)) * static_cast<std::size_t>(::getpagesize());
}

/// Ends the judge when a directory access takes too long: then its main thread is stuck in the
/// kernel.
class Watchdog {
 public:
  void set_patience(milliseconds patience) {
    const std::lock_guard lock(mutex_);
    patience_ = patience;
  }
  /// Starts the time for `directory`; empty: stops it.
  void look(std::string_view directory) {
    const std::lock_guard lock(mutex_);
    directory_ = directory;
    since_ = Clock::now();
  }
  void start() {
    std::thread([this] {
      for (;;) {
        std::this_thread::sleep_for(milliseconds(100));
        const std::lock_guard lock(mutex_);
        if (directory_.empty() || Clock::now() - since_ < patience_) continue;
        Answer answer;
        answer.hanging = directory_;
        static_cast<void>(send_large(kJudgeSocket, answer));
        ::_exit(exit_failure);
      }
    }).detach();
  }

 private:
  std::mutex mutex_;
  std::string directory_;
  Clock::time_point since_;
  milliseconds patience_{};
};

/// Limits memory only while parsing: workers that start later would inherit the limit.
Result<Artifact> parse(const ReceivedQuestion& question) {
  rlimit old{};
  const bool limited = !kSanitized && ::getrlimit(RLIMIT_DATA, &old) == 0;
  const rlimit now{std::min(kMostParsingBytes, old.rlim_max), old.rlim_max};
  if (limited) static_cast<void>(::setrlimit(RLIMIT_DATA, &now));
  Result<Artifact> out = fail(question.where, "no verdict", "it would take too much memory");
  try {
    out = parse_artifact(question.artifact, question.where);
  } catch (const std::bad_alloc&) {
  }
  if (limited) static_cast<void>(::setrlimit(RLIMIT_DATA, &old));
  return out;
}

/// Drops the last reasons until an answer has at most kMostAnswerBytes. A reason is sent as its
/// fields and as a line of text.
void shorten(Judgement& judgement) {
  std::size_t sum = 0, fit = 0;
  for (const auto& reason : judgement.reasons) {
    Encoder coder;
    coder(reason);
    sum += coder.take().size() + to_text(reason).size() + kBytesPerReason;
    if (sum > kMostAnswerBytes) break;
    ++fit;
  }
  judgement.more += judgement.reasons.size() - fit;
  judgement.reasons.resize(fit);
}

Answer answer(NodeIndex& index, const ReceivedQuestion& question) {
  Answer out;
  const auto artifact = parse(question);
  if (!artifact) {
    out.error = artifact.error().message();
    return out;
  }
  try {
    auto said = index.check(*artifact);
    out.watched = said.watched;
    if (said.judgement)
      out.judgement = std::move(*said.judgement);
    else
      out.error = said.judgement.error().message();
  } catch (const std::bad_alloc&) {
    out.error = "no verdict: it would take too much memory";
    out.leaving = true;
  }
  if (out.error.size() > kMostAnswerBytes) out.error.resize(kMostAnswerBytes);
  shorten(out.judgement);
  return out;
}

int judge(NodeIndex& index, Watchdog& watchdog) {
  // Large blocks go back to the system when they are freed; glibc would raise the threshold.
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  // The server's answers from its cache come first.
  static_cast<void>(::nice(5));
  watchdog.start();
  std::uint64_t generation = 0;
  std::vector<std::string> avoided;
  for (bool leaving = false; !leaving;) {
    const auto question = receive_large<ReceivedQuestion>(kJudgeSocket);
    if (!question) return exit_done;
    watchdog.set_patience(milliseconds(question->patience_ms));
    if (question->generation != generation || question->avoided != avoided)
      index.invalidate(question->avoided);
    generation = question->generation;
    avoided = question->avoided;
    index.open();
    auto said = answer(index, *question);
    if (resident() > kMostResident) ::malloc_trim(0);
    said.leaving = leaving = said.leaving || resident() > kMostResident;
    if (!send_large(kJudgeSocket, said)) return exit_done;
  }
  return exit_done;
}

/// Reports that some directory has changed: by inotify, and by the directories' stamps for what
/// inotify does not report (recreated directories, changed links, changes by other nodes).
class DirectoryWatch {
 public:
  DirectoryWatch() : fd_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    if (!fd_) throw Error::from_errno("inotify", "cannot watch for changes");
  }
  /// Readable when there is something for drain().
  int fd() const { return fd_.get(); }
  struct Added {
    std::size_t lost = 0;  ///< existing directories without a watch
    bool any_new = false;  ///< some directory was read before it was watched
  };
  /// Watches `directories` too, links to directories as links. Those that do not exist yet, or are
  /// beyond the user's limit, are checked by look() alone.
  Added add(const std::vector<std::string>& directories) {
    Added out;
    for (const auto& directory : directories) {
      // An older stamp stays: look() reports changes since then.
      if (!seen_.contains(directory))
        out.any_new = seen_.emplace(directory, stamp_of(directory)).second;
      // IN_ATTRIB: a mode that makes a library unreadable.
      const auto mask = IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |
                        IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_DONT_FOLLOW;
      if (::inotify_add_watch(fd_.get(), directory.c_str(), mask) < 0 && errno != ENOENT &&
          errno != ENOTDIR)
        ++out.lost;
    }
    return out;
  }
  /// Reads all pending events; true when there were any.
  bool drain() {
    bool any = false;
    alignas(inotify_event) std::array<char, 16384> buffer;
    while (::read(fd_.get(), buffer.data(), buffer.size()) > 0) any = true;
    return any;
  }
  /// Whether a directory's identity or mtime has changed since the last call.
  bool look() {
    bool any = false;
    for (auto& [directory, stamp] : seen_) {
      const auto now = stamp_of(directory);
      any = any || now != stamp;
      stamp = now;
    }
    return any;
  }

 private:
  /// All zero: no such directory. Adding and removing names changes the mtime.
  static FileStamp stamp_of(const std::string& directory) {
    struct stat now {};
    if (::lstat(directory.c_str(), &now) != 0) return {};
    return {file_id(now), 0, file_stamp(now).mtime_ns, 0};
  }

  Fd fd_;
  std::map<std::string, FileStamp> seen_;
};

class Watcher {
 public:
  explicit Watcher(NodeIndex& index) : index_(index) {}

  int run() {
    // Watched before they are read, so that no change is missed.
    add_directories();
    send({Notice::Kind::indexed, index_.fill()});
    while (!gone_) wait();
    return exit_done;
  }

 private:
  void send(const Notice& notice) { gone_ = gone_ || !send_record(kJudgeSocket, notice); }

  /// Result: whether some are new.
  bool add_directories() {
    const auto added = watch_.add(index_.directories());
    if (added.lost > lost_)
      warn(
          fmt::format("{} directories cannot be watched for changes: see inotify(7), "
                      "fs.inotify.max_user_watches",
                      added.lost));
    lost_ = added.lost;
    return added.any_new;
  }

  void wait() {
    pollfd ready[] = {{kJudgeSocket, POLLIN, 0}, {watch_.fd(), POLLIN, 0}};
    if (::poll(ready, 2, changed_ ? 20 : kLookEvery) < 0 && errno != EINTR)
      throw Error::from_errno("poll", "failed");
    if (ready[0].revents != 0) gone_ = true;  // compat-server sends nothing: it has ended
    const auto now = Clock::now();
    const bool event = (ready[1].revents & POLLIN) != 0 && watch_.drain();
    const bool due = now - looked_ > milliseconds(kLookEvery);
    if (due) looked_ = now;
    if ((event || (due && watch_.look())) && !changed_) changed_ = now;
    if (changed_ && now - *changed_ > kBurst) {
      index_.invalidate();
      send({Notice::Kind::changed});
      // New directories were read before they were watched: report once more.
      changed_.reset();
      if (add_directories()) changed_ = now;
    }
    if (due) send({Notice::Kind::alive});
  }

  NodeIndex& index_;
  DirectoryWatch watch_;
  std::optional<Clock::time_point> changed_;  ///< the first change that is not reported yet
  Clock::time_point looked_ = Clock::now();
  std::size_t lost_ = 0;
  bool gone_ = false;
};

int compat_judge(std::string_view role) {
  auto options = value_or_throw(receive_large<NodeIndexOptions>(kJudgeSocket));
  options.worker_path = value_or_throw(own_program_dir()) + "/elf-worker";
  auto& watchdog = *new Watchdog;  // never deleted: its thread is detached
  if (role == "judge")
    options.on_look = [&](std::string_view directory) { watchdog.look(directory); };
  NodeIndex index(std::move(options));
  return role == "judge" ? judge(index, watchdog) : Watcher(index).run();
}

}  // namespace
}  // namespace heddle::compat

int main(int argc, char** argv) {
  return heddle::run_main("compat-server", [&] {
    return argc == 2 ? heddle::compat::compat_judge(argv[1]) : heddle::exit_usage;
  });
}
