// SPDX-License-Identifier: MIT
#pragma once

#include "base/fd.hpp"
#include "fuseovl/overlay/tree.hpp"

namespace heddle {

/// What a FUSE daemon tells the kernel unasked, written to the device itself: no libfuse, no
/// session, from any process that holds it. None of these waits for an answer of ours or for a lock
/// that is held during one; FUSE_NOTIFY_INVAL_ENTRY would (it locks the folder, as a lookup that
/// waits for the worker does), and a process that is killed while it waits so never ends.
class KernelNotes {
 public:
  /// `device` stays the caller's.
  explicit KernelNotes(const Fd& device) : device_(device) {}

  /// All names are asked for again when they are next used, those that are not there as well
  /// (FUSE_NOTIFY_INC_EPOCH; EINVAL before Linux 6.16). Files in use stay what they are.
  Result<void> doubt_names() const;
  /// The file's attributes are asked for again.
  void doubt_attributes(InodeNumber ino) const { (void)knows(ino); }
  /// Whether the kernel has the file, open, mapped or cached. Its attributes are asked for again.
  bool knows(InodeNumber ino) const;

 private:
  const Fd& device_;
};

}  // namespace heddle
