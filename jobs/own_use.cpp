// SPDX-License-Identifier: MIT
#include "jobs/own_use.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/fd.hpp"
#include "jobs/collector/process.hpp"

namespace heddle::jobs {

constinit State state;  // of usage.cpp, here without a collector

namespace {

/// The value of kJobVariable; empty: nothing is collected.
std::string job_variable() {
  const char* value = std::getenv(kJobVariable);
  std::string job = value ? value : "";
  const bool is_whole = job.size() > kPathAt && job[kModes] == ' ' && job[kPathAt - 1] == ':';
  return is_whole ? job : "";
}

}  // namespace

OwnUse::OwnUse() {
  std::string job = job_variable();
  if (job.empty()) return;
  start_ = now_us();
  // The next program takes it for one that this process was before. No record tells its start, so
  // it is no process of the job.
  job.replace(kModes + 1, kPidDigits + kStartDigits,
              fmt::format("{:0{}}{:0{}}", ::getpid(), kPidDigits, start_, kStartDigits));
  ::setenv(kJobVariable, job.c_str(), 1);
}

void OwnUse::end() const {
  const auto job = job_variable();
  if (start_ == 0 || job.empty()) return;
  const Fd records(::open(job.c_str() + kPathAt,
                          O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW));
  if (!records) return;
  struct {
    RecordHeader header;
    EndBody body;
  } record{};
  record.header = {kRecordMagic, sizeof record, RecordType::exec, 0, ::getpid(), 0, start_};
  auto& body = record.body;
  body.status = -1;
  body.failed_lookups = -1;
  body.ppid = ::getppid();
  body.pgid = ::getpgrp();
  body.sid = ::getsid(0);
  for (auto& counter : state.own_io) counter = 0;
  body.usage = read_process();
  for (auto& counter : body.usage.own_io) counter = 0;
  // What comes after the kernel's numbers were read.
  auto& io = body.usage.task.io;
  for (unsigned i = 0; i < 2; ++i)
    if (io[2 * i] >= 0) io[2 * i] += body.usage.late_io[i];
  if (io[1] >= 0) io[1] += sizeof record;
  if (io[3] >= 0) ++io[3];
  (void)!::write(records.get(), &record, sizeof record);
}

}  // namespace heddle::jobs
