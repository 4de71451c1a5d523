// SPDX-License-Identifier: MIT
#include "tests/support/strace.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include "base/fd.hpp"
#include "base/temp_dir.hpp"
#include "tests/support/fuse_kernel.hpp"

namespace heddle::test {
namespace {

bool is_library_name(const std::string& path) {
  const auto name = path.substr(path.rfind('/') + 1);
  return name.ends_with(".so") || name.find(".so.") != std::string::npos;
}

/// The first quoted string of `line`, strace's escapes kept.
std::string first_string(const std::string& line) {
  const auto begin = line.find('"');
  if (begin == std::string::npos) return {};
  auto end = begin + 1;
  while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
  return line.substr(begin + 1, std::min(end, line.size()) - begin - 1);
}

bool is_open(const std::string& call) { return call.starts_with("open"); }

/// The state of one traced process.
struct Traced {
  std::string unfinished;
  std::size_t start = 0;  ///< index + 1 into the starts, 0: it has not exec'ed
  bool in_main = false;
};

class Log {
 public:
  std::vector<ProgramStart> take() { return std::move(starts_); }

  void line(const std::string& text) {
    std::size_t used = 0;
    const int pid = std::stoi(text, &used);
    std::string rest = text.substr(text.find_first_not_of(' ', used));
    Traced& process = processes_[pid];
    if (rest.ends_with(" <unfinished ...>")) {
      process.unfinished = rest.substr(0, rest.size() - 17);
      return;
    }
    if (rest.starts_with("<... ")) {
      const auto resumed = rest.find(" resumed>");
      if (resumed == std::string::npos) return;
      rest = process.unfinished + rest.substr(resumed + 9);
    }
    const auto result = rest.rfind(") = ");
    const auto spaced = rest.rfind(" = ");
    if (result == std::string::npos && spaced == std::string::npos) return;
    call(pid, process, rest, rest.substr(spaced + 3));
  }

 private:
  void call(int pid, Traced& process, const std::string& text, const std::string& result) {
    const bool ok = !result.starts_with("-1 ") && !result.starts_with("?");
    if (text.starts_with("execve")) {
      if (!ok) return;
      starts_.push_back({first_string(text), pid, {}, {}, {}});
      process = {{}, starts_.size(), false};
      return;
    }
    // A thread or a fork carries on where its parent was; only execs are starts.
    if (process.start == 0) return;
    if (text.starts_with("prlimit64(") && text.find("RLIMIT_STACK") != std::string::npos) {
      process.in_main = true;
      return;
    }
    const auto path = first_string(text);
    if (path.empty() || path == "/etc/ld.so.preload" || text.starts_with("prlimit64(")) return;
    ProgramStart& start = starts_[process.start - 1];
    if (!ok && !process.in_main) start.failed.push_back(text);
    if (!ok && process.in_main && is_library_name(path)) start.failed_later.push_back(text);
    if (ok && !process.in_main && is_open(text) && is_library_name(path))
      start.opened.push_back(path);
  }

  std::map<int, Traced> processes_;
  std::vector<ProgramStart> starts_;
};

}  // namespace

StraceResult strace_counts(const std::vector<std::string>& argv, const RunOptions& options) {
  const auto directory = value_or_throw(TempDir::create("heddle-strace"));
  const auto log = directory.path() + "/log";
  constexpr const char* kCalls =
      "trace=?open,?openat,?openat2,?stat,?lstat,?newfstatat,?statx,?access,?faccessat,"
      "?faccessat2,?readlink,?readlinkat,?execve,?execveat,prlimit64";
  std::vector<std::string> traced = {"strace", "-f", "-qq", "-s", "4096", "-o", log};
  traced.insert(traced.end(), {"-e", "signal=none", "-e", kCalls, "--"});
  traced.insert(traced.end(), argv.begin(), argv.end());
  StraceResult result;
  result.run = run(traced, options);
  Log parsed;
  std::istringstream lines(value_or_throw(read_file(log)));
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] >= '0' && line[0] <= '9') parsed.line(line);
  result.starts = parsed.take();
  return result;
}

bool strace_leaves_daemons() {
  return kernel_has(SYS_open_tree) ||
         value_or_throw(read_file("/proc/self/status")).find("\nSeccomp:\t0\n") !=
             std::string::npos;
}

bool strace_works() {
  try {
    return strace_counts({"true"}).starts.size() == 1;
  } catch (const Error&) {
    return false;
  }
}

const ProgramStart& StraceResult::start_of(const std::string& suffix) const {
  const auto found = std::find_if(starts.rbegin(), starts.rend(), [&](const ProgramStart& start) {
    return start.program.ends_with(suffix);
  });
  if (found == starts.rend()) throw Error(suffix, "was not started", run.err);
  return *found;
}

}  // namespace heddle::test
