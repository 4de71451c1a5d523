// SPDX-License-Identifier: MIT
#pragma once

#include "base/run_directory.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// `fs-mount --node` in the background.
class NodeService {
 public:
  NodeService(const std::string& program, const std::string& directory) : directory_(directory) {
    child_.emplace(start_silently(program, {"fs-mount", "--prefetch", "0", "--node", directory}));
    EXPECT_TRUE(wait_until(10s, [&] { return listens(); }));
  }
  ~NodeService() { (void)end(SIGTERM); }
  std::optional<int> end(int signal) {
    if (!child_) return std::nullopt;
    ::kill(child_->pid(), signal);
    auto status = value_or_throw(child_->wait_for(10s));
    child_.reset();
    return status;
  }
  int pid() const { return child_->pid(); }
  /// The directories of its mounts.
  Strings maps() const {
    Strings out;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator(directory_, gone))
      if (entry.is_directory(gone)) out.push_back(entry.path());
    return out;
  }

 private:
  /// Connects, for a killed service leaves its socket.
  bool listens() const {
    const auto directory = RunDirectory::find(directory_);
    return directory && directory->connect_to("socket");
  }
  std::string directory_;
  std::optional<Child> child_;
};

}  // namespace heddle::test
