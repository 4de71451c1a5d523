// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "record/trace/event.hpp"

namespace heddle {

/// Finds the path a program asked for. A FUSE file system is asked for the components that the
/// kernel walks, after each symlink for those of its target; the links that one thread's walk went
/// through lead back to the name at which it began. Any thread.
class Walks {
 public:
  Walks();
  /// Sees each event in its order. When the walk began at another name, `asked` becomes that name
  /// (with the event's path as its resolution) and true is returned.
  bool asked_path(const trace::Event& event, std::string& asked);

  /// `target` of the link at `link`, absolute, without `.` and `..`.
  static std::string destination(std::string_view link, std::string_view target);

 private:
  struct Step {
    std::string link;
    std::string target;
  };
  struct Walk {
    std::vector<Step> steps;
    std::string end;  ///< the path it led to; empty: it goes on
  };
  bool is_walking(std::int32_t tid) const;
  bool can_tell_;
  std::mutex mutex_;
  std::unordered_map<std::int32_t, Walk> walks_;
};

}  // namespace heddle
