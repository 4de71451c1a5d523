// SPDX-License-Identifier: MIT
#include "fuseovl/object_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/log.hpp"

namespace heddle {

ObjectFiles::ObjectFiles(Origins origins, std::vector<std::string> paths)
    : origins_(std::move(origins)),
      paths_(std::move(paths)),
      mutex_(std::make_unique<std::mutex>()) {}

std::vector<int> ObjectFiles::descriptors() const {
  std::vector<int> out;
  for (const auto& origin : origins_.files)
    if (origin.fd) out.push_back(origin.fd.get());
  return out;
}

tl::expected<ObjectFiles::Handle, int> ObjectFiles::open(ObjectId object) {
  const Origin& origin = origins_.files[object];
  if (!origin.usable) return tl::unexpected(EIO);
  Handle handle;
  handle.fd_ = origin.fd.get();
  if (!origin.fd) {
    auto fd = open_file(paths_[object], O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!fd) {
      const int code = fd.error().code();
      // Ours to run out of, not the file's fault: the caller may try again.
      if (code == EMFILE || code == ENFILE || code == ENOMEM) return tl::unexpected(code);
      return tl::unexpected(refuse(object, fd.error().message()));
    }
    handle.reopened_ = std::move(*fd);
    handle.fd_ = handle.reopened_.get();
  }
  struct stat status {};
  if (::fstat(handle.fd_, &status) != 0) return tl::unexpected(EIO);
  const FileStamp now = file_stamp(status);
  // ctime is left out: rename over a pinned file, chmod and a new hard link change it.
  if (now.size != origin.stamp.size || now.mtime_ns != origin.stamp.mtime_ns)
    return tl::unexpected(refuse(object, "changed in place while mounted"));
  if (now.id != origin.stamp.id)
    return tl::unexpected(refuse(object, "replaced while mounted and not pinned"));
  return handle;
}

int ObjectFiles::refuse(ObjectId object, std::string what) {
  const std::lock_guard lock(*mutex_);
  const auto known =
      std::any_of(origins_.drifts.begin(), origins_.drifts.end(),
                  [&](const Drift& d) { return d.object == object && d.what == what; });
  if (!known) {
    warn(Error(paths_[object], "answered with an error", what));
    origins_.drifts.push_back({object, paths_[object], std::move(what)});
  }
  return EIO;
}

std::vector<Drift> ObjectFiles::drifts() const {
  const std::lock_guard lock(*mutex_);
  return origins_.drifts;
}

}  // namespace heddle
