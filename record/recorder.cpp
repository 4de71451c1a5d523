// SPDX-License-Identifier: MIT
#include "record/recorder.hpp"

#include <time.h>

namespace heddle {
namespace {

std::uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

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
  // An open is asked about also when it is not wanted: its close will not ask again.
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

void Recorder::flush() {
  const std::lock_guard lock(mutex_);
  if (!finished_) writer_.flush();
}

Result<void> Recorder::finish(bool complete, std::optional<int> exit_status) {
  const bool was_on = on_.exchange(false);
  const std::lock_guard lock(mutex_);
  finished_ = true;
  auto done = writer_.finish(complete && was_on, exit_status, now());
  if (done && complete && !was_on)
    return fail("", "the recorder was never told that the program began");
  return done;
}

}  // namespace heddle
