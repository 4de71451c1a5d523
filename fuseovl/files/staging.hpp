// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "fuseovl/files/origins.hpp"
#include "fuseovl/files/stage_directory.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {

inline constexpr std::uint64_t kDefaultStageBudget = std::uint64_t{4} << 30;

struct StageOptions {
  std::string directory;  ///< empty: nothing is staged
  std::uint64_t budget = kDefaultStageBudget;
};

/// A mount's files on the node's own storage (stage_directory.hpp). A process of its own makes the
/// copies, or finds and checks those that are there, while the mount is served already; workers
/// read from each copy as soon as it is whole, and from the origin where there is none. The copies
/// are claimed, so that no other process removes them to make room. What goes wrong costs the
/// copy and no more. All processes forked from the one that made this have its state in common.
class Staging {
 public:
  /// Fails when the directory cannot be written.
  static Result<std::unique_ptr<Staging>> create(StageDirectory directory, const Origins& origins,
                                                 std::uint64_t budget);

  const StageDirectory& directory() const { return directory_; }
  /// What a process that serves or supervises has to keep open.
  std::vector<int> descriptors() const;

  /// Forks the process that stages; a child of the caller, that ends with it or when all is done.
  /// It keeps only our descriptors and `origins` open. That it cannot start is said.
  void start(const Origins& origins, const std::vector<std::string>& paths);

  /// Whether the object has a copy that is right.
  bool has(ObjectId object) const { return slots_[object].ready.load(std::memory_order_acquire); }
  /// Reads from the object's copy, as read_at(). nullopt: there is none that can be read now. One
  /// that is not what was hashed any more is never asked again.
  std::optional<tl::expected<std::size_t, int>> read(ObjectId object, std::span<char> into,
                                                     off_t offset, MayBlock block);

  enum class State : std::uint8_t { running, done, incomplete };
  State state() const { return *state_; }
  /// What is staged now.
  std::uint64_t objects() const;
  std::uint64_t bytes() const;

 private:
  /// What makes a copy the one that was hashed.
  struct Slot {
    std::atomic<bool> ready;
    std::atomic<std::uint64_t> ino;  ///< written before `ready`
    std::atomic<std::int64_t> mtime_ns;
  };
  /// An object whose content is the map's, so that it can be staged.
  struct Candidate {
    ObjectId object = 0;
    StageDirectory::Item item;
  };
  enum class Step : std::uint8_t { ready, left_out, later, stop };

  Staging(StageDirectory directory, const Origins& origins, std::uint64_t budget);
  bool stage_all(const Origins& origins, const std::vector<std::string>& paths);
  Step stage(const Candidate& candidate, const Origin& origin, const std::string& path);
  Step copy(const Candidate& candidate, int source);
  void publish(ObjectId object, const FileStamp& stamp);
  void say_incomplete(const std::string& why) const;

  StageDirectory directory_;
  std::uint64_t budget_;
  bool in_memory_;
  std::vector<ContentHash> hashes_;    ///< by ObjectId; zeros: the object has no copy
  std::vector<Candidate> candidates_;  ///< smallest first
  Fd user_;                            ///< StageDirectory::join()
  SharedArray<Slot> slots_;            ///< by ObjectId
  Shared<std::atomic<State>> state_;
};

}  // namespace heddle
