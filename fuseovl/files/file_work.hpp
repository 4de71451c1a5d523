// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

// Files of others are opened and checked in one child process: a thread that waits for a file
// system that does not answer can be ended by nobody, and its process neither, so the child is
// abandoned. Nothing else asks a file system that may be remote, and nothing has to know beforehand
// which one is.

/// What the child's threads tell the parent about the piece they are at.
struct WorkPlace {
  std::function<void()> moves_on;  ///< a long piece has come further: its time begins anew
  std::function<void(Fd)> give;    ///< hands the parent an open file
};

struct FileWork {
  /// How long to wait for one answer of a file system; 0: for ever.
  std::chrono::milliseconds limit;
  /// Does one piece, in the child, in any of its threads; its directory is `/`. What it finds it
  /// writes to shared memory (session/shared.hpp), to be read for what is done.
  std::function<void(std::size_t, WorkPlace&)> work;
  /// The absolute path of a piece's file; empty: not known.
  std::function<std::string_view(std::size_t)> path_of;
  /// Descriptors that the child keeps.
  std::vector<int> kept = {};
};

struct WorkResult {
  enum class State : std::uint8_t {
    not_begun,  ///< its file system did not answer for another piece
    late,       ///< begun, and it has not come back
    done,
  };
  State state = State::not_begun;
  Fd file;  ///< what it gave; descriptors may be lost where the user has too many on their way
};

/// Does `count` pieces of work in a child, each file system's in threads of its own: many where its
/// answers are slow, at least one. Ends when all are done or belong to a file system (by the mount
/// that path_of() lies on) of which nothing has come back for the limit. A child that is killed
/// leaves pieces that are not done.
std::vector<WorkResult> work_on_files(std::size_t count, const FileWork& work);

}  // namespace heddle
