// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "fuseovl/files/stage_room.hpp"
#include "fuseovl/files/staged_copies.hpp"

namespace heddle {

inline constexpr std::uint64_t kDefaultStageBudget = std::uint64_t{4} << 30;

struct StageOptions {
  std::string directory;  ///< empty: nothing is staged
  std::uint64_t budget = kDefaultStageBudget;
};

/// Has a mount's files copied to the node's own storage (stage_folder.hpp). A process of its own
/// makes the copies, or finds and checks those that are there, while the mount is served already;
/// those who serve read from each copy as soon as it is whole, and from the origin where there is
/// none. What goes wrong here costs the copy and no more.
class Staging {
 public:
  /// `copies` must outlive it; what they have already is not hashed again.
  Staging(StagedCopies& copies, const Origins& origins, std::uint64_t budget);

  /// Forks the process that stages; a child of the caller, that ends with it or when all is done.
  /// It keeps only our descriptors and `origins` open. nullopt: all is done, or it failed, which is
  /// said.
  std::optional<pid_t> start(const Origins& origins, const std::vector<std::string>& paths);

  enum class State : std::uint8_t { running, done, incomplete };
  State state() const { return *state_; }
  /// What is staged now.
  std::uint64_t objects() const;
  std::uint64_t bytes() const;

 private:
  /// What can be staged: an object whose content is the map's.
  struct Item {
    ObjectId object = 0;
    std::uint64_t size = 0;
    ContentHash hash;
  };
  enum class Step : std::uint8_t { ready, left_out, later, no_room_yet, stop };

  const StageFolder& folder() const { return copies_.folder(); }
  [[noreturn]] void live(const Origins& origins, const std::vector<std::string>& paths);
  bool stage_all(const Origins& origins, const std::vector<std::string>& paths);
  Step stage(const Item& item, const Origin& origin, const std::string& path, StageRoom& room);
  Step copy(const Item& item, int source, StageRoom& room);
  void publish(const Item& item, const FileStamp& stamp);

  StagedCopies& copies_;
  std::uint64_t budget_;
  std::vector<Item> items_;  ///< smallest first
  Shared<std::atomic<State>> state_;
};

}  // namespace heddle
