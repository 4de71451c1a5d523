// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/retired_files.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

namespace heddle {

RetiredFiles::RetiredFiles(std::vector<File> files) {
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.ino < b.ino; });
  Origins origins;
  std::vector<std::string> paths;
  for (auto& file : files) {
    inodes_.push_back(file.ino);
    since_.push_back(file.since);
    if (file.origin.fd) ++origins.pinned;
    origins.files.push_back(std::move(file.origin));
    paths.push_back(std::move(file.path));
  }
  files_ = ObjectFiles(std::move(origins), std::move(paths));
  for (ObjectId id = 0; id < files.size(); ++id)
    if (files[id].refusal != 0) files_.refuse_again(id, files[id].refusal);
}

std::optional<ObjectId> RetiredFiles::find(InodeNumber ino) const {
  const auto found = std::lower_bound(inodes_.begin(), inodes_.end(), ino);
  if (found == inodes_.end() || *found != ino) return std::nullopt;
  return static_cast<ObjectId>(found - inodes_.begin());
}

std::size_t RetiredFiles::kept() const {
  std::size_t n = 0;
  for (ObjectId id = 0; id < size(); ++id) n += is_kept(id);
  return n;
}

Origin origin_of(Fd file, const struct stat& status) {
  Origin origin;
  origin.fd = std::move(file);
  origin.stamp = file_stamp(status);
  origin.atime_ns = origin.stamp.mtime_ns;
  origin.mode = S_IFREG | 0444;
  origin.uid = ::geteuid();
  origin.gid = ::getegid();
  origin.blocks = static_cast<std::uint64_t>(status.st_blocks);
  origin.usable = true;
  return origin;
}

Result<Origin> make_origin(std::string_view bytes, const std::string& name) {
  Fd file(::memfd_create("heddle", MFD_CLOEXEC));
  if (!file) return fail_errno(name, "cannot keep");
  if (auto written = write_all(file.get(), bytes, name); !written)
    return fail(std::move(written.error()));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return fail_errno(name, "cannot keep");
  return origin_of(std::move(file), status);
}

}  // namespace heddle
