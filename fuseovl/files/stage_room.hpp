// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "fuseovl/files/stage_folder.hpp"

namespace heddle {

/// Room that one process has set aside in a StageFolder for copies it is about to make, so that
/// all that stage there at once keep to the budget together. The room is a file in `rooms/` that is
/// locked while its process lives, and is of that size (and has no blocks).
class StageRoom {
 public:
  /// `folder` must outlive it.
  StageRoom(const StageFolder& folder, std::uint64_t budget) : folder_(folder), budget_(budget) {}

  enum class Got : std::uint8_t {
    yes,
    later,  ///< others have set too much aside
    no,     ///< the copies in use leave too little
  };
  /// Room for one more copy; removes copies that nobody uses to make it. Failure: this side's.
  Result<Got> take(std::uint64_t size);
  /// The copy that the room was for is there.
  void used(std::uint64_t size);
  /// What is left is free for others.
  void release() { set(0); }

 private:
  void set(std::uint64_t size);

  const StageFolder& folder_;
  std::uint64_t budget_;
  std::uint64_t left_ = 0;
  Fd file_;
};

}  // namespace heddle
