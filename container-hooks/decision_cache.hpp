// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/fd.hpp"
#include "container-hooks/decision.hpp"

namespace heddle {

/// Which image, for which program.
struct ImageQuestion {
  std::string rootfs;   ///< on the host
  std::string program;  ///< absolute, in the image
  std::string mount_point;
  std::string mpi = "auto";  ///< as fs-resolve takes it
  std::string library_path;  ///< LD_LIBRARY_PATH that the container runs with
  int asker = -1;            ///< the pipe of who asks: when he has gone, fs-resolve is stopped
};

struct Decided {
  Decision decision;
  std::string text;         ///< the decision as JSON
  std::string map;          ///< empty without a swap
  bool from_cache = false;  ///< host files may have changed since: fs-mount says so
};

/// Decisions kept in a folder, each with its map: one for each content of an image, so that its
/// containers share it, whichever rootfs they have. The folder is the caller's alone: what lies in
/// it is mounted into containers.
class DecisionCache {
 public:
  /// Makes the folder; refuses one that others may write to.
  static Result<DecisionCache> open(const std::string& folder);

  /// From the cache, or by fs-resolve. `fresh` decides anew in any case. Fails when fs-resolve
  /// fails; an incompatible pair is no failure here.
  Result<Decided> decide(const ImageQuestion& question, bool fresh) const;
  const std::string& folder() const { return folder_; }

 private:
  explicit DecisionCache(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
};

}  // namespace heddle
