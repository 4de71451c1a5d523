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

/// A mount's staged copies (stage_directory.hpp). The staging process makes or verifies them while
/// the mount is served; workers read from each copy once it is whole, else from the origin. A
/// failure costs the copy only. Its state is shared by forked processes.
class Staging {
 public:
  /// Fails when the directory cannot be written.
  static Result<std::unique_ptr<Staging>> create(StageDirectory directory, const Origins& origins,
                                                 std::uint64_t budget);

  const StageDirectory& directory() const { return directory_; }
  /// Those that workers and supervisor keep open.
  std::vector<int> descriptors() const;

  /// Forks the staging process, a child that ends with the caller or when all is done. It keeps
  /// only these descriptors and those of `origins`. A failure is reported.
  void start(const Origins& origins, const std::vector<std::string>& paths);

  /// Whether the object has a verified copy.
  bool has(ObjectId object) const { return slots_[object].ready.load(std::memory_order_acquire); }
  /// Reads from the object's copy, as read_at(). nullopt: it has none, or it cannot be read now. A
  /// copy that has changed is not used again.
  std::optional<tl::expected<std::size_t, int>> read(ObjectId object, std::span<char> into,
                                                     off_t offset, MayBlock block);

  enum class State : std::uint8_t { running, done, incomplete };
  State state() const { return *state_; }
  std::uint64_t objects() const;  ///< staged now
  std::uint64_t bytes() const;

 private:
  /// Identifies the copy that was hashed.
  struct Slot {
    std::atomic<bool> ready;
    std::atomic<std::uint64_t> ino;  ///< written before `ready`
    std::atomic<std::int64_t> mtime_ns;
  };
  /// An object that can be staged: its content is the map's.
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
