// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/run_directory.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// `fs-mount --node` in the background.
class NodeService {
 public:
  NodeService(const std::string& program, const std::string& directory) : directory_(directory) {
    const auto null = value_or_throw(open_file("/dev/null", O_RDWR));
    child_.emplace(value_or_throw(spawn(
        program, {"fs-mount", "--prefetch", "0", "--node", directory},
        {{{null.get(), STDIN_FILENO}, {null.get(), STDOUT_FILENO}, {null.get(), STDERR_FILENO}}})));
    EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] { return listens(); }));
  }
  ~NodeService() { (void)end(SIGTERM); }
  std::optional<int> end(int signal) {
    if (!child_) return std::nullopt;
    ::kill(child_->pid(), signal);
    auto status = value_or_throw(child_->wait_for(std::chrono::seconds(10)));
    child_.reset();
    return status;
  }
  int pid() const { return child_->pid(); }
  /// Names of its mounts.
  std::vector<std::string> maps() const {
    std::vector<std::string> out;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator(directory_, gone))
      if (entry.is_directory(gone)) out.push_back(entry.path());
    return out;
  }

 private:
  /// A socket of one that was killed is still there.
  bool listens() const {
    const auto directory = RunDirectory::find(directory_);
    return directory && directory->connect_to("socket");
  }
  std::string directory_;
  std::optional<Child> child_;
};

}  // namespace heddle::test
