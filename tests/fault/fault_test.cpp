// SPDX-License-Identifier: MIT
//
// Every system call of a mount's life fails once, in its own run: mounting, reading ahead, starting
// a program, reading every file, unmounting. A reader then gets the right bytes or an error,
// nothing hangs, a mount that fails reports why, and nothing is left.
#include <sys/wait.h>

#include "tests/fault/traced_run.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

class Faults : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_TRACER();
    HEDDLE_NEEDS_FUSE();
    separate_mounts();
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

  /// Runs one mount's life, with failures that name `fault`.
  TracedRun::Counts live(const std::optional<Fault>& fault);

 private:
  enum class Seen : std::uint8_t { right = 0, error = 1, wrong_bytes = 2, hung = 3 };
  /// What a user of the mount at `m` gets.
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
  ::kill(child.release(), SIGKILL);  // not reaped, since its request may be unkillable
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
  const std::string name = fault ? to_text(*fault) : "no fault";

  auto traced = TracedRun::start({fs_mount(), "--log", log, dir_ / "map", m},
                                 {"TMPDIR=" + temp, "PATH=/usr/bin:/bin"}, said, fault);
  const auto status = traced.wait_for_program(20s);
  if (!status) ADD_FAILURE() << name << ": fs-mount does not end";
  const auto words = [&] { return read_file(said).value_or("") + read_file(log).value_or(""); };

  if (status && *status == 0) {
    const Seen first = use(m);
    EXPECT_TRUE(first == Seen::right || first == Seen::error)
        << name << ": " << static_cast<int>(first);
    // The fault is over: the mount serves, or has ended and reported why.
    if (first == Seen::error && use(m) != Seen::right) {
      EXPECT_NE(words(), "") << name << ": it does not serve and does not say why";
    }
    EXPECT_TRUE(fault || first == Seen::right);
  } else if (status) {
    EXPECT_NE(words(), "") << name << ": it fails without a word, " << *status;
  }
  // The unmounting process has no faults.
  if (mounts_with(" " + m + " ") > 0) {
    EXPECT_TRUE(status && *status == 0) << name << ": it fails and leaves its mount";
    (void)run({fs_mount(), "-u", m});
  }
  EXPECT_EQ(mounts_with(" " + m + " "), 0U) << name << ": it cannot be unmounted";
  if (mounts_with(" " + m + " ") > 0) (void)run({"umount", "-l", m});

  const auto counts = traced.wait_for_all(20s);
  EXPECT_TRUE(counts) << name << ": a process is left";
  EXPECT_TRUE(fs::is_empty(temp)) << name << ": a file is left";
  if (!HasFailure()) fs::remove_all(base);
  return counts.value_or(TracedRun::Counts());
}

TEST_F(Faults, failing_system_call_costs_at_most_an_error) {
  try_faults([this](const std::optional<Fault>& fault) { return live(fault); });
}

}  // namespace
}  // namespace heddle::test
