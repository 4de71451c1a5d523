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

/// The first quoted string of `line`, with strace's escapes.
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
  std::size_t start = 0;  ///< index + 1 into the starts; 0 before an exec
  bool in_main = false;
};

class Log {
 public:
  std::vector<ProgramStart> take() { return std::move(starts_); }

  void call(int pid, const std::string& text) {
    const auto equals = text.rfind(" = ");
    if (equals == std::string::npos) return;
    const auto result = text.substr(equals + 3);
    Traced& process = processes_[pid];
    const bool ok = !result.starts_with("-1 ") && !result.starts_with("?");
    if (text.starts_with("execve")) {
      if (!ok) return;
      starts_.push_back({first_string(text), pid, {}, {}, {}});
      process = {starts_.size(), false};
      return;
    }
    // Threads and forks are no starts.
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

 private:
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
  for (const auto& [pid, text] : strace_calls(value_or_throw(read_file(log))))
    parsed.call(pid, text);
  result.starts = parsed.take();
  return result;
}

std::vector<std::pair<int, std::string>> strace_calls(const std::string& log) {
  std::vector<std::pair<int, std::string>> calls;
  std::map<int, std::string> unfinished;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::size_t used = 0;
    if (line.empty() || line[0] < '0' || line[0] > '9') continue;
    const int pid = std::stoi(line, &used);
    std::string text = line.substr(line.find_first_not_of(' ', used));
    if (constexpr std::string_view kEnd = " <unfinished ...>"; text.ends_with(kEnd)) {
      unfinished[pid] = text.substr(0, text.size() - kEnd.size());
      continue;
    }
    if (text.starts_with("<... ")) {
      const auto resumed = text.find(" resumed>");
      if (resumed == std::string::npos) continue;
      text = unfinished[pid] + text.substr(resumed + 9);
    }
    calls.emplace_back(pid, std::move(text));
  }
  return calls;
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
