// SPDX-License-Identifier: MIT
//
// The rights of elf-workers and recorders, as in the table of docs/security.md.
// tests/overlay/least_privilege_test.cpp has fs-mount's processes, network_peer_test.cpp
// compat-server's.
#include <linux/capability.h>

#include "base/sandbox/sanitized.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

constexpr const char* kNone = "0000000000000000";

/// The value of the line `name` of a /proc/PID/status; empty: there is none.
std::string line_of(const std::string& status, const std::string& name) {
  const auto at = status.find("\n" + name + ":\t");
  if (at == status.npos) return {};
  const auto begin = at + name.size() + 3;
  return status.substr(begin, status.find('\n', begin) - begin);
}

std::uint64_t mask_of(const std::string& status, const std::string& name) {
  return std::stoull(line_of(status, name), nullptr, 16);
}

/// /proc/PID/status of each thread.
Strings statuses_of(const std::string& pid) {
  Strings out;
  std::error_code none;
  for (const auto& thread : fs::directory_iterator("/proc/" + pid + "/task", none))
    if (auto text = read_file(thread.path() / "status")) out.push_back(std::move(*text));
  return out;
}

/// The descendants of `parent` with this name.
Strings processes_below(const std::string& parent, const std::string& name) {
  Strings out;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto pid = entry.path().filename().string();
    const auto status = read_file(entry.path() / "status").value_or("");
    if (line_of(status, "PPid") != parent) continue;
    if (status.starts_with("Name:\t" + name + "\n")) out.push_back(pid);
    const auto below = processes_below(pid, name);
    out.insert(out.end(), below.begin(), below.end());
  }
  return out;
}

TEST(Rights, elf_worker_has_no_rights) {
  if (kSanitized) HEDDLE_SKIP("the sandbox is open in a build with sanitizers");
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  const TestDir dir;
  std::string seen;
  // A worker lives only while the resolver has work for it.
  for (int i = 0; i < 100 && seen.empty(); ++i) {
    auto resolver = start_silently(
        fs_resolve, {fs_resolve, "tree", "/usr/bin/python3"},
        Strings{"PATH=/usr/bin:/bin", "XDG_CACHE_HOME=" + (dir / std::to_string(i))});
    const auto pid = std::to_string(resolver.pid());
    (void)wait_until(20s, [&] {
      if (processes_below(pid, "elf-worker").empty()) return !is_running(resolver.pid());
      ::kill(resolver.pid(), SIGSTOP);  // keeps the worker alive
      return true;
    });
    for (const auto& worker : processes_below(pid, "elf-worker"))
      (void)wait_until(5s, [&] {
        const auto all = statuses_of(worker);
        // Under ./dev test --old-kernel it starts with a filter already.
        if (!all.empty() && line_of(all[0], "Seccomp") == "2" && line_of(all[0], "CapPrm") == kNone)
          seen = all[0];
        return !seen.empty() || all.empty();
      });
    ::kill(resolver.pid(), SIGCONT);
    (void)resolver.wait();
  }
  ASSERT_NE(seen, "");
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"})
    EXPECT_EQ(line_of(seen, set), kNone) << set;
  if (::geteuid() == 0) {
    EXPECT_EQ(line_of(seen, "CapBnd"), kNone);
  }
  EXPECT_EQ(line_of(seen, "NoNewPrivs"), "1");
}

constexpr std::uint64_t set_of(std::initializer_list<int> capabilities) {
  std::uint64_t out = 0;
  for (const int capability : capabilities) out |= std::uint64_t{1} << capability;
  return out;
}
/// The sets of docs/security.md.
constexpr std::uint64_t kOfFiles =
    set_of({CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID,
            CAP_LINUX_IMMUTABLE, CAP_MKNOD, CAP_SETFCAP, CAP_SYS_ADMIN, CAP_SYS_RESOURCE});
constexpr std::uint64_t kRecorders =
    set_of({CAP_SETUID, CAP_SETGID, CAP_SYS_PTRACE, CAP_LEASE, CAP_SYS_NICE});

class RecordersRights : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("needs root");
    HEDDLE_STAGED(fs_record, "fs-record");
    ::chmod(dir_.path().c_str(), 0777);
    program_ = fs_record;
  }
  /// The statuses of the recorder's threads in a run of `argv`, as soon as `wanted` accepts them.
  Strings recorder_of(const Strings& argv, const std::function<bool(const Strings&)>& wanted) {
    auto recording = start_silently(argv[0], argv);
    Strings out;
    EXPECT_TRUE(wait_until(30s, [&] {
      const auto all = processes_below(std::to_string(recording.pid()), "fs-record:serve");
      out = all.empty() ? Strings{} : statuses_of(all[0]);
      return !out.empty() && wanted(out);
    }));
    ::kill(recording.pid(), SIGTERM);
    (void)recording.wait();
    return out;
  }
  TestDir dir_;
  std::string program_;
};

TEST_F(RecordersRights, roots_recorder_has_file_capabilities_and_acts_as_the_caller) {
  const std::string script = "import os\nwhile True:\n  try: os.stat('" + dir_.path() +
                             "/' + os.urandom(4).hex())\n  except OSError: pass";
  const auto threads =
      recorder_of({program_, "--quiet", "--out", dir_ / "trace", "--", "setpriv", "--reuid=1500",
                   "--regid=1500", "--clear-groups", "/usr/bin/python3", "-c", script},
                  [](const auto& all) {
                    return std::any_of(all.begin(), all.end(), [](const auto& status) {
                      // setpriv has capabilities until it executes the program.
                      return line_of(status, "Uid") == "0\t0\t0\t1500" &&
                             (mask_of(status, "CapEff") & kOfFiles) == 0;
                    });
                  });
  ASSERT_THAT(threads, Not(IsEmpty()));
  // Root may lack some of them on this machine.
  const auto all = (kOfFiles | kRecorders) & mask_of(statuses_of("self").at(0), "CapPrm");
  for (const auto& status : threads) {
    EXPECT_EQ(mask_of(status, "CapPrm"), all);
    EXPECT_EQ(mask_of(status, "CapBnd"), all);
    for (const char* set : {"CapInh", "CapAmb"}) EXPECT_EQ(line_of(status, set), kNone) << set;
    EXPECT_EQ(line_of(status, "NoNewPrivs"), "1");
    EXPECT_THAT(line_of(status, "Uid"), ::testing::StartsWith("0\t0\t0\t"));
  }
}

TEST_F(RecordersRights, users_recorder_has_the_users_rights) {
  const auto threads = recorder_of({HEDDLE_IN_WORLD, "--uid", "1500", "--", program_, "--quiet",
                                    "--out", dir_ / "trace", "--", "/bin/sleep", "600"},
                                   [](const auto& all) { return all.size() > 1; });
  ASSERT_THAT(threads, Not(IsEmpty()));
  for (const auto& status : threads) {
    for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"})
      EXPECT_EQ(line_of(status, set), kNone) << set;
    EXPECT_EQ(line_of(status, "Uid"), "1500\t1500\t1500\t1500");
  }
}

}  // namespace
}  // namespace heddle::test
