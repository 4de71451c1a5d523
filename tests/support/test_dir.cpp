// SPDX-License-Identifier: MIT
#include "tests/support/test_dir.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/fd.hpp"
#include "base/temp_dir.hpp"

namespace heddle::test {

using namespace std::chrono_literals;

TestDir::TestDir() : path_(value_or_throw(TempDir::create("heddle-test")).release()) {}

TestDir::~TestDir() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  if (info && info->result()->Failed()) {
    // `dev` reports directories without this mark as leaked.
    const auto mark = open_file(path_ + "/.kept", O_WRONLY | O_CREAT);
    fmt::print(stderr, "kept: {}\nrepeat: ./dev test '{}.{}'\n", path_, info->test_suite_name(),
               info->name());
    return;
  }
  // What the case ended may still be leaving: a process that closes its files, a mount.
  Result<void> removed;
  wait_until(5s, [&] { return (removed = remove_tree(path_)).has_value(); });
  if (removed) return;
  if (info)
    ADD_FAILURE() << removed.error().message();
  else
    fmt::print(stderr, "{}\n", removed.error().message());
}

bool wait_until(std::chrono::milliseconds deadline, const std::function<bool()>& predicate) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!predicate()) {
    if (std::chrono::steady_clock::now() >= end) return predicate();
    ::poll(nullptr, 0, 5);
  }
  return true;
}

std::string staged_program(const std::string& name) {
  const char* stage = std::getenv("HEDDLE_STAGE");
  if (!stage || !*stage) return {};
  for (const char* directory : {"/bin/", "/libexec/heddle/", "/lib/heddle/"}) {
    const auto path = stage + std::string(directory) + name;
    if (::access(path.c_str(), R_OK) == 0) return path;
  }
  return {};
}

bool is_running(int pid) {
  // A process whose first thread has ended holds its files until the last one has.
  std::error_code gone;
  std::filesystem::directory_iterator thread(fmt::format("/proc/{}/task", pid), gone);
  for (; !gone && thread != std::filesystem::directory_iterator(); thread.increment(gone)) {
    const auto status = read_file(thread->path() / "status");
    const auto state = status ? status->find("\nState:\t") : std::string::npos;
    if (state != std::string::npos && (*status)[state + 8] != 'Z' && (*status)[state + 8] != 'X')
      return true;
  }
  return false;
}

std::size_t mounts_with(const std::string& text) {
  const auto mounts = value_or_throw(read_file("/proc/self/mountinfo"));
  std::size_t count = 0;
  std::istringstream lines(mounts);
  for (std::string line; std::getline(lines, line);) count += line.find(text) != line.npos;
  return count;
}

}  // namespace heddle::test
