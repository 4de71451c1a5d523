// SPDX-License-Identifier: MIT
//
// Every system call of a mount's life fails once, in its own run: mounting, reading ahead, a
// program that starts, every file read, unmounting. Whatever fails, a reader gets the right bytes
// or an error, nobody waits for ever, a mount that does not come says why, and nothing is left.
//
// A sample runs for HEDDLE_TEST_SECONDS (4); HEDDLE_FAULTS=all runs every call and every fault, and
// HEDDLE_FAULTS='writev number 3' those that are told with these words.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include "base/process.hpp"
#include "base/sandbox/sanitized.hpp"
#include "tests/fault/traced_run.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// Calls that cannot fail (a futex that wakes nobody is a thread lost), or whose failure no program
/// could live with.
const std::set<long> kSpared = {
    SYS_exit,    SYS_exit_group,      SYS_rt_sigreturn, SYS_restart_syscall, SYS_getpid,
    SYS_gettid,  SYS_getppid,         SYS_getuid,       SYS_geteuid,         SYS_getgid,
    SYS_getegid, SYS_set_tid_address, SYS_umask,        SYS_futex,           SYS_sched_yield,
    SYS_munmap,  SYS_rt_sigprocmask,  SYS_rt_sigaction, SYS_arch_prctl,      SYS_set_robust_list,
    SYS_rseq};

const std::set<long> kReadsAndWrites = {SYS_read, SYS_pread64, SYS_write, SYS_pwrite64, SYS_splice};

std::string name_of(long call) {
  const std::unique_ptr<char, decltype(&std::free)> name(
      ::seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, static_cast<int>(call)), &std::free);
  return name ? name.get() : std::to_string(call);
}

std::string to_text(const Fault& fault) {
  const std::string how =
      fault.kind == Fault::Kind::cut ? "cut short" : ::strerrorname_np(fault.error_number);
  return name_of(fault.call) + " number " + std::to_string(fault.nth) + ": " + how;
}

/// The faults to try, for calls made as often as `counts` says.
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

class Faults : public ::testing::Test {
 protected:
  void SetUp() override {
#ifndef __x86_64__
    HEDDLE_SKIP("the tracer knows x86-64's registers only");
#endif
    HEDDLE_NEEDS_FUSE();
    if (kSanitized) HEDDLE_SKIP("a sanitizer's runtime makes system calls of its own");
    FarmOptions options;
    options.libraries = 3;
    options.tag = FarmTag::none;
    farm_ = ElfFarm::build(dir_ / "farm", options);
    write_text_file(dir_ / "farm/large", std::string(300000, 'x') + "end");
    MapMaker maker;
    for (std::size_t i = 0; i < farm_.libraries.size(); ++i)
      maker.add_name("v", farm_.sonames[i], farm_.libraries[i]);
    maker.add_name("v", "large", dir_ / "farm/large");
    maker.write(dir_ / "map");
  }

  /// One mount's life. Adds a failure, named by `fault`, when it does not end as it should.
  TracedRun::Counts live(const std::optional<Fault>& fault);

 private:
  enum class Seen : std::uint8_t { right = 0, error = 1, wrong_bytes = 2, hung = 3 };
  /// What a user of the mount at `m` meets.
  Seen use(const std::string& m) const;
  int use_here(const std::string& m) const;

 protected:
  TestDir dir_;
  ElfFarm farm_;
  unsigned runs_ = 0;
};

int Faults::use_here(const std::string& m) const {
  bool failed = false;
  std::vector<std::pair<std::string, std::string>> files = {{"large", dir_ / "farm/large"}};
  for (std::size_t i = 0; i < farm_.libraries.size(); ++i)
    files.emplace_back(farm_.sonames[i], farm_.libraries[i]);
  for (const auto& [name, origin] : files) {
    const auto got = read_file(m + "/" + name);
    failed |= !got;
    if (got && *got != value_or_throw(read_file(origin))) return 2;
  }
  RunOptions options;
  options.env = {"LD_LIBRARY_PATH=" + m};
  const auto started = run({farm_.program}, options);
  if (started.status == 0 && started.out != farm_.output) return 2;
  return failed || started.status != 0 ? 1 : 0;
}

Faults::Seen Faults::use(const std::string& m) const {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(use_here(m));
  Child child(pid);
  const auto ended = child.wait_for(20s);
  if (ended && *ended) return static_cast<Seen>(**ended);
  ::kill(child.release(), SIGKILL);  // it may be in a request that cannot be killed
  return Seen::hung;
}

TracedRun::Counts Faults::live(const std::optional<Fault>& fault) {
  const std::string base = dir_ / ("run" + std::to_string(++runs_));
  const std::string m = base + "/m";
  const std::string temp = base + "/tmp";
  const std::string log = base + "/log";
  const std::string said = base + "/said";
  fs::create_directories(m);
  fs::create_directories(temp);
  const std::string told = fault ? to_text(*fault) : "no fault";

  auto traced = TracedRun::start({fs_mount(), "--log", log, dir_ / "map", m},
                                 {"TMPDIR=" + temp, "PATH=/usr/bin:/bin"}, said, fault);
  const auto status = traced.wait_for_program(20s);
  if (!status) ADD_FAILURE() << told << ": fs-mount does not end";
  const auto words = [&] { return read_file(said).value_or("") + read_file(log).value_or(""); };

  if (status && *status == 0) {
    const Seen first = use(m);
    EXPECT_TRUE(first == Seen::right || first == Seen::error)
        << told << ": " << static_cast<int>(first);
    // What failed once is over: it serves, or has ended and said why.
    if (first == Seen::error && use(m) != Seen::right)
      EXPECT_NE(words(), "") << told << ": it does not serve and does not say why";
    EXPECT_TRUE(fault || first == Seen::right);
  } else if (status) {
    EXPECT_NE(words(), "") << told << ": it fails without a word, " << *status;
  }
  // By a process without faults, whatever state it is in.
  if (mounts_with(" " + m + " ") > 0) {
    EXPECT_TRUE(status && *status == 0) << told << ": it fails and leaves its mount";
    (void)run({fs_mount(), "-u", m});
  }
  EXPECT_EQ(mounts_with(" " + m + " "), 0U) << told << ": it cannot be unmounted";
  if (mounts_with(" " + m + " ") > 0) (void)run({"umount", "-l", m});

  const auto counts = traced.wait_for_all(20s);
  EXPECT_TRUE(counts) << told << ": a process is left";
  EXPECT_TRUE(fs::is_empty(temp)) << told << ": a file is left";
  if (!HasFailure()) fs::remove_all(base);
  return counts.value_or(TracedRun::Counts());
}

TEST_F(Faults, no_failing_system_call_costs_more_than_an_error) {
  const auto counts = live(std::nullopt);
  ASSERT_FALSE(HasFailure());
  auto faults = all_faults(counts);
  ASSERT_GT(faults.size(), 500U);
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
    (void)live(fault);
    if (++tried % 100 == 0) std::cerr << tried << " of " << faults.size() << '\n';
  }
  std::cerr << tried << " of " << faults.size() << " faults tried\n";
}

}  // namespace
}  // namespace heddle::test
