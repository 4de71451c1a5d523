// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <span>
#include <tl/expected.hpp>

namespace heddle {

enum class MayBlock : bool { no, yes };

/// pread(2) over short reads and EINTR: fewer bytes than asked for mean the end of the file.
/// Failure: an errno. With MayBlock::no what is not all in the page cache, or on a file system that
/// cannot tell (NFS, FUSE, tmpfs), is EAGAIN, at once.
tl::expected<std::size_t, int> read_at(int fd, std::span<char> into, off_t offset, MayBlock block);

/// Whether `fd` lies on a file system that is the page cache and no more, so that reading it never
/// waits. Asks that file system.
bool is_in_memory(int fd);
/// Whether the regular file `fd` is of tmpfs, which is so too; asks nobody.
bool is_of_tmpfs(int fd);

}  // namespace heddle
