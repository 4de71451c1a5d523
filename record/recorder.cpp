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
    : options_(options), start_ns_(monotonic_ns()), queue_(std::move(writer)) {}

std::uint64_t Recorder::now() const { return monotonic_ns() - start_ns_; }

void Recorder::add(trace::Event& event) {
  if (!on_) return;
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
  if (wanted) queue_.add(event);
  if (event.op == trace::Op::exec && event.error == 0) callers_.executes(event.tid);
}

Result<void> Recorder::finish(bool complete, std::optional<int> exit_status) {
  on_ = false;
  return queue_.finish(complete, exit_status, now());
}

}  // namespace heddle
