// SPDX-License-Identifier: MIT
#include "compat/server/judge.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/child.hpp"
#include "base/sandbox/sanitized.hpp"
#include "compat/artifact_json.hpp"
#include "compat/server/folder_watch.hpp"
#include "compat/server/judge_protocol.hpp"
#include "compat/server/node_index.hpp"

namespace heddle::compat {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Of an artifact of 8 MiB and its facts: the parser's limits lead to 300 MiB at most.
constexpr rlim_t kMostParsingBytes = rlim_t{320} << 20;
/// A judge that has more after an answer is followed by a new one: what it remembers of the node is
/// soon read again, and nothing that peers sent adds up.
constexpr std::size_t kMostResident = std::size_t{160} << 20;
/// What an answer carries beside its reasons' bytes.
constexpr std::size_t kBytesPerReason = 64;

/// A package's files arrive in a burst: the last one is waited for, but not for ever.
constexpr milliseconds kQuiet{150};
constexpr milliseconds kLongestBurst{1000};
/// What inotify does not tell is looked for that often, in milliseconds.
constexpr int kLookEvery = 700;

/// This process's own memory, without what it shares with files.
std::size_t resident() {
  unsigned long size = 0, pages = 0, shared = 0;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/statm", "re"),
                                                             &std::fclose);
  if (!file || std::fscanf(file.get(), "%lu %lu %lu", &size, &pages, &shared) != 3) return 0;
  return (pages - std::min(pages, shared)) * static_cast<std::size_t>(::getpagesize());
}

/// As long as it lives, no more memory than that: what would need more throws std::bad_alloc. For
/// parsing alone, because workers that are started meanwhile would inherit it.
class MemoryLimit {
 public:
  explicit MemoryLimit(rlim_t bytes) {
    if (kSanitized || ::getrlimit(RLIMIT_DATA, &old_) != 0) return;
    const rlimit now{std::min(bytes, old_.rlim_max), old_.rlim_max};
    set_ = ::setrlimit(RLIMIT_DATA, &now) == 0;
  }
  ~MemoryLimit() {
    if (set_) static_cast<void>(::setrlimit(RLIMIT_DATA, &old_));
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit old_{};
  bool set_ = false;
};

/// Tells compat-server, by memory that both have.
class SharedPage final : public LookObserver {
 public:
  SharedPage() {
    void* page =
        ::mmap(nullptr, sizeof(Looking), PROT_READ | PROT_WRITE, MAP_SHARED, kJudgeMemory, 0);
    if (page == MAP_FAILED) throw Error::from_errno("memory", "cannot be shared");
    page_ = static_cast<Looking*>(page);
  }
  void begin(std::string_view folder) override {
    const auto size = std::min(folder.size(), sizeof page_->folder - 1);
    std::memcpy(page_->folder, folder.data(), size);
    page_->folder[size] = '\0';
    ++page_->count;
  }
  void end() override { ++page_->count; }

 private:
  Looking* page_;  ///< as long as the process
};

std::vector<std::string> split(std::string_view folders) {
  std::vector<std::string> out;
  while (!folders.empty()) {
    out.emplace_back(folders.substr(0, folders.find('\0')));
    folders.remove_prefix(std::min(folders.size(), out.back().size() + 1));
  }
  return out;
}

Result<Artifact> parse(ReceivedQuestion question) {
  const MemoryLimit limit(kMostParsingBytes);
  try {
    return parse_artifact(question.artifact, question.where);
  } catch (const std::bad_alloc&) {
    return fail(question.where, "no verdict", "it would take too much memory");
  }
}

/// Takes the last reasons out until the rest is an answer of no more than kMostAnswerBytes: each is
/// told as its parts and as a line of them.
void shorten(Judgement& judgement) {
  std::size_t sum = 0, fit = 0;
  for (const auto& reason : judgement.reasons) {
    for (const auto* text : {&reason.program, &reason.subject, &reason.library, &reason.required_by,
                             &reason.path, &reason.package, &reason.detail})
      sum += text->size();
    sum += to_text(reason).size() + kBytesPerReason;
    if (sum > kMostAnswerBytes) break;
    ++fit;
  }
  judgement.more += judgement.reasons.size() - fit;
  judgement.reasons.resize(fit);
}

Answer answer(NodeIndex& index, ReceivedQuestion question) {
  Answer out;
  const auto artifact = parse(std::move(question));
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

int judge(NodeIndex& index, std::uint64_t generation) {
  // A large block goes back to the system when it is freed; glibc would raise this by and by.
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  // Verdicts that are known are told by the server meanwhile.
  static_cast<void>(::nice(5));
  std::string avoided;
  for (bool leaving = false; !leaving;) {
    auto question = receive_question(kJudgeSocket);
    if (!question) return exit_done;
    if (question->generation != generation || question->avoided != avoided)
      index.invalidate(split(question->avoided));
    generation = question->generation;
    avoided = std::move(question->avoided);
    auto said = answer(index, std::move(*question));
    if (resident() > kMostResident) ::malloc_trim(0);
    said.leaving = leaving = said.leaving || resident() > kMostResident;
    if (!send_answer(kJudgeSocket, said, Deadline::max())) return exit_done;
  }
  return exit_done;
}

class Watcher {
 public:
  explicit Watcher(NodeIndex& index) : index_(index), watch_(value_or_throw(FolderWatch::open())) {}

  int run() {
    // Watched before it is read: no change falls between.
    add_folders();
    auto told = Clock::now();
    const auto files = value_or_throw(index_.fill([&](std::size_t done, std::size_t total) {
      if (Clock::now() - told < std::chrono::seconds(1)) return;
      told = Clock::now();
      tell(Notice::Kind::progress, done, total);
    }));
    tell(Notice::Kind::indexed, files, files);
    while (!gone_) wait();
    return exit_done;
  }

 private:
  void tell(Notice::Kind kind, std::size_t done = 0, std::size_t total = 0) {
    gone_ = gone_ || !send_notice(kJudgeSocket, {kind, static_cast<std::uint32_t>(done),
                                                 static_cast<std::uint32_t>(total)});
  }

  /// Result: whether there are new ones.
  bool add_folders() {
    const auto added = watch_.add(index_.folders());
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
    if (ready[0].revents != 0) gone_ = true;  // compat-server says nothing, and has ended
    const auto now = Clock::now();
    const bool told = (ready[1].revents & POLLIN) != 0 && watch_.drain();
    const bool due = now - looked_ > milliseconds(kLookEvery);
    if (due) looked_ = now;
    if (told || (due && watch_.look())) {
      last_change_ = now;
      if (!changed_) first_change_ = now;
      changed_ = true;
    }
    if (changed_ && (now - last_change_ > kQuiet || now - first_change_ > kLongestBurst)) {
      index_.invalidate();
      tell(Notice::Kind::changed);
      // A folder may have been read before it was watched: once more, then.
      changed_ = add_folders();
      first_change_ = last_change_ = now;
    }
    if (due) tell(Notice::Kind::alive);
  }

  NodeIndex& index_;
  FolderWatch watch_;
  Clock::time_point first_change_{}, last_change_{}, looked_ = Clock::now();
  std::size_t lost_ = 0;
  bool changed_ = false, gone_ = false;
};

}  // namespace
}  // namespace heddle::compat

namespace heddle {

int compat_judge(int argc, const char* const* argv) {
  set_program_name("compat-server");
  CLI::App app("compat-server's processes that open files.", "compat-judge");
  compat::NodeIndexOptions options;
  app.add_option("--index", options.cache_dir, "Where the index lies");
  app.add_option("--rootfs", options.root, "Another root file system");
  app.add_option("--library-dir", options.library_dirs, "More directories with libraries")
      ->allow_extra_args(false);
  app.require_subcommand(1);
  std::uint64_t generation = 0;
  app.add_option("--generation", generation, "Of the node, as it is now");
  const auto* judge = app.add_subcommand("judge", "Answer questions");
  app.add_subcommand("watch", "Tell of changes");
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  try {
    options.worker_path = value_or_throw(own_program_dir()) + "/elf-worker";
    std::optional<compat::SharedPage> page;
    if (judge->parsed()) options.observer = &page.emplace();
    const auto index = value_or_throw(compat::NodeIndex::open(std::move(options)));
    return judge->parsed() ? compat::judge(*index, generation) : compat::Watcher(*index).run();
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

}  // namespace heddle
