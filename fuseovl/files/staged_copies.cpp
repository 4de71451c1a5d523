// SPDX-License-Identifier: MIT
#include "fuseovl/files/staged_copies.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/log.hpp"

namespace heddle {

StagedCopies::StagedCopies(std::shared_ptr<const StageFolder> folder,
                           std::vector<ContentHash> hashes)
    : folder_(std::move(folder)),
      hashes_(std::move(hashes)),
      in_memory_(is_in_memory(folder_->objects())),
      slots_(hashes_.size()) {}

Result<std::unique_ptr<StagedCopies>> StagedCopies::create(
    std::shared_ptr<const StageFolder> folder, std::vector<ContentHash> hashes) {
  std::unique_ptr<StagedCopies> out(new StagedCopies(std::move(folder), std::move(hashes)));
  if (auto done = out->announce(); !done) return fail(std::move(done.error()));
  return out;
}

Result<void> StagedCopies::announce() {
  auto hashes = hashes_;
  std::erase(hashes, ContentHash());
  auto announced = folder_->announce(hashes);
  if (!announced) return fail(std::move(announced.error()));
  announced_ = std::move(*announced);
  return {};
}

std::vector<int> StagedCopies::descriptors() const {
  auto out = folder_->descriptors();
  out.push_back(announced_.get());
  return out;
}

void StagedCopies::publish(ObjectId object, const CopyStamp& copy) {
  Slot& slot = slots_[object];
  slot.ino = copy.ino;
  slot.mtime_ns = copy.mtime_ns;
  slot.ready.store(true, std::memory_order_release);
}

bool StagedCopies::has(ObjectId object) const {
  return slots_[object].ready.load(std::memory_order_acquire);
}

std::optional<CopyStamp> StagedCopies::stamp(ObjectId object) const {
  if (!has(object)) return std::nullopt;
  return CopyStamp{slots_[object].ino, slots_[object].mtime_ns};
}

std::optional<tl::expected<std::size_t, int>> StagedCopies::read(ObjectId object,
                                                                 std::span<char> into, off_t offset,
                                                                 MayBlock block) {
  const auto copy = stamp(object);
  if (!copy) return std::nullopt;
  const auto name = hashes_[object].hex();
  const Fd file(
      ::openat(folder_->objects(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  // Ours to run out of: the copy is as good as it was.
  if (!file && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) return std::nullopt;
  std::string wrong = "is gone";
  if (file) {
    const auto got = read_at(file.get(), into, offset, in_memory_ ? MayBlock::yes : block);
    if (!got && got.error() == EAGAIN) return got;
    struct stat now {};
    // Behind the read, as for origins; ctime is left out, since use is noted in atime.
    const bool same = ::fstat(file.get(), &now) == 0 && now.st_ino == copy->ino &&
                      file_stamp(now).mtime_ns == copy->mtime_ns;
    if (got && same) return got;
    wrong = got ? "has changed" : Error::from_errno({}, "cannot read", got.error()).message();
  }
  if (slots_[object].ready.exchange(false))
    warn(Error(folder_->path() + "/objects/" + name, "a staged copy is not used any more", wrong));
  return std::nullopt;
}

}  // namespace heddle
