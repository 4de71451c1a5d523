// SPDX-License-Identifier: MIT
#include "record/loopback/core_follower.hpp"

#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace heddle::loopback {
namespace {

constexpr unsigned kWindow = 64;
// One program and its short-lived children look like this: few changes in a window.
constexpr unsigned kFewChanges = 8;

/// Field 39 of /proc/TID/stat, the core it last ran on (proc(5)); -1 when it has gone.
int core_of(int stat_fd) {
  char text[1024];
  const ssize_t n = ::pread(stat_fd, text, sizeof(text) - 1, 0);
  if (n <= 0) return -1;
  text[n] = '\0';
  const char* at = std::strrchr(text, ')');  // the name before it may hold anything
  for (int field = 2; at && field < 39; ++field) at = std::strchr(at + 1, ' ');
  return at ? std::atoi(at + 1) : -1;
}

}  // namespace

CoreFollower::CoreFollower() {
  CPU_ZERO(&all_);
  usable_ = ::sched_getaffinity(0, sizeof(all_), &all_) == 0 && CPU_COUNT(&all_) > 1;
}

CoreFollower::~CoreFollower() { release(); }

void CoreFollower::release() {
  if (core_ < 0) return;
  ::sched_setaffinity(0, sizeof(all_), &all_);
  core_ = -1;
}

void CoreFollower::sample(std::int32_t tid) {
  if (tid != stat_tid_) {
    char path[48];
    std::snprintf(path, sizeof(path), "/proc/%d/stat", tid);
    stat_.reset(::open(path, O_RDONLY | O_CLOEXEC));
    stat_tid_ = tid;
  }
  const int core = stat_ ? core_of(stat_.get()) : -1;
  if (core < 0 || core == core_ || !CPU_ISSET(core, &all_)) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (::sched_setaffinity(0, sizeof(one), &one) == 0) core_ = core;
}

void CoreFollower::on_request(std::int32_t tid) {
  if (!usable_ || tid == 0) return;
  if (tid != last_tid_) {
    last_tid_ = tid;
    ++changes_;
  }
  if (++in_window_ < kWindow && core_ >= 0) return;
  if (changes_ <= kFewChanges) {
    sample(tid);
  } else {
    release();
  }
  in_window_ = 0;
  changes_ = 0;
}

}  // namespace heddle::loopback
