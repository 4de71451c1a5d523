// SPDX-License-Identifier: MIT
#pragma once

#include <ctime>
#include <memory>
#include <mutex>
#include <string>

#include "fuseovl/files/object_files.hpp"
#include "fuseovl/overlay/retired_files.hpp"
#include "fuseovl/overlay/serving_state.hpp"

namespace heddle {

/// What `.heddle/stats` says that does not change while the mount stands.
struct StatsFacts {
  std::string map_path;
  std::string map_id;
  std::string mount_point;
  std::size_t views = 0;
  std::size_t names = 0;
  std::uint64_t index_bytes = 0;
  std::string start_time;        ///< of the mount, UTC
  std::uint64_t generation = 0;  ///< how often another map took the place of the one before
};

/// The JSON text of `.heddle/stats`. All numbers have one width, so its size stays the same while
/// they grow: a reader between two states sees a whole document of one of them. Thread-safe.
class StatsPage {
 public:
  StatsPage(StatsFacts facts, const ServingState& state, const ObjectFiles& files,
            const RetiredFiles& retired);

  struct Snapshot {
    std::string text;
    timespec made{};
  };
  /// The page as it is now; reads go on with it until the next refresh().
  std::shared_ptr<const Snapshot> refresh();
  std::shared_ptr<const Snapshot> current() const;
  /// The same text, apart from what refresh() and current() have. Takes no lock: it may be asked
  /// for by one thread while another forks a process that asks as well.
  std::string render() const;

 private:
  StatsFacts facts_;
  const ServingState& state_;
  const ObjectFiles& files_;
  const RetiredFiles& retired_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Snapshot> current_;
};

}  // namespace heddle
