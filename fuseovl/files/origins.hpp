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

namespace heddle {

/// What fstat(2) said of a file.
struct FileStatus {
  FileStamp stamp;
  std::int64_t atime_ns = 0;
  std::uint32_t mode = 0;
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint64_t blocks = 0;  ///< of 512 bytes
  Locality locality = Locality::remote;
};

/// One object's file on this node, as it was found when the mount was made.
struct Origin : FileStatus {
  Fd fd;                   ///< pinned; invalid: not enough descriptors, reopened for each read
  bool usable = false;     ///< false: missing or unreadable, it cannot be served
  bool as_mapped = false;  ///< content is the map's
  ContentHash hash;        ///< of the content, when it is the map's; zeros: not known
};

/// One file that is not what the map says.
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

/// Longer than a parallel file system's fail-over takes to be noticed, shorter than a job's
/// patience.
inline constexpr std::chrono::seconds kOriginTimeout{60};

enum class Compare : std::uint8_t {
  stamp,    ///< the content only where size and mtime do not tell
  content,  ///< always
};

/// Opens and checks every object's file: size and mtime first, then SHA-256, since dev and ino
/// differ on another node and mtimes on a copied tree. At most `max_pinned` stay open. Many at once
/// when the file system is slow to answer; one that has not answered for `limit` (0: it is waited
/// for) costs its own files.
Origins open_origins(const MapContent& content, std::size_t max_pinned,
                     std::chrono::milliseconds limit = kOriginTimeout,
                     Compare how = Compare::stamp);

enum class MayBlock : bool { no, yes };

/// pread(2) over short reads and EINTR: fewer bytes than asked for mean the end of the file.
/// Failure: an errno. With MayBlock::no what is not all in the page cache, or on a file system that
/// cannot tell (NFS, FUSE, tmpfs), is EAGAIN, at once.
tl::expected<std::size_t, int> read_at(int fd, std::span<char> into, off_t offset, MayBlock block);

/// Words about a file whose file system is silent.
std::string not_answered_for(std::chrono::milliseconds time);

/// Raises the soft limit of open files to the hard one; result: how many objects may be pinned when
/// the daemon keeps enough for itself.
std::size_t raise_fd_limit();

}  // namespace heddle
