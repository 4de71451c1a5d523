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

}  // namespace heddle
