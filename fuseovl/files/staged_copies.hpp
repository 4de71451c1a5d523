// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <tl/expected.hpp>
#include <vector>

#include "base/content_hash.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/files/read_at.hpp"
#include "fuseovl/files/stage_folder.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {

/// What makes a staged copy the one that was hashed.
struct CopyStamp {
  std::uint64_t ino = 0;
  std::int64_t mtime_ns = 0;
};

/// The copies in a StageFolder that a mount's files are read from. They are announced there, so
/// that nobody removes them to make room. Which are there is known to all processes forked from
/// the one that made this.
class StagedCopies {
 public:
  /// `hashes` by ObjectId; that of zeros: the object has no copy. Fails when they cannot be
  /// announced.
  static Result<std::unique_ptr<StagedCopies>> create(std::shared_ptr<const StageFolder> folder,
                                                      std::vector<ContentHash> hashes);

  const StageFolder& folder() const { return *folder_; }
  /// What a process that serves or supervises has to keep open.
  std::vector<int> descriptors() const;
  /// Whoever has this open protects the copies.
  const Fd& announcement() const { return announced_; }

  /// The object's copy was hashed, and is right.
  void publish(ObjectId object, const CopyStamp& copy);
  bool has(ObjectId object) const;
  std::optional<CopyStamp> stamp(ObjectId object) const;
  /// Reads from the object's copy, as read_at(). nullopt: there is none that can be read now. One
  /// that is not what was hashed any more is never asked again.
  std::optional<tl::expected<std::size_t, int>> read(ObjectId object, std::span<char> into,
                                                     off_t offset, MayBlock block);

 private:
  struct Slot {
    std::atomic<bool> ready;
    std::atomic<std::uint64_t> ino;  ///< written before `ready`
    std::atomic<std::int64_t> mtime_ns;
  };
  StagedCopies(std::shared_ptr<const StageFolder> folder, std::vector<ContentHash> hashes);
  Result<void> announce();

  std::shared_ptr<const StageFolder> folder_;
  std::vector<ContentHash> hashes_;
  Fd announced_;
  bool in_memory_;
  SharedArray<Slot> slots_;
};

}  // namespace heddle
