// SPDX-License-Identifier: MIT
#include "record/recorder.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/fd.hpp"

namespace heddle {
namespace {

using trace::Op;

// Process ids are assigned in a cycle, so none is reused within this time.
constexpr std::uint64_t kTrustNs = 50'000'000;
// /proc/PID/exe changes after the exec event and the reads of the program and its interpreter.
constexpr unsigned kRechecks = 64;
constexpr std::size_t kMostKnown = 20'000;
constexpr std::size_t kMostCollisions = 10;

// No file read here may take the process's mmap lock (cmdline, maps): the thread may hold it while
// it waits for our answer to a page fault.

/// Field Tgid of /proc/TID/status.
std::int32_t process_of(std::int32_t tid) {
  char text[512];
  const char* at =
      loopback::read_proc(tid, "status", text) ? std::strstr(text, "\nTgid:") : nullptr;
  return at ? static_cast<std::int32_t>(std::atoi(at + 6)) : tid;
}

constexpr std::size_t kMostWalks = 4096;

/// Whether the thread reads the link on its way to a path, and not by readlink(2).
bool is_walking(std::int32_t tid) {
  const long number = loopback::call_of(tid).number;
#ifdef SYS_readlink
  if (number == SYS_readlink) return false;
#endif
  return number != -1 && number != SYS_readlinkat;
}

std::uint64_t monotonic_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

std::string_view Callers::intern(std::string_view text) { return *texts_.emplace(text).first; }

std::string_view Callers::read_exe(std::int32_t tid) {
  char text[PATH_MAX];
  const ssize_t n = ::readlink(loopback::ProcPath(tid, "exe").text, text, sizeof(text));
  return n <= 0 ? std::string_view() : intern({text, static_cast<std::size_t>(n)});
}

Caller Callers::of(std::int32_t tid, std::uint64_t now_ns) {
  if (tid == 0) return {};
  const std::lock_guard lock(mutex_);
  if (known_.size() > kMostKnown) known_.clear();
  auto& known = known_[tid];
  if (known.seen_ns == 0 || now_ns > known.seen_ns + kTrustNs) {
    const auto exe = read_exe(tid);
    if (!exe.empty() || known.seen_ns == 0) known.caller = {process_of(tid), exe};
  } else if (known.recheck > 0) {
    const auto exe = read_exe(tid);
    --known.recheck;
    if (!exe.empty() && exe != known.caller.exe) {
      known.caller.exe = exe;
      known.recheck = 0;
    }
  }
  known.seen_ns = now_ns | 1U;
  return known.caller;
}

void Callers::executes(std::int32_t tid) {
  const std::lock_guard lock(mutex_);
  if (const auto at = known_.find(tid); at != known_.end()) at->second.recheck = kRechecks;
}

std::string Walks::destination(std::string_view link, std::string_view target) {
  const std::filesystem::path whole = std::filesystem::path(link).parent_path() / target;
  std::string out = whole.lexically_normal().string();
  if (out.size() > 1 && out.back() == '/') out.pop_back();
  return out;
}

bool Walks::asked_path(const trace::Event& event, std::string& asked) {
  if (event.op == Op::readlink && event.error == 0 && is_walking(event.tid)) {
    const std::lock_guard lock(mutex_);
    if (walks_.size() > kMostWalks) walks_.clear();
    Walk& walk = walks_[event.tid];
    if (!walk.end.empty()) walk = {};
    walk.steps.push_back({std::string(event.path), destination(event.path, event.target)});
    return false;
  }
  const std::lock_guard lock(mutex_);
  const auto at = walks_.find(event.tid);
  if (at == walks_.end()) return false;
  Walk& walk = at->second;
  if (!walk.end.empty() && (event.op == Op::lookup || walk.end != event.path)) {
    walks_.erase(at);
    return false;
  }
  if (event.op == Op::lookup && event.error == 0) return false;  // the walk continues
  if (event.op == Op::read || event.op == Op::write || event.op == Op::close) return false;
  walk.end = event.path;
  asked = event.path;
  bool changed = false;
  for (auto step = walk.steps.rbegin(); step != walk.steps.rend(); ++step) {
    const auto& target = step->target;
    const bool below = asked.size() > target.size() && asked.starts_with(target) &&
                       (asked[target.size()] == '/' || target == "/");
    if (asked != target && !below) continue;
    asked = step->link + (target == "/" ? asked : asked.substr(target.size()));
    changed = true;
  }
  return changed;
}

Recorder::Recorder(trace::TraceWriter writer, const RecorderOptions& options)
    : options_(options), start_ns_(monotonic_ns()), writer_(std::move(writer)) {}

std::uint64_t Recorder::now() const { return monotonic_ns() - start_ns_; }

void Recorder::add(trace::Event& event) {
  if (!on()) return;
  event.ns = now();
  std::string asked;
  if (walks_.asked_path(event, asked)) {
    event.resolved = event.path;
    event.path = asked;
  }
  // For unwanted opens too: their close logs the caller at the open.
  const bool opens = event.op == trace::Op::open || event.op == trace::Op::create;
  const bool wanted = options_.ops[static_cast<std::size_t>(event.op)];
  if (event.pid == 0 && (wanted || opens)) {
    const auto caller = callers_.of(event.tid, event.ns);
    event.pid = caller.pid;
    event.exe = caller.exe;
  }
  if (wanted) {
    const std::lock_guard lock(mutex_);
    if (!finished_) writer_.append(event);
  }
  if (event.op == trace::Op::exec && event.error == 0) callers_.executes(event.tid);
}

void Recorder::add_collision(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (collisions_.size() < kMostCollisions) collisions_.push_back(path);
}

std::vector<std::string> Recorder::collisions() {
  const std::lock_guard lock(mutex_);
  return collisions_;
}

void Recorder::flush() {
  const std::lock_guard lock(mutex_);
  if (!finished_) writer_.flush();
}

Result<void> Recorder::finish(bool complete, std::optional<int> exit_status) {
  const bool was_on = on_.exchange(false);
  const std::lock_guard lock(mutex_);
  finished_ = true;
  auto done = writer_.finish(complete && was_on, exit_status, now());
  if (done && complete && !was_on) return fail("", "the start of the program was not recorded");
  return done;
}

}  // namespace heddle
