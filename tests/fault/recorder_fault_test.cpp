// SPDX-License-Identifier: MIT
//
// Every system call of a recording fails once, in its own run: of fs-record, of its children, and
// of the program's process until it executes the program. The program then gets the native results
// or errors that are in the trace, or fs-record reports a failure. A trace with a footer is
// complete, nothing hangs, and nothing is left.

#include <set>

#include "tests/fault/traced_run.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/record/recorded.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using trace::Op;

/// One line of the program: the result of a step.
struct Met {
  std::string step;
  int error;
  std::string path;
};

std::vector<Met> met_in(const std::string& output) {
  std::vector<Met> out;
  for (const auto& line : lines_of(output)) {
    Met met;
    std::string who;
    std::istringstream words(line);
    if (words >> who >> met.step >> met.error >> met.path && who == "app:") out.push_back(met);
  }
  return out;
}

/// fs-record's own lines in `output`.
std::string said_in(const std::string& output) {
  std::string out;
  for (const auto& line : lines_of(output))
    if (!line.starts_with("app: ")) out += line + "\n";
  return out;
}

/// root mounts by itself, a user by fusermount3.
struct Way {
  const char* name;
  unsigned uid;
  const char* method;
};

class RecorderFaults : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_TRACER();
    HEDDLE_NEEDS_FUSE();
    separate_mounts();
    run_checked({"gcc", "-O1", "-static", "-o", dir_ / "app", HEDDLE_RECORDED_APP});
    run_checked({"cp", std::getenv("HEDDLE_FS_RECORD"), dir_ / "fs-record"});
    run_checked({"chmod", "0755", dir_.path()});
  }

  /// Makes one recording, with failures that name `fault`.
  TracedRun::Counts live(const std::optional<Fault>& fault);

 private:
  static std::string user() { return std::to_string(GetParam().uid); }
  void make_files(const std::string& base) const;
  /// fs-record as that user; wrappers() is the number of programs before it.
  Strings command() const;
  static unsigned wrappers() { return GetParam().uid == 0 ? 0 : 1; }
  void judge(int status, const std::string& output, const std::string& trace,
             const std::string& work);
  using Lines = std::multiset<std::string>;
  Lines events_of(const SeenTrace& seen, const std::string& work) const;

 protected:
  TestDir dir_;
  Lines native_;  ///< events_of() the run without a fault
  unsigned runs_ = 0;
};

void RecorderFaults::make_files(const std::string& base) const {
  for (const char* directory : {"/work", "/tmp", "/out"}) fs::create_directories(base + directory);
  write_text_file(base + "/work/in", "what stands in it");
  write_text_file(base + "/work/shared", "s", 0640);
  run_checked({"chown", "-R", user() + ":" + user(), base});
  run_checked({"chgrp", "12346", base + "/work/shared"});
}

Strings RecorderFaults::command() const {
  if (GetParam().uid == 0) return {dir_ / "fs-record"};
  return {HEDDLE_IN_WORLD, "--uid", user(), "--", dir_ / "fs-record"};
}

/// The events that do not depend on the kernel's caches.
RecorderFaults::Lines RecorderFaults::events_of(const SeenTrace& seen,
                                                const std::string& work) const {
  static const std::set<Op> kLeftOut = {Op::stat, Op::access, Op::read, Op::write};
  Lines out;
  for (const auto& e : seen.events)
    if (!kLeftOut.contains(e.op) && e.place().starts_with(work + "/"))
      out.insert(std::string(trace::op_name(e.op)) + " " + std::to_string(e.error) + " " +
                 e.place().substr(work.size()));
  return out;
}

void RecorderFaults::judge(int status, const std::string& output, const std::string& trace,
                           const std::string& work) {
  const auto met = met_in(output);
  const auto said = said_in(output);
  for (const auto& m : met) EXPECT_NE(m.error, -1) << m.step << " met wrong bytes of " << m.path;
  EXPECT_TRUE(status != 3 || !said.empty()) << "it fails without a word";
  SeenTrace seen;
  if (fs::exists(trace)) {
    const auto runs = trace::read_runs(trace);
    EXPECT_TRUE(runs) << runs.error().message();
    if (runs) seen = runs->at(0);
  }
  if (!seen.complete()) {
    EXPECT_FALSE(said.empty()) << "the trace is incomplete without a message";
    EXPECT_NE(status, 7) << "the trace is incomplete";
    return;
  }
  EXPECT_EQ(seen.footer.events, seen.events.size());
  if (status == 7) {
    const auto events = events_of(seen, work);
    std::string missing, more;
    for (const auto& line : native_)
      if (events.count(line) < native_.count(line)) missing += line + "\n";
    for (const auto& line : events)
      if (events.count(line) > native_.count(line) && !line.starts_with("lookup") &&
          line.find(" 0 ") != std::string::npos)
        more += line + "\n";
    EXPECT_EQ(missing, "") << "is not in the trace";
    EXPECT_EQ(more, "") << "is in the trace, and did not happen";
  }
  // Under proot the mount's directory refuses another user before the recorder sees a request.
  // Reading on in a directory is not an event.
  const bool proot = seen.header.method == "proot";
  for (const auto& m : met) {
    if (m.error == 0 || (proot && m.step == "another") || m.step == "readdir") continue;
    EXPECT_NE(m.error, EACCES) << m.step << " was refused what it may do";
    EXPECT_TRUE(std::any_of(seen.events.begin(), seen.events.end(),
                            [&](const SeenEvent& e) {
                              return e.error == m.error &&
                                     (e.place().starts_with(work) || work.starts_with(e.place()));
                            }))
        << m.step << " met errno " << m.error << ", which is not in the trace";
  }
}

TracedRun::Counts RecorderFaults::live(const std::optional<Fault>& fault) {
  const std::string base = dir_ / ("run" + std::to_string(++runs_));
  const std::string work = base + "/work";
  const std::string temp = base + "/tmp";
  const std::string said = base + "/said";
  const std::string trace = base + "/out/run.txt";
  const std::string mark = "HEDDLE_TEST_MARK=" + base + "/";
  make_files(base);
  SCOPED_TRACE(fault ? to_text(*fault) : "no fault");

  auto argv = command();
  argv.insert(argv.end(), {"-q", "--io", "--out", trace, dir_ / "app", work, mark});
  auto traced = TracedRun::start(argv, {"TMPDIR=" + temp, "PATH=/usr/bin:/bin", mark}, said, fault,
                                 TracedRun::Scope::until_exec, wrappers());
  const auto status = traced.wait_for_program(20s);
  EXPECT_TRUE(status) << "fs-record does not end";
  const auto counts = traced.wait_for_all(20s);
  EXPECT_TRUE(counts) << "a process is left";
  EXPECT_EQ(mounts_with(base), 0U);
  // An executed fusermount3 or fs-mount, which may still work, is not traced.
  EXPECT_TRUE(wait_until(5s, [&] { return fs::is_empty(temp); })) << "a file is left";
  const std::string output = read_file(said).value_or("");
  EXPECT_TRUE(wait_until(5s, [&] { return recorders(mark, "app").empty(); }))
      << "the program is left";
  for (const auto& entry : fs::directory_iterator(base + "/out"))
    EXPECT_EQ(entry.path(), trace) << "is left";
  if (!fault) {
    EXPECT_EQ(status, 7) << output;
    const auto seen = read_seen(trace);
    EXPECT_EQ(seen.header.method, GetParam().method);
    native_ = events_of(seen, work);
    EXPECT_GT(native_.size(), 20U);
  }
  if (status) judge(*status, output, trace, work);
  if (HasFailure()) std::cerr << output;
  if (!HasFailure()) fs::remove_all(base);
  return counts.value_or(TracedRun::Counts());
}

TEST_P(RecorderFaults, failing_system_call_costs_at_most_an_error) {
  try_faults([this](const std::optional<Fault>& fault) { return live(fault); });
}

INSTANTIATE_TEST_SUITE_P(, RecorderFaults,
                         ::testing::Values(Way{"root", 0, "namespace"},
                                           Way{"user", 1500, "fusermount3"}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace heddle::test
