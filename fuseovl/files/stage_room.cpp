// SPDX-License-Identifier: MIT
#include "fuseovl/files/stage_room.hpp"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>

namespace heddle {
namespace {

// So much is set aside at once: to look at a folder of thousands of copies for each file takes
// longer than most copies.
constexpr std::uint64_t kPiece = 64U << 20;

}  // namespace

Result<StageRoom::Got> StageRoom::take(std::uint64_t size) {
  if (size <= left_) return Got::yes;
  if (!file_) {
    auto file = folder_.make_room_file();
    if (!file) return fail(std::move(file.error()));
    file_ = std::move(*file);
  }
  const auto lock = folder_.lock_rooms();
  if (!lock) return fail(lock.error());
  set(0);
  const auto others = folder_.set_aside();
  for (const auto wanted : {std::max(size, std::min(kPiece, budget_ / 4)), size}) {
    if (!folder_.trim(budget_, others + wanted)) continue;
    set(wanted);
    return Got::yes;
  }
  return others > 0 && folder_.could_hold(budget_, size) ? Got::later : Got::no;
}

void StageRoom::used(std::uint64_t size) { set(left_ - std::min(left_, size)); }

void StageRoom::set(std::uint64_t size) {
  if (file_) (void)::ftruncate(file_.get(), static_cast<off_t>(size));
  left_ = size;
}

}  // namespace heddle
