// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fuseovl/files/object_files.hpp"
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
  /// map_folder() of the maps that the mount point showed before, the latest first.
  std::vector<std::string> previous_maps;
  std::string start_time;  ///< of the mount, UTC
};

/// The JSON text of `.heddle/stats`. The kernel keeps one size and one set of pages for an inode,
/// whoever reads it, and does not tell us of opens (Overlay::open): a document that changed under
/// its readers would be of two moments for them, or cut. So each that finds the name gets a page,
/// with a number, of its own, which stays what it is whoever answers. Thread-safe.
class StatsPage {
 public:
  StatsPage(StatsFacts facts, ServingState& state, const ObjectFiles& files);

  /// Makes a page of now; its number.
  InodeNumber add();
  /// nullopt: there is none any more. Of those that the kernel has not forgotten only the latest
  /// StatsSlots::kSlots are kept, and large ones not longer than this process.
  std::optional<StatsText> find(InodeNumber number) const;
  /// Nobody can ask for it any more.
  void forget(InodeNumber number);
  static bool is_page(InodeNumber number) { return number >= StatsSlots::kFirst; }

  /// The text of now. Takes no lock: it may be asked for by one thread while another forks a
  /// process that asks as well.
  std::string render() const;

 private:
  StatsFacts facts_;
  ServingState& state_;
  const ObjectFiles& files_;
  mutable std::mutex mutex_;
  std::map<InodeNumber, StatsText> large_;  ///< those without room in the slots
};

}  // namespace heddle
