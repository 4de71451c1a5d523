// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// What a hook is at, in memory that its processes share: the one that waits for the others
/// (watched_work.hpp) names it when their time is over. Without such memory the notes go nowhere.
class HookProgress {
 public:
  /// From here on, in this process and those it forks, until it is destroyed.
  static Result<HookProgress> share();
  HookProgress(HookProgress&& other) noexcept;
  HookProgress& operator=(HookProgress&&) = delete;
  ~HookProgress();

  /// The last note_step(): "reading /usr/lib/libmpi.so.12".
  std::string step() const;

 private:
  struct Page;
  explicit HookProgress(Page* page) : page_(page) {}
  friend void note_step(std::string_view doing, std::string_view what);
  friend void note_placed(bool placed);
  friend pid_t placed_by();
  static Page* current_;
  Page* page_;
};

/// Before each thing that may wait for others: a file that lies on a server, a program.
void note_step(std::string_view doing, std::string_view what);
/// Whether something of this process's stands in the container.
void note_placed(bool placed);
/// The process whose note_placed(true) was the last, and which takes away what stands there when
/// nobody leads it any more; 0: nothing stands there.
pid_t placed_by();

}  // namespace heddle
