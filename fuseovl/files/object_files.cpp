// SPDX-License-Identifier: MIT
#include "fuseovl/files/object_files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <unordered_map>

#include "base/backoff.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"

namespace heddle {

ObjectFiles::ObjectFiles(Origins origins, std::vector<std::string> paths)
    : origins_(std::move(origins)),
      paths_(std::move(paths)),
      refused_(paths_.size()),
      asked_(paths_.size()) {
  std::unordered_map<std::uint64_t, std::uint32_t> by_device;
  for (const Origin& origin : origins_.files) {
    const auto next = static_cast<std::uint32_t>(by_device.size());
    lanes_.push_back(by_device.try_emplace(origin.stamp.id.dev, next).first->second);
  }
  lane_count_ = by_device.size();
}

std::vector<int> ObjectFiles::descriptors() const {
  std::vector<int> out;
  for (const auto& origin : origins_.files)
    if (origin.fd) out.push_back(origin.fd.get());
  if (staging_)
    for (const int fd : staging_->descriptors()) out.push_back(fd);
  return out;
}

std::vector<std::string> ObjectFiles::reopened(bool in_bundle) const {
  std::vector<std::string> out;
  std::string last;  // the paths are sorted
  for (ObjectId object = 0; object < paths_.size(); ++object) {
    const Origin& origin = origins_.files[object];
    if (!origin.usable || origin.fd || origin.in_bundle != in_bundle) continue;
    const std::string& path = paths_[object];
    std::string directory = path.substr(0, path.rfind('/') + 1);
    if (directory != last) out.push_back(directory);
    last = std::move(directory);
    out.push_back(path);
  }
  return out;
}

Result<void> ObjectFiles::stage(StageDirectory directory, std::uint64_t budget) {
  staging_ = TRY(Staging::create(std::move(directory), origins_, budget));
  return {};
}

void ObjectFiles::start_staging() {
  if (staging_) staging_->start(origins_, paths_);
}

tl::expected<std::size_t, int> ObjectFiles::read(ObjectId object, std::span<char> into,
                                                 off_t offset, MayBlock block) {
  const Origin& origin = origins_.files[object];
  if (!origin.usable) return tl::unexpected(EIO);
  if (is_in_bundle(object)) {
    const auto place = frames_->index().objects[object] + static_cast<std::uint64_t>(offset);
    const auto done = frames_->read(place, into, block);
    if (done) return into.size();
    if (done.error() == EAGAIN) return tl::unexpected(EAGAIN);
  }
  const bool staged = is_staged(object);
  if (staged && on_change_ == OnChange::keep)
    if (const auto got = staging_->read(object, into, offset, block)) return *got;
  // open(2) may block, and so may fstat(2) of a remote file.
  const bool waits =
      !origin.fd || origin.is_on_fuse || (staged && origin.locality == Locality::remote);
  if (waits && block == MayBlock::no) return tl::unexpected(EAGAIN);
  Fd reopened;
  if (!origin.fd) reopened = TRY(reopen(object));
  const int fd = reopened ? reopened.get() : origin.fd.get();
  if (origin.locality == Locality::memory) block = MayBlock::yes;
  std::optional<tl::expected<std::size_t, int>> got;
  if (staged && on_change_ == OnChange::refuse) got = staging_->read(object, into, offset, block);
  if (!got) return read_origin(object, fd, into, offset, block);
  if (!*got) return *got;
  if (const int code = compare(object, fd)) return tl::unexpected(code);
  return *got;
}

/// Retries for 2 s while out of descriptors or memory: a process that maps the page would die of an
/// error.
tl::expected<Fd, int> ObjectFiles::reopen(ObjectId object) {
  constexpr timespec kPause{0, 2'000'000};
  for (int tries = 1000;;) {
    auto fd = open_regular(paths_[object]);
    if (fd) return std::move(*fd);
    const int code = fd.error().code();
    if (code == EACCES && is_in_bundle(object) && on_forbidden_) on_forbidden_();
    const bool ours = code == EMFILE || code == ENFILE || code == ENOMEM;
    if (!ours) return tl::unexpected(refuse(object, static_cast<std::uint32_t>(code)));
    if (--tries <= 0) return tl::unexpected(code);
    ::nanosleep(&kPause, nullptr);
  }
}

tl::expected<std::size_t, int> ObjectFiles::read_origin(ObjectId object, int fd,
                                                        std::span<char> into, off_t offset,
                                                        MayBlock block) {
  constexpr std::int64_t kTrusted = 1000;  // no page is dropped and read anew meanwhile
  const Origin& origin = origins_.files[object];
  Asked& asked = asked_[object];
  // Of a file that is opened for this read alone FUSE forgets the pages at the next open.
  if (block == MayBlock::yes && origin.locality == Locality::remote && origin.fd) {
    // Threads that add pages of one chunk at once make several requests of it.
    const std::lock_guard lock(asked.mutex);
    read_chunks_ahead(fd, into.size(), offset);
  }
  const bool by_chunk = block == MayBlock::yes && origin.is_on_fuse && origin.fd;
  const auto got = by_chunk ? read_from_fuse(fd, into, offset) : read_at(fd, into, offset, block);
  if (!got) return got;
  if (!by_chunk) {
    if (const int code = compare(object, fd)) return tl::unexpected(code);
    return got;
  }
  // Where FUSE keeps no attributes a comparison is a request: one for a chunk, all of which the
  // kernel has then.
  const auto chunk = (static_cast<std::uint64_t>(offset) + into.size() - 1) / kChunk;
  const bool is_whole = *got == into.size() && chunk == static_cast<std::uint64_t>(offset) / kChunk;
  const std::lock_guard lock(asked.mutex);
  auto& after = asked.after;
  if (is_whole && chunk < after.size() && monotonic_ms() - after[chunk] < kTrusted) return got;
  if (const int code = compare(object, fd)) return tl::unexpected(code);
  if (after.size() <= chunk) after.resize(chunk + 1, -kTrusted);
  after[chunk] = monotonic_ms();
  return got;
}

int ObjectFiles::compare(ObjectId object, int fd) {
  const FileStamp& stamp = origins_.files[object].stamp;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return EIO;
  const FileStamp now = file_stamp(status);
  // Without ctime: a rename over a pinned file, chmod and a new hard link change it.
  if (now.size != stamp.size || now.mtime_ns != stamp.mtime_ns)
    return refuse(object, changed_in_place);
  if (now.id != stamp.id && stamp.id != FileId()) return refuse(object, replaced);
  return 0;
}

std::string ObjectFiles::text_of(std::uint32_t reason) {
  if (reason == changed_in_place) return "changed in place while mounted";
  if (reason == replaced) return "replaced while mounted and not pinned";
  return Error::from_errno({}, "cannot open", static_cast<int>(reason)).message();
}

int ObjectFiles::refuse(ObjectId object, std::uint32_t reason) {
  if (refused_[object].exchange(reason, std::memory_order_relaxed) != reason)
    warn(Error(paths_[object], "answered with an error", text_of(reason)));
  return EIO;
}

std::vector<Drift> ObjectFiles::drifts() const {
  auto out = origins_.drifts;
  for (ObjectId object = 0; object < refused_.size(); ++object)
    if (const auto reason = refused_[object].load(std::memory_order_relaxed))
      out.push_back({object, paths_[object], text_of(reason)});
  return out;
}

}  // namespace heddle
