// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>

#include "base/fd.hpp"

namespace heddle {

// Programs and configuration files of root must belong to root, since a user who may write to them,
// or to a directory above them, would become root. A user's must belong to that user or root. A
// path that passes stays trusted, since only its trusted owners can change it.

/// Root of the machine, not of a user namespace (`podman unshare`), where the system's directories
/// belong to nobody.
bool is_systems_root();

/// Fails if another user may change the directory `path` (absolute), a directory above it, or a
/// symbolic link on the way. Directories above may be sticky (/tmp), where no user can rename
/// another's; `path` itself may not, since others could create missing files in it. A missing path
/// passes.
Result<void> check_trusted_directory(const std::string& path);
/// Likewise for `owner`, as whom root is going to use it.
Result<void> check_trusted_directory(const std::string& path, uid_t owner);

/// Likewise for the regular file `path`, which may be in a sticky directory.
Result<void> check_trusted_file(const std::string& path);

// Where root writes below another user's directory (a report, a log, an archive), a symbolic link
// there could lead it to any file of the machine. So root follows only its own links, in its own
// directories, where no other user can have put them. Directories themselves can be moved only to
// where that user may write as well.

/// Whether this process may follow the symbolic link `link` (O_PATH) in `directory` to write.
bool may_follow_to_write(const Fd& directory, const Fd& link);

/// Opens the directory `path` (O_PATH) to create, replace or remove files in it, following links by
/// may_follow_to_write(). Empty: the working directory. EPERM: it may not follow one. ELOOP: root
/// follows none of procfs, which lead into other roots.
Result<Fd> open_directory_to_write(const std::string& path);
/// Likewise; makes it and those above it that are missing, with `mode` less the umask.
Result<Fd> make_directory_to_write(const std::string& path, mode_t mode);

}  // namespace heddle
