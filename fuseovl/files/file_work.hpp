// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "fuseovl/files/bounded_work.hpp"

namespace heddle {

struct FileWork {
  /// As do_within()'s.
  std::chrono::milliseconds limit;
  Work work;
  /// Where a piece's file lies; empty: with the others of which that is not known.
  std::function<std::string_view(std::size_t)> path_of;
  Threads threads = Threads::as_needed;
  std::vector<int> kept = {};
  /// Go on with files of other file systems when one does not answer.
  bool with_others = true;
};

/// do_within() of `count` pieces that read a file each, until all are done or lie on a file system
/// that has not answered for `limit`, which is waited for once: the piece that waited is `late`,
/// those that would wait as well are `not_begun`.
std::vector<WorkResult> work_on_files(std::size_t count, const FileWork& files);

}  // namespace heddle
