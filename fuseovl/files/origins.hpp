// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "base/file_stamp.hpp"
#include "base/file_systems.hpp"
#include "resolver/map/map_content.hpp"
#include "ship/bundle/bundle_format.hpp"

namespace heddle {

/// What fstat(2) says of a file.
struct FileStatus {
  FileStamp stamp;
  std::int64_t atime_ns = 0;
  std::uint32_t mode = 0;
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint64_t blocks = 0;  ///< of 512 bytes
  Locality locality = Locality::remote;
  bool is_on_fuse = false;
};

/// One object's file on this node when the mount was made. One that is in the bundle is as the map
/// says: its file need not be there, and its dev and ino are 0 unless it is a program.
struct Origin : FileStatus {
  Fd fd;                   ///< pinned; invalid: out of descriptors, reopened for each read
  bool usable = false;     ///< false: missing or unreadable
  bool as_mapped = false;  ///< the content is the map's
  bool in_bundle = false;
  ContentHash hash;  ///< of content that is the map's; zeros: unknown, or in the bundle
};

/// One file that differs from the map.
struct Drift {
  ObjectId object = 0;
  std::string path;
  std::string what;     ///< "missing", "content changed", ...
  bool silent = false;  ///< its file system did not answer in time
};

struct Origins {
  std::vector<Origin> files;  ///< by ObjectId
  std::vector<Drift> drifts;  ///< in order of objects
  std::size_t pinned = 0;
  /// The first that is silent.
  std::optional<Drift> silent;
};

/// Longer than most parallel file systems' fail-over.
inline constexpr std::chrono::seconds kOriginTimeout{60};

enum class Compare : std::uint8_t {
  stamp,    ///< the content only where the mtime differs
  content,  ///< always
};

/// Opens and checks every object's file, many at once where the file system is slow: size and
/// mtime, then SHA-256, since dev and ino differ between nodes and mtimes between copies. At most
/// `max_pinned` stay open. The files of a file system that has not answered for `limit` (0: no
/// limit) are drifts. Of the files that are in `bundle` only programs are looked at, to know which
/// file a process runs.
Origins open_origins(const MapContent& content, std::size_t max_pinned,
                     std::chrono::milliseconds limit = kOriginTimeout, Compare how = Compare::stamp,
                     const BundleIndex* bundle = nullptr);

enum class MayBlock : bool { no, yes };

/// pread(2) over short reads and EINTR: fewer bytes mean the end of the file. Failure: an errno.
/// With MayBlock::no EAGAIN, unless all is in the page cache of a file system that can tell (not
/// NFS, FUSE and tmpfs).
tl::expected<std::size_t, int> read_at(int fd, std::span<char> into, off_t offset, MayBlock block);

/// The part of a file that a remote file system is asked for at once.
inline constexpr std::uint64_t kChunk = 1U << 20;
/// Has the kernel read the chunks of these bytes, each by one request if it is not cached: what it
/// asks a mount for is smaller, and comes out of order.
void read_chunks_ahead(int fd, std::size_t size, off_t offset);
/// read_at() for FUSE. At each read(2) the kernel asks for the file's attributes, where they may
/// not be cached (fs/fuse/file.c, fuse_cache_read_iter), but not for sendfile(2).
tl::expected<std::size_t, int> read_from_fuse(int fd, std::span<char> into, off_t offset);

/// The reason in messages about such a file system.
std::string not_answered_for(std::chrono::milliseconds time);

/// Raises the soft limit of open files to the hard one; result: how many objects may be pinned.
std::size_t raise_fd_limit();

}  // namespace heddle
