// SPDX-License-Identifier: MIT
// What the trace holds against what strace sees of the same run: the opens, and the misses, each
// reduced to its first missing component, because that is all a file system is asked for.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <sstream>

#include "base/fd.hpp"
#include "tests/record/recorded.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

using trace::Op;
using Paths = std::vector<std::string>;

std::string real_path(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  std::string out = resolved ? resolved : "";
  ::free(resolved);
  return out;
}

/// The first component of `path` that is not there, in its resolved folder; empty: all are.
std::string first_missing(const std::string& path) {
  std::string folder = "/";
  std::istringstream parts(path.substr(1));
  for (std::string part; std::getline(parts, part, '/');) {
    if (part.empty()) continue;
    const std::string next = (folder == "/" ? "" : folder) + "/" + part;
    struct stat st {};
    if (::lstat(next.c_str(), &st) != 0) return next;
    folder = real_path(next);
    if (folder.empty()) {  // a link that leads nowhere
      char target[4096];
      const ssize_t n = ::readlink(next.c_str(), target, sizeof(target) - 1);
      const std::string to(target, n > 0 ? static_cast<std::size_t>(n) : 0);
      return to.starts_with('/') ? first_missing(to) : next;
    }
  }
  return {};
}

bool is_native(const std::string& path) {
  for (const char* folder : {"/proc", "/sys", "/dev", "/run", "/var/run"})
    if (path == folder || path.starts_with(std::string(folder) + "/")) return true;
  return false;
}

struct Straced {
  Paths opens, misses;
};

/// Lines of `strace -f -o`: `PID call(..., "path", ...) = result`.
Straced parse(const std::string& log, const std::string& cwd) {
  Straced out;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const auto call_at = line.find_first_not_of("0123456789 ");
    const auto quote = line.find('"');
    const auto result_at = line.rfind(" = ");
    if (call_at == std::string::npos || quote == std::string::npos ||
        result_at == std::string::npos)
      continue;
    const auto end = line.find('"', quote + 1);
    std::string path = line.substr(quote + 1, end - quote - 1);
    if (path.empty()) continue;
    if (path[0] != '/') {
      // `openat(3</folder>, "name"` with -y; AT_FDCWD is the folder it began in.
      const auto open = line.find('<'), close = line.find('>');
      const bool by_folder = open != std::string::npos && close < quote;
      path = (by_folder ? line.substr(open + 1, close - open - 1) : cwd) + "/" + path;
    }
    if (is_native(path)) continue;
    const bool opens = line.compare(call_at, 4, "open") == 0;
    const std::string result = line.substr(result_at + 3);
    if (result.starts_with("-1 ENOENT") || result.starts_with("-1 ENOTDIR")) {
      const auto miss = first_missing(path);
      if (!miss.empty()) out.misses.push_back(miss);
    } else if (opens && !result.starts_with("-1")) {
      out.opens.push_back(real_path(path));
    }
  }
  std::sort(out.opens.begin(), out.opens.end());
  std::sort(out.misses.begin(), out.misses.end());
  return out;
}

void expect_parity(const Paths& argv) {
  HEDDLE_STAGED(program, "fs-record");
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  TestDir dir;
  RunOptions options;
  options.cwd = dir.path();
  options.env = {"PYTHONDONTWRITEBYTECODE=1"};
  Paths straced{"strace", "-f", "-y", "-s", "4096", "-e", "trace=file", "-o", dir / "strace.log"};
  straced.insert(straced.end(), argv.begin(), argv.end());
  const auto traced = run(straced, options);
  const auto recorded = record(dir / "run.txt", argv, options);
  EXPECT_EQ(traced.out, recorded.out);
  const auto expected = parse(value_or_throw(read_file(dir / "strace.log")), dir.path());
  const auto seen = read_seen(dir / "run.txt");
  Paths opens = seen.places(Op::open);
  for (const auto op : {Op::opendir, Op::create}) {
    const auto more = seen.places(op);
    opens.insert(opens.end(), more.begin(), more.end());
  }
  std::sort(opens.begin(), opens.end());
  EXPECT_EQ(opens, expected.opens);
  EXPECT_EQ(seen.places(Op::lookup, ENOENT), expected.misses);
  EXPECT_GT(expected.opens.size(), 1U);
}

TEST(StraceParity, xz) { expect_parity({"xz", "--help"}); }
TEST(StraceParity, ls) { expect_parity({"ls", "-l", "/usr", "/no/such/place/at/all"}); }
TEST(StraceParity, python_and_numpy) { expect_parity({"/usr/bin/python3", "-c", "import numpy"}); }
TEST(StraceParity, a_shell_and_its_children) {
  expect_parity(
      {"sh", "-c",
       "cat /etc/passwd /no/file >/dev/null 2>&1; /usr/bin/env true; grep -c root /etc/group"});
}

}  // namespace
}  // namespace heddle::test
