// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <unordered_map>

#include "base/result.hpp"

namespace heddle::compat {

/// Which package a file of a Debian system is of, read from dpkg's database when first asked.
class PackageIndex {
 public:
  /// `root` empty: this node's.
  explicit PackageIndex(std::string root) : root_(std::move(root)) {}
  /// "libc6 2.36-9+deb12u14"; empty: no package has it, or there is no database.
  std::string owner(const std::string& path);

 private:
  Result<std::string> read(const std::string& path) const;
  std::string search(const std::string& path) const;
  std::string version(const std::string& package) const;

  std::string root_;
  std::unordered_map<std::string, std::string> known_;
};

}  // namespace heddle::compat
