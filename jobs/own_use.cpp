// SPDX-License-Identifier: MIT
#include "jobs/own_use.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/fd.hpp"
#include "base/launch/rank.hpp"
#include "base/rank_mark.hpp"
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

ProcessUsage usage_now(bool is_same) {
  for (auto& counter : state.own_io) counter = 0;
  auto usage = read_process(is_same);
  for (auto& counter : usage.own_io) counter = 0;
  return usage;
}

template <class Body>
std::string record_of(RecordType type, unsigned flags, std::int64_t start, const Body& body) {
  RecordHeader header{kRecordMagic, 0, type, static_cast<std::uint8_t>(flags),
                      ::getpid(),   0, start};
  header.size = sizeof header + sizeof body;
  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  return out.append(reinterpret_cast<const char*>(&body), sizeof body);
}

EndBody end_body(const ProcessUsage& usage) {
  EndBody body{};
  body.status = -1;
  body.failed_lookups = -1;
  body.ppid = ::getppid();
  body.pgid = ::getpgrp();
  body.sid = ::getsid(0);
  body.usage = usage;
  return body;
}

}  // namespace

std::string foreign_start(char mode, int pid, std::int64_t start, const StartBody& body,
                          const std::string& path, const std::vector<std::string>& command) {
  std::error_code failed;
  const auto real = std::filesystem::canonical(path, failed).string();
  RecordHeader header{kRecordMagic, 0, RecordType::start, kForeign, pid, 0, start};
  std::string record(sizeof header, '\0');
  record.append(reinterpret_cast<const char*>(&body), sizeof body);
  record += (failed || real.size() > kMostRecord / 2 ? path.substr(0, kMostRecord / 2) : real);
  record.append(3, '\0');  // no tags, no container
  for (std::size_t i = 1; mode == 'f' && i < command.size(); ++i) {
    if (record.size() + command[i].size() >= kMostRecord) {
      header.flags |= kArgsCut;
      break;
    }
    record += command[i] + '\0';
  }
  header.size = static_cast<std::uint16_t>(record.size());
  return record.replace(0, sizeof header, reinterpret_cast<const char*>(&header), sizeof header);
}

OwnUse::OwnUse() {
  std::string job = job_variable();
  if (job.empty()) return;
  start_ = real_time_us();
  const auto self = fmt::format("{:0{}}", ::getpid(), kPidDigits);
  const auto at = kModes + 1;
  if (job.compare(at, kPidDigits, self) == 0) {
    previous_ = std::atoll(job.substr(at + kPidDigits, kStartDigits).c_str());
    used_before_ = usage_now(false);
  }
  job.replace(at, kPidDigits + kStartDigits, self + fmt::format("{:0{}}", start_, kStartDigits));
  ::setenv(kJobVariable, job.c_str(), 1);
}

void OwnUse::end(const std::string& path, const std::vector<std::string>& command) const {
  const auto job = job_variable();
  if (start_ == 0 || job.empty()) return;
  const Fd records(::open(job.c_str() + kPathAt,
                          O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW));
  if (!records) return;
  StartBody start{};
  start.previous = previous_;
  start.failed_lookups = -1;
  start.ppid = ::getppid();
  start.pgid = ::getpgrp();
  start.sid = ::getsid(0);
  start.rank = static_cast<std::int32_t>(rank_from_environment().value_or(-1));
  start.ranks = -1;
  for (const char* name : kSizeVariables)
    if (const char* text = std::getenv(name); text && start.ranks < 0)
      start.ranks = std::atoi(text);
  std::string text;
  if (previous_ != 0) text = record_of(RecordType::exec, 0, previous_, end_body(used_before_));
  text += record_of(RecordType::start, kHeddle, start_, start);
  auto ours = end_body(usage_now(true));
  const auto now = real_time_us();
  std::string next;
  if (!path.empty()) {
    start.previous = start_;
    next = foreign_start(job[0], ::getpid(), now, start, path, command);
  }
  // What this write adds; of the record alone the reader knows it.
  if (auto& written = ours.usage.task.io[1]; written >= 0)
    written += static_cast<std::int64_t>(text.size() + next.size());
  text += record_of(RecordType::exec, kBefore, start_, ours) + next;
  (void)!::write(records.get(), text.data(), text.size());
}

}  // namespace heddle::jobs
