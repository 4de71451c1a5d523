// SPDX-License-Identifier: MIT
#include "fuseovl/files/object_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <ctime>
#include <unordered_map>

#include "base/log.hpp"

namespace heddle {

ObjectFiles::ObjectFiles(Origins origins, std::vector<std::string> paths)
    : origins_(std::move(origins)), paths_(std::move(paths)), refused_(paths_.size()) {
  assign_lanes();
}

std::vector<int> ObjectFiles::descriptors() const {
  std::vector<int> out;
  for (const auto& origin : origins_.files)
    if (origin.fd) out.push_back(origin.fd.get());
  if (copies_)
    for (const int fd : copies_->descriptors()) out.push_back(fd);
  return out;
}

std::vector<std::string> ObjectFiles::reopened() const {
  std::vector<std::string> out;
  std::string last_folder;  // the paths are sorted: the files of a folder stand together
  for (ObjectId object = 0; object < paths_.size(); ++object) {
    const Origin& origin = origins_.files[object];
    if (!origin.usable || origin.fd) continue;
    const std::string& path = paths_[object];
    std::string folder = path.substr(0, path.rfind('/') + 1);
    if (folder != last_folder) out.push_back(folder);
    last_folder = std::move(folder);
    out.push_back(path);
  }
  return out;
}

Result<void> ObjectFiles::stage(std::shared_ptr<const StageFolder> folder, std::uint64_t budget) {
  std::vector<ContentHash> hashes;
  for (const auto& origin : origins_.files) hashes.push_back(origin.hash);
  auto copies = StagedCopies::create(std::move(folder), std::move(hashes));
  if (!copies) return fail(std::move(copies.error()));
  copies_ = std::move(*copies);
  staging_ = std::make_unique<Staging>(*copies_, origins_, budget);
  return {};
}

std::optional<pid_t> ObjectFiles::start_staging() {
  return staging_ ? staging_->start(origins_, paths_) : std::nullopt;
}

void ObjectFiles::assign_lanes() {
  const auto kind_of = [](int fd) {
    if (is_of_tmpfs(fd)) return LaneKind::in_memory;
    // Disks know what is cached; what goes through a network says EOPNOTSUPP.
    char byte = 0;
    const iovec part{&byte, 1};
    return ::preadv2(fd, &part, 1, 0, RWF_NOWAIT) < 0 && errno == EOPNOTSUPP ? LaneKind::remote
                                                                             : LaneKind::local;
  };
  std::unordered_map<std::uint64_t, std::uint32_t> by_device;
  for (const Origin& origin : origins_.files) {
    const auto next = static_cast<std::uint32_t>(lane_kinds_.size());
    const auto [found, is_new] = by_device.try_emplace(origin.stamp.id.dev, next);
    lanes_.push_back(found->second);
    if (is_new) lane_kinds_.push_back(origin.fd ? kind_of(origin.fd.get()) : LaneKind::remote);
  }
}

tl::expected<std::size_t, int> ObjectFiles::read(ObjectId object, std::span<char> into,
                                                 off_t offset, MayBlock block) {
  const Origin& origin = origins_.files[object];
  if (!origin.usable) return tl::unexpected(EIO);
  if (on_change_ == OnChange::refuse && refused_[object] >= changed_in_place)
    return tl::unexpected(EIO);
  if (copies_)
    if (const auto got = copies_->read(object, into, offset, block)) return *got;
  Fd reopened;
  if (!origin.fd) {
    if (block == MayBlock::no) return tl::unexpected(EAGAIN);
    // Others give theirs back in a moment: whoever maps the page would die of an error.
    auto fd = reopen(object, 1000);
    if (!fd) return tl::unexpected(fd.error());
    reopened = std::move(*fd);
  }
  const int fd = reopened ? reopened.get() : origin.fd.get();
  if (lane_kinds_[lanes_[object]] == LaneKind::in_memory) block = MayBlock::yes;
  const auto got = read_at(fd, into, offset, block);
  if (!got) return got;
  if (const int code = compare(object, fd)) return tl::unexpected(code);
  return got;
}

/// While descriptors or memory are used up it tries again, every 2 ms.
tl::expected<Fd, int> ObjectFiles::reopen(ObjectId object, int tries) {
  constexpr timespec kPause{0, 2'000'000};
  for (;;) {
    auto fd = open_file(paths_[object], O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd) return std::move(*fd);
    const int code = fd.error().code();
    const bool ours = code == EMFILE || code == ENFILE || code == ENOMEM;
    if (!ours) return tl::unexpected(refuse(object, static_cast<std::uint32_t>(code)));
    if (--tries <= 0) return tl::unexpected(code);
    ::nanosleep(&kPause, nullptr);
  }
}

std::optional<std::string> ObjectFiles::watchable(ObjectId object) const {
  const Origin& origin = origins_.files[object];
  if (!origin.usable || lane_kinds_[lanes_[object]] == LaneKind::remote) return std::nullopt;
  return origin.fd ? "/proc/self/fd/" + std::to_string(origin.fd.get()) : paths_[object];
}

void ObjectFiles::check(ObjectId object) {
  const Origin& origin = origins_.files[object];
  if (!origin.usable || refused_[object] != none) return;
  if (origin.fd)
    (void)compare(object, origin.fd.get());
  else if (const auto fd = reopen(object, 1))
    (void)compare(object, fd->get());
}

int ObjectFiles::compare(ObjectId object, int fd) {
  const FileStamp& stamp = origins_.files[object].stamp;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return EIO;
  const FileStamp now = file_stamp(status);
  // ctime is left out: rename over a pinned file, chmod and a new hard link change it.
  if (now.size != stamp.size || now.mtime_ns != stamp.mtime_ns)
    return refuse(object, changed_in_place);
  if (now.id != stamp.id) return refuse(object, replaced);
  return 0;
}

std::string ObjectFiles::text_of(std::uint32_t reason) {
  if (reason == changed_in_place) return "changed in place while mounted";
  if (reason == replaced) return "replaced while mounted and not pinned";
  return Error::from_errno({}, "cannot open", static_cast<int>(reason)).message();
}

int ObjectFiles::refuse(ObjectId object, std::uint32_t reason) {
  const bool goes_on = on_change_ == OnChange::keep && copies_ && copies_->has(object);
  if (refused_[object].exchange(reason, std::memory_order_relaxed) != reason)
    warn(Error(paths_[object], goes_on ? "its staged copy goes on" : "answered with an error",
               text_of(reason)));
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
