// SPDX-License-Identifier: MIT
#include "tests/fault/faults.hpp"

#include <seccomp.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <set>

namespace heddle::test {
namespace {

/// Calls that cannot fail (a futex that wakes nobody is a thread lost), or whose failure no program
/// could live with.
const std::set<long> kSpared = {
    SYS_exit,     SYS_exit_group,      SYS_rt_sigreturn, SYS_restart_syscall, SYS_getpid,
    SYS_gettid,   SYS_getppid,         SYS_getuid,       SYS_geteuid,         SYS_getgid,
    SYS_getegid,  SYS_set_tid_address, SYS_umask,        SYS_futex,           SYS_sched_yield,
    SYS_munmap,   SYS_rt_sigprocmask,  SYS_rt_sigaction, SYS_arch_prctl,      SYS_set_robust_list,
    SYS_setfsuid, SYS_setfsgid,        SYS_rseq};

const std::set<long> kReadsAndWrites = {SYS_read, SYS_pread64, SYS_write, SYS_pwrite64, SYS_splice};

std::string name_of(long call) {
  const std::unique_ptr<char, decltype(&std::free)> name(
      ::seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, static_cast<int>(call)), &std::free);
  return name ? name.get() : std::to_string(call);
}

}  // namespace

std::string to_text(const Fault& fault) {
  const std::string how =
      fault.kind == Fault::Kind::cut ? "cut short" : ::strerrorname_np(fault.error_number);
  return name_of(fault.call) + " number " + std::to_string(fault.nth) + ": " + how;
}

std::vector<Fault> all_faults(const TracedRun::Counts& counts) {
  std::vector<Fault> out;
  for (const auto& [call, count] : counts) {
    if (kSpared.count(call) != 0) continue;
    for (unsigned nth = 1; nth <= count; ++nth) {
      for (const int error : {EIO, ENOSPC, ENOMEM, EMFILE, EINTR})
        if (call != SYS_brk || error == ENOMEM)
          out.push_back({call, nth, Fault::Kind::error, error});
      if (kReadsAndWrites.count(call) != 0) out.push_back({call, nth, Fault::Kind::cut, 0});
    }
  }
  return out;
}

void try_faults(std::vector<Fault> faults, const std::function<void(const Fault&)>& live) {
  const char* asked = std::getenv("HEDDLE_FAULTS");
  const bool sample = !asked;
  if (asked && std::string_view(asked) != "all")
    std::erase_if(faults,
                  [&](const Fault& f) { return to_text(f).find(asked) == std::string::npos; });
  if (sample) std::shuffle(faults.begin(), faults.end(), std::mt19937_64(std::random_device()()));
  const char* seconds = std::getenv("HEDDLE_TEST_SECONDS");
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(seconds ? std::atoi(seconds) : 4);
  std::size_t tried = 0;
  for (const auto& fault : faults) {
    if (sample && std::chrono::steady_clock::now() > end) break;
    live(fault);
    if (++tried % 100 == 0) std::cerr << tried << " of " << faults.size() << '\n';
  }
  std::cerr << tried << " of " << faults.size() << " faults tried\n";
}

}  // namespace heddle::test
