// SPDX-License-Identifier: MIT
//
// Every system call of a mount's life fails once, in its own run: mounting, reading ahead, a
// program that starts, every file read, unmounting. Whatever fails, a reader gets the right bytes
// or an error, nobody waits for ever, a mount that does not come says why, and nothing is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>

#include "base/child.hpp"
#include "base/sandbox/sanitized.hpp"
#include "tests/fault/traced_run.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

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
    if (first == Seen::error && use(m) != Seen::right) {
      EXPECT_NE(words(), "") << told << ": it does not serve and does not say why";
    }
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
  const auto faults = all_faults(counts);
  ASSERT_GT(faults.size(), 500U);
  try_faults(faults, [this](const Fault& fault) { (void)live(fault); });
}

}  // namespace
}  // namespace heddle::test
