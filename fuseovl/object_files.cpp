// SPDX-License-Identifier: MIT
#include "fuseovl/object_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/log.hpp"

namespace heddle {

ObjectFiles::ObjectFiles(Origins origins, std::vector<std::string> paths)
    : origins_(std::move(origins)), paths_(std::move(paths)), refused_(paths_.size()) {}

std::vector<int> ObjectFiles::descriptors() const {
  std::vector<int> out;
  for (const auto& origin : origins_.files)
    if (origin.fd) out.push_back(origin.fd.get());
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
      return tl::unexpected(refuse(object, static_cast<std::uint32_t>(code)));
    }
    handle.reopened_ = std::move(*fd);
    handle.fd_ = handle.reopened_.get();
  }
  struct stat status {};
  if (::fstat(handle.fd_, &status) != 0) return tl::unexpected(EIO);
  const FileStamp now = file_stamp(status);
  // ctime is left out: rename over a pinned file, chmod and a new hard link change it.
  if (now.size != origin.stamp.size || now.mtime_ns != origin.stamp.mtime_ns)
    return tl::unexpected(refuse(object, changed_in_place));
  if (now.id != origin.stamp.id) return tl::unexpected(refuse(object, replaced));
  return handle;
}

Origin ObjectFiles::take(ObjectId object) {
  Origin& origin = origins_.files[object];
  if (origin.fd) --origins_.pinned;
  Origin taken = std::move(origin);
  origin.usable = false;
  return taken;
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
