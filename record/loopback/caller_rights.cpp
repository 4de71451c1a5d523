// SPDX-License-Identifier: MIT
#include "record/loopback/caller_rights.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/insist.hpp"

namespace heddle::loopback {
namespace {

std::vector<gid_t> groups_of(std::int32_t tid) {
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%d/status", tid);
  // Not read, the caller would be refused what he may have. ENOENT, ESRCH: he has gone.
  const auto may_be_read = [](int error) { return error != ENOENT && error != ESRCH; };
  const Fd fd(insist([&] { return ::open(path, O_RDONLY | O_CLOEXEC); }, may_be_read));
  char text[8192];
  const ssize_t n =
      fd ? insist([&] { return ::read(fd.get(), text, sizeof(text) - 1); }, may_be_read) : -1;
  if (n <= 0) return {};
  text[n] = '\0';
  const char* at = std::strstr(text, "\nGroups:");
  if (!at) return {};
  at += 8;
  std::vector<gid_t> groups;
  while (*at && *at != '\n') {
    char* end = nullptr;
    const unsigned long group = std::strtoul(at, &end, 10);
    if (end == at) break;
    groups.push_back(static_cast<gid_t>(group));
    at = end;
    while (*at == ' ' || *at == '\t') ++at;
  }
  return groups;
}

}  // namespace

CallerRights::CallerRights()
    : may_switch_(::geteuid() == 0),
      uid_(::geteuid()),
      gid_(::getegid()),
      own_uid_(uid_),
      own_gid_(gid_) {
  // umask(2) is the process's otherwise; this thread's must be its own.
  ::unshare(CLONE_FS);
}

// glibc's setgroups() and the like would change every thread; the system calls change this one.
void CallerRights::assume(const Request& request) {
  if (!may_switch_) return;
  const auto& header = request.header();
  const std::uint32_t uid = header.pid == 0 && header.uid == 0 ? own_uid_ : header.uid;
  const std::uint32_t gid = header.pid == 0 && header.uid == 0 ? own_gid_ : header.gid;
  if (uid == uid_ && gid == gid_ && uid == 0) return;
  if (uid != 0 && header.pid != 0) {
    const auto groups = groups_of(request.tid());
    // With those of the caller before he would be given what he may not have. EPERM: a root who may
    // not set them (a user namespace that denies it) has set none before.
    const auto set = [&] { return ::syscall(SYS_setgroups, groups.size(), groups.data()); };
    if (insist(set, [](int error) { return error != EPERM; }) < 0 && errno != EPERM)
      leave_to_next_worker();
  }
  become(uid, gid);
}

void CallerRights::assume_own() {
  if (may_switch_) become(own_uid_, own_gid_);
}

void CallerRights::become(std::uint32_t uid, std::uint32_t gid) {
  if (gid != gid_) ::syscall(SYS_setfsgid, gid);
  if (uid != uid_) ::syscall(SYS_setfsuid, uid);
  gid_ = gid;
  uid_ = uid;
}

void CallerRights::set_umask(unsigned mask) {
  if (mask == umask_) return;
  ::umask(mask);
  umask_ = mask;
}

}  // namespace heddle::loopback
