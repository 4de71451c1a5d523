// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "fuseovl/origins.hpp"
#include "fuseovl/shared.hpp"

namespace heddle {

/// The files behind the objects while the mount stands. A pinned file that is replaced by rename
/// goes on with its old content; one that is changed in place, or replaced while not pinned,
/// answers EIO from then on, since its old and new content would mix. Safe for many threads, and
/// for the processes forked from the one that made it: what one finds, all of them report.
class ObjectFiles {
 public:
  /// `paths` by ObjectId, for reopening and for messages.
  ObjectFiles(Origins origins, std::vector<std::string> paths);
  ObjectFiles() : ObjectFiles({}, {}) {}

  const Origin& origin(ObjectId object) const { return origins_.files[object]; }
  const std::string& path(ObjectId object) const { return paths_[object]; }
  std::size_t size() const { return origins_.files.size(); }
  std::size_t pinned() const { return origins_.pinned; }

  /// Of every pinned file.
  std::vector<int> descriptors() const;
  /// What open() opens by its path, each file with the folder that it may be replaced in: those
  /// that are not pinned.
  std::vector<std::string> reopened() const;

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

  /// Why an object is answered with an error, as a number that refuse_again() takes in another
  /// process; 0: it is not.
  std::uint32_t refusal(ObjectId object) const { return refused_[object]; }
  void refuse_again(ObjectId object, std::uint32_t reason) { refused_[object] = reason; }
  /// What was found when mounting.
  const std::vector<Drift>& first_drifts() const { return origins_.drifts; }
  /// Gives the file up: from here on it cannot be served.
  Origin take(ObjectId object);

 private:
  /// Why an object is answered with an error: one of these, or the errno of opening it.
  enum Reason : std::uint32_t { none = 0, changed_in_place = 1U << 16, replaced = 2U << 16 };
  static std::string text_of(std::uint32_t reason);
  int refuse(ObjectId object, std::uint32_t reason);

  Origins origins_;
  std::vector<std::string> paths_;
  SharedArray<std::atomic<std::uint32_t>> refused_;  ///< Reason by ObjectId
};

}  // namespace heddle
