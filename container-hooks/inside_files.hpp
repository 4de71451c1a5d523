// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

/// A container's files, as its process `pid` sees them. Nothing of them is believed: no link
/// leads out of its root.
class InsideFiles {
 public:
  /// `rootfs`: its root, which has not become that of `pid` yet.
  static Result<InsideFiles> open(pid_t pid, const std::string& rootfs);

  bool is_from_host(const std::string& path) const;
  /// What the kernel starts for `program`: that, or the interpreter that it names behind #!.
  std::string started_by(const std::string& program) const;
  /// Shared objects in folders below `folder`, each file once.
  std::vector<std::string> plugins(const std::string& folder) const;

 private:
  explicit InsideFiles(Fd root) : root_(std::move(root)) {}
  bool stat(const std::string& path, struct stat& status) const;
  std::vector<std::string> names_in(const std::string& folder) const;
  bool is_view(const std::string& root, const std::string& name) const;
  void walk(const std::string& folder, int depth, std::map<ino_t, std::string>& found) const;

  Fd root_;
  std::set<std::string> devices_;  ///< of our mounts
};

}  // namespace heddle
