// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/kernel_notes.hpp"

#include <linux/fuse.h>

#include <cerrno>

namespace heddle {
namespace {

// Of Linux 6.16's fuse.h, which is newer than the headers of Debian 12.
constexpr int kNotifyIncEpoch = 8;

}  // namespace

Result<void> KernelNotes::doubt_names() const {
  fuse_out_header header{};
  header.len = sizeof(header);
  header.error = kNotifyIncEpoch;
  if (::write(device_.get(), &header, sizeof(header)) < 0)
    return fail_errno("/dev/fuse", "cannot exchange names under the mount", errno,
                      errno == EINVAL ? "Linux 6.16 and newer can" : "");
  return {};
}

bool KernelNotes::knows(InodeNumber ino) const {
  struct {
    fuse_out_header header{};
    fuse_notify_inval_inode_out what{};
  } note;
  note.header.len = sizeof(note);
  note.header.error = FUSE_NOTIFY_INVAL_INODE;
  note.what.ino = ino;
  note.what.off = -1;  // attributes alone: pages stay (fs/fuse/inode.c, fuse_reverse_inval_inode)
  return ::write(device_.get(), &note, sizeof(note)) >= 0 || errno != ENOENT;
}

}  // namespace heddle
