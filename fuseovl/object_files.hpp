// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fuseovl/origins.hpp"

namespace heddle {

/// The files behind the objects while the mount stands. A pinned file that is replaced by rename
/// goes on with its old content; one that is changed in place, or replaced while not pinned,
/// answers EIO from then on, since its old and new content would mix. Safe for many threads.
class ObjectFiles {
 public:
  /// `paths` by ObjectId, for reopening and for messages.
  ObjectFiles(Origins origins, std::vector<std::string> paths);
  ObjectFiles() : ObjectFiles({}, {}) {}

  const Origin& origin(ObjectId object) const { return origins_.files[object]; }
  std::size_t size() const { return origins_.files.size(); }
  std::size_t pinned() const { return origins_.pinned; }

  /// Of every pinned file.
  std::vector<int> descriptors() const;

  /// A descriptor to pread from, good for this one read.
  class Handle {
   public:
    int fd() const { return fd_; }

   private:
    friend class ObjectFiles;
    int fd_ = -1;
    Fd reopened_;
  };
  /// The object's file, checked against its stamp; else an errno (EIO when it has changed).
  tl::expected<Handle, int> open(ObjectId object);

  /// What differs from the map, found when mounting and since.
  std::vector<Drift> drifts() const;

 private:
  int refuse(ObjectId object, std::string what);

  Origins origins_;
  std::vector<std::string> paths_;
  std::unique_ptr<std::mutex> mutex_;  ///< of origins_.drifts; apart, so that this can be moved
};

}  // namespace heddle
