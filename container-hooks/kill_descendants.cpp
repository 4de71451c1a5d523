// SPDX-License-Identifier: MIT
#include "container-hooks/kill_descendants.hpp"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include "base/fd.hpp"

namespace heddle {
namespace {

/// A process as /proc tells it. That may be the host's, where we are in a container's pid namespace
/// (createContainer): numbers differ.
struct Process {
  int parent = 0;            ///< by /proc's numbers, as the key it stands under
  std::vector<int> numbers;  ///< in /proc's namespace first, in its own last
  char state = '?';
  std::string name;
};

std::optional<Process> read_process(const std::string& folder) {
  const auto text = read_file("/proc/" + folder + "/status", 1U << 16);
  if (!text) return std::nullopt;
  Process out;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(":\t");
    if (colon == line.npos) continue;
    const auto key = line.substr(0, colon);
    std::istringstream value(line.substr(colon + 2));
    if (key == "Name") std::getline(value, out.name);
    if (key == "State") value >> out.state;
    if (key == "PPid") value >> out.parent;
    if (key == "NSpid")
      for (int number; value >> number;) out.numbers.push_back(number);
  }
  if (out.numbers.empty()) return std::nullopt;
  return out;
}

std::map<int, Process> all_processes() {
  std::map<int, Process> out;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir("/proc"), &::closedir);
  while (const dirent* entry = list ? ::readdir(list.get()) : nullptr) {
    const std::string folder = entry->d_name;
    if (folder.find_first_not_of("0123456789") != folder.npos) continue;
    if (auto process = read_process(folder)) out.emplace(process->numbers[0], std::move(*process));
  }
  return out;
}

bool is_alive(const Process& process) { return process.state != 'Z' && process.state != 'X'; }

std::vector<Process> living_descendants() {
  const auto self = read_process("self");
  if (!self) return {};
  const auto depth = self->numbers.size();
  const auto all = all_processes();
  std::set<int> family{self->numbers[0]};
  // A child may have a lower number than its parent: until a pass finds nobody.
  for (std::size_t before = 0; before != family.size();) {
    before = family.size();
    for (const auto& [number, process] : all)
      if (family.contains(process.parent)) family.insert(number);
  }
  family.erase(self->numbers[0]);
  std::vector<Process> out;
  for (const int number : family)
    if (const auto& process = all.at(number); is_alive(process) && process.numbers.size() >= depth)
      out.push_back(process);
  for (auto& process : out)
    process.numbers.erase(process.numbers.begin(),
                          process.numbers.begin() + static_cast<std::ptrdiff_t>(depth) - 1);
  return out;
}

}  // namespace

void adopt_orphans() { (void)::prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<std::string> kill_descendants(std::chrono::milliseconds limit, pid_t spared) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    auto living = living_descendants();
    std::erase_if(living, [&](const Process& process) { return process.numbers[0] == spared; });
    for (const auto& process : living) (void)::kill(process.numbers[0], SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (living.empty()) return {};
    if (std::chrono::steady_clock::now() >= end) {
      std::vector<std::string> names;
      for (const auto& process : living) names.push_back(process.name);
      return names;
    }
    ::poll(nullptr, 0, 5);
  }
}

}  // namespace heddle
