// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "container-hooks/decision.hpp"

namespace heddle {

/// Copies in memory of files that a container's programs cannot start without: ld.so, its cache,
/// the glibc family. They stay when the daemon of the mount that they come from is killed, and go
/// with the last mount of them.
class KeptFiles {
 public:
  /// Of the files `wanted` below the mount's root `overlay`, for a moment mounted over its folder
  /// .heddle: only what stands in a mount namespace can be bound (before Linux 6.15). Read from
  /// their origins where these are to be seen and are what is served.
  static Result<KeptFiles> copy(const Fd& overlay, const std::vector<KeptFile>& wanted);
  KeptFiles(KeptFiles&&) = default;
  ~KeptFiles();

  /// A detached mount of the copy of `name`; an invalid descriptor when it is none of them.
  Result<Fd> mount(const std::string& name) const;

 private:
  explicit KeptFiles(Fd memory) : memory_(std::move(memory)) {}
  Fd memory_;
  std::map<std::string, std::string> files_;  ///< name -> file in memory_
};

}  // namespace heddle
