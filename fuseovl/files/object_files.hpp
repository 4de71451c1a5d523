// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fuseovl/files/bundle_frames.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/files/staging.hpp"
#include "fuseovl/session/shared.hpp"

namespace heddle {

/// What is served of a file that changes while it is mounted.
enum class OnChange : std::uint8_t {
  keep,    ///< its staged copy; without one EIO
  refuse,  ///< EIO; each read checks the origin
};

/// The files behind the objects while mounted: the bundle, staged copies, else the
/// origins. A pinned file that is replaced by rename is served with its old content. One that is
/// changed in place, or replaced while not pinned, answers EIO from then on: its old and new
/// content would mix. Safe for many threads; forked processes share the findings.
class ObjectFiles {
 public:
  /// `paths` by ObjectId.
  ObjectFiles(Origins origins, std::vector<std::string> paths);
  ObjectFiles() : ObjectFiles({}, {}) {}

  const Origin& origin(ObjectId object) const { return origins_.files[object]; }
  const std::string& path(ObjectId object) const { return paths_[object]; }
  std::size_t size() const { return origins_.files.size(); }
  std::size_t pinned() const { return origins_.pinned; }

  /// Before the first read: objects that are in the bundle are read from it.
  void from_bundle(std::shared_ptr<BundleFrames> frames) { frames_ = std::move(frames); }
  bool is_in_bundle(ObjectId object) const { return frames_ && origin(object).in_bundle; }

  /// Of every pinned file, and the staging directory's.
  std::vector<int> descriptors() const;
  /// The files that are not pinned, and their directories: those at the origin, or those whose
  /// originals are read only where the bundle is damaged.
  std::vector<std::string> reopened(bool in_bundle = false) const;
  /// Calls `restart`, which does not return, where an original of the bundle is needed that this
  /// process may not open.
  void on_forbidden(std::function<void()> restart) { on_forbidden_ = std::move(restart); }

  /// The staging directory, or none.
  std::vector<std::string> staged_in() const {
    return staging_ ? std::vector{staging_->directory().path()} : std::vector<std::string>();
  }

  /// Objects of one lane are on one file system, which may block all of them and no other.
  std::size_t lane(ObjectId object) const {
    return is_staged(object) && on_change_ == OnChange::keep ? lane_count_ : lanes_[object];
  }
  std::size_t lane_count() const { return lane_count_ + 1; }

  /// Reads as read_at(). The stamp is compared after the read, so that no answer mixes two
  /// contents: EIO when the file has changed.
  tl::expected<std::size_t, int> read(ObjectId object, std::span<char> into, off_t offset,
                                      MayBlock block);

  /// Before the first read: makes `directory` hold and serve copies of the files.
  Result<void> stage(StageDirectory directory, std::uint64_t budget);
  void on_change(OnChange what) { on_change_ = what; }
  /// nullptr: nothing is staged.
  const Staging* staging() const { return staging_.get(); }
  /// Staging::start(), when something is to be staged.
  void start_staging();

  /// Found when mounting and since.
  std::vector<Drift> drifts() const;

 private:
  /// Why reads of an object fail: one of these, or the errno of opening it.
  enum Reason : std::uint32_t { none = 0, changed_in_place = 1U << 16, replaced = 2U << 16 };
  static std::string text_of(std::uint32_t reason);
  int refuse(ObjectId object, std::uint32_t reason);
  bool is_staged(ObjectId object) const { return staging_ && staging_->has(object); }
  tl::expected<Fd, int> reopen(ObjectId object);
  /// Reads the origin, and compares it then.
  tl::expected<std::size_t, int> read_origin(ObjectId object, int fd, std::span<char> into,
                                             off_t offset, MayBlock block);
  /// 0, or the errno for a file that has changed since it was mounted.
  int compare(ObjectId object, int fd);

  Origins origins_;
  std::vector<std::string> paths_;
  std::vector<std::uint32_t> lanes_;  ///< by ObjectId
  std::size_t lane_count_ = 0;
  std::shared_ptr<BundleFrames> frames_;  ///< null: there is no bundle
  std::unique_ptr<Staging> staging_;
  OnChange on_change_ = OnChange::keep;
  std::function<void()> on_forbidden_;
  SharedArray<std::atomic<std::uint32_t>> refused_;  ///< Reason by ObjectId
  /// When FUSE was asked whether an object's file is unchanged.
  struct Asked {
    std::mutex mutex;
    std::vector<std::int64_t> after;  ///< reading a chunk, monotonic_ms(); short: the rest never
  };
  std::vector<Asked> asked_;  ///< by ObjectId
};

}  // namespace heddle
