// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

// Files of others are opened and checked in one child process. A thread that waits for a file
// system that does not answer cannot be killed, nor can its process, so the child is abandoned
// then. Any file system may hang, except a local root file system. Names alone do not tell which
// one a file is on, since links and mounts can change at any time. openat2(2) with RESOLVE_CACHED
// and RESOLVE_NO_XDEV does: it fails rather than ask a server or cross a mount.

/// The root file system, if it is local: opening its files waits for no file server. Reading may
/// wait for who writes to the same file.
class LocalRoot {
 public:
  LocalRoot();
  /// Opens `path` (absolute) if the kernel has all of its names in its caches and none leads to
  /// another mount; else, and before Linux 5.12, no descriptor. `resolve`: more of openat2's flags.
  Fd open(const std::string& path, int flags, std::uint64_t resolve = 0) const;

 private:
  bool is_local_ = false;
};

/// The connection of a thread of the child with the parent.
struct WorkPlace {
  std::function<void()> moves_on;  ///< restarts the time limit of a long piece
  std::function<void(Fd)> give;    ///< sends the parent an open file
};

struct FileWork {
  /// For one answer of a file system; 0: none.
  std::chrono::milliseconds limit;
  /// Does one piece, in any thread of the child, whose directory is `/`. Results go to shared
  /// memory (session/shared.hpp), to be read if the piece is done.
  std::function<void(std::size_t, WorkPlace&)> work;
  /// The absolute path of a piece's file; empty: unknown.
  std::function<std::string_view(std::size_t)> path_of;
  /// Does one piece in the caller, in any thread, if that cannot wait for others; false: the child
  /// does it. Its threads may still be ending on return: a user namespace cannot be entered at
  /// once.
  std::function<bool(std::size_t, WorkPlace&)> try_in_caller = {};
  /// Descriptors that the child keeps.
  std::vector<int> kept = {};
};

struct WorkResult {
  enum class State : std::uint8_t {
    not_begun,  ///< its file system did not answer for another piece
    late,       ///< begun, but not ended
    done,
  };
  State state = State::not_begun;
  Fd file;  ///< from WorkPlace::give; may be lost where the user has too many in flight
};

/// Does `count` pieces of work, most in a child: in at least one thread for each mount that
/// path_of() is on, and in more where it is slow. Ends when each piece is done or on a mount that
/// has not answered for the limit.
std::vector<WorkResult> work_on_files(std::size_t count, const FileWork& work);

}  // namespace heddle
