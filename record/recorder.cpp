// SPDX-License-Identifier: MIT
#include "record/recorder.hpp"

#include <time.h>

#include <system_error>

namespace heddle {
namespace {

std::uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

Result<std::unique_ptr<RecordingMemory>> RecordingMemory::create() {
  try {
    auto events = EventRing::create();
    if (!events) return fail(std::move(events.error()));
    auto memory = std::make_unique<RecordingMemory>();
    memory->events = std::move(*events);
    memory->start_ns = monotonic_ns();
    return memory;
  } catch (const std::system_error& error) {
    return fail_errno("", "cannot start the recorder", error.code().value());
  }
}

std::uint64_t RecordingMemory::now() const { return monotonic_ns() - start_ns; }

void Recorder::add(trace::Event& event, const loopback::Telling& telling) {
  if (!on()) return;
  event.ns = memory_.now();
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
  if (wanted) memory_.events->add(event, telling);
  if (event.op == trace::Op::exec && event.error == 0) callers_.executes(event.tid);
}

}  // namespace heddle
