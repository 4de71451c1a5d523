// SPDX-License-Identifier: MIT
//
// The systemd units: what a compromised program can do, and that the program works with the allowed
// system calls.
#include <seccomp.h>
#include <sys/prctl.h>

#include <set>

#include "base/sandbox/sanitized.hpp"
#include "tests/compat/compat_server.hpp"

namespace heddle::test {
namespace {

std::string unit(const std::string& name) {
  const auto stage = std::string(std::getenv("HEDDLE_STAGE"));
  return stage + "/share/heddle/" + name + ".service";
}

class ServiceUnit : public CompatServer {
 protected:
  void SetUp() override {
    if (run({"/bin/sh", "-c", "command -v systemd-analyze"}).status != 0)
      HEDDLE_SKIP("systemd-analyze is not installed");
    CompatServer::SetUp();
  }
  /// Adds the system calls of a word of SystemCallFilter=.
  static void expand(const std::string& word, std::set<std::string>& out) {
    if (!word.starts_with('@')) {
      out.insert(word);
      return;
    }
    std::istringstream lines(
        run_checked({"systemd-analyze", "--no-pager", "syscall-filter", word}).out);
    std::string name;
    std::getline(lines, name);  // the group's own
    for (std::string line; std::getline(lines, line);)
      if (const auto from = line.find_first_not_of(' '); from != line.npos && line[from] != '#')
        expand(line.substr(from), out);
  }
  /// The calls that the unit at `path` allows; a line that begins with ~ removes calls.
  static std::set<std::string> allowed_calls(const std::string& path) {
    std::set<std::string> out;
    expand("@default", out);
    std::istringstream lines(read_file(path).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("SystemCallFilter=")) continue;
      line.erase(0, line.find('=') + 1);
      const bool removed = line.starts_with('~');
      std::istringstream words(removed ? line.substr(1) : line);
      std::set<std::string> these;
      for (std::string word; words >> word;) expand(word, these);
      for (const auto& one : these)
        removed ? static_cast<void>(out.erase(one)) : static_cast<void>(out.insert(one));
    }
    return out;
  }
};

TEST_F(ServiceUnit, exposure_stays_low) {
  for (const auto& [name, most] : std::vector<std::pair<std::string, std::string>>{
           {"heddle-compat-server", "20"}, {"heddle-node", "50"}}) {
    const auto report = run({"systemd-analyze", "--no-pager", "security", "--offline=true",
                             "--threshold=" + most, unit(name)});
    EXPECT_EQ(report.status, 0) << name << report.out.substr(report.out.rfind("Overall"));
    EXPECT_EQ(report.err.find("Unknown"), report.err.npos) << report.err;
  }
}

TEST_F(ServiceUnit, allows_all_system_calls_of_compat_server) {
  if (kSanitized) HEDDLE_SKIP("a sanitizer's runtime makes calls of its own");
  const auto calls = allowed_calls(unit("heddle-compat-server"));
  ASSERT_GT(calls.size(), 100U);
  EXPECT_FALSE(calls.contains("mount"));
  EXPECT_FALSE(calls.contains("ptrace"));
  EXPECT_FALSE(calls.contains("setuid"));
  const std::unique_ptr<void, decltype(&::seccomp_release)> filter(
      ::seccomp_init(SCMP_ACT_ERRNO(EPERM)), &::seccomp_release);
  for (const auto& name : calls) {
    const int number = ::seccomp_syscall_resolve_name(name.c_str());
    if (number < 0) continue;
    ASSERT_EQ(::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, number, 0), 0) << name;
  }
  run_checked({"mkdir", "-m", "777", dir_ / "index"});
  ::chmod(token_.c_str(), 0644);
  const auto log = dir_ / "log";
  const Fd out = value_or_throw(open_file(log, O_WRONLY | O_CREAT | O_TRUNC));
  const std::vector<std::string> argv = {program_,       "--listen",     "127.0.0.1:0",
                                         "--rootfs",     root_,          "--index",
                                         dir_ / "index", "--token-file", token_};
  const auto raw = to_c_array(argv);
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::dup2(out.get(), 2);
    // As the unit's dynamic user.
    const bool ready = (::geteuid() != 0 || ::setresuid(65534, 65534, 65534) == 0) &&
                       ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                       ::seccomp_load(filter.get()) == 0;
    if (ready) ::execv(raw[0], raw.data());
    ::_exit(127);
  }
  server_.emplace(pid);
  wait_for_address(log);
  EXPECT_TRUE(is_compatible(good_));
  EXPECT_FALSE(is_compatible(bad_));
  EXPECT_EQ(end(), 0);
}

}  // namespace
}  // namespace heddle::test
