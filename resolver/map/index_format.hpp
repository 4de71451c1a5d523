// SPDX-License-Identifier: MIT
#pragma once

// The audit library's read-only form of the views, mapped by every guided process before libc is
// initialised: fixed-width little-endian integers, offsets from the file's start, strings ended by
// NUL, no pointers, no C++ library types, no constructors. Written by index_writer.cpp, read by
// fuseovl/audit; specified in docs/formats/index.md.

#include <cstdint>

namespace heddle::index_format {

inline constexpr char kMagic[8] = {'H', 'E', 'D', 'D', 'L', 'I', 'D', 'X'};
inline constexpr std::uint32_t kVersion = 7;
/// In place of a caller: where a name leads for all its callers.
inline constexpr char kAnyCaller[] = "*";

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t program_count;
  std::uint64_t file_size;        ///< of the whole index; a shorter file is refused
  std::uint64_t programs_offset;  ///< Program[program_count], sorted by (dev, ino)
  std::uint64_t checksum;         ///< FNV-1a 64 of all bytes behind the header
};

/// In place of a dev: the mount that the index is read from. Its st_dev is known to readers only.
/// The mount shows files at their own paths, with inode numbers of its own
/// (fuseovl/overlay/tree.hpp).
inline constexpr std::uint64_t kThisMount = 0;

/// A program is identified by (dev, ino, mtime) of /proc/self/exe on this node; a rebuilt one has
/// another mtime or inode and runs unguided.
struct Program {
  std::uint64_t dev;
  std::uint64_t ino;
  std::int64_t mtime_ns;
  std::uint64_t buckets_offset;  ///< Bucket[bucket_mask + 1], open addressing, linear probing
  std::uint32_t bucket_mask;     ///< power of two less one; at most half of the buckets are used
  std::uint32_t optional_static_tls;  ///< what that glibc tunable must be at least; 0: its default
  std::uint64_t files_offset;         ///< File[file_count], sorted by (dev, ino)
  std::uint32_t file_count;
  std::uint32_t
      search_path;       ///< search_path() of the LD_LIBRARY_PATH that names were resolved with
  std::uint64_t hwcaps;  ///< FNV-1a 64 of the tunable glibc.cpu.hwcaps that they were resolved with
};

/// A file that names lead to, by its identity on this node: recognised under unlisted paths too.
struct File {
  std::uint64_t dev;
  std::uint64_t ino;
  std::int64_t mtime_ns;
  std::uint32_t target_offset;  ///< as Bucket's
  std::uint32_t unused;         ///< 0
};

/// name_offset 0: empty, the search for a name ends here.
struct Bucket {
  /// FNV-1a 64 of the name; of one that guides a single caller, of the name, a NUL and the caller.
  std::uint64_t name_hash;
  std::uint32_t name_offset;  ///< behind the name's NUL then is the caller
  /// The absolute path ld.so is sent to. The string behind it is the file's original path, empty
  /// where that is the same.
  std::uint32_t target_offset;
};

constexpr std::uint64_t fnv1a(const char* bytes, std::uint64_t length,
                              std::uint64_t hash = 0xCBF29CE484222325ULL) {
  for (std::uint64_t i = 0; i < length; ++i)
    hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x100000001B3ULL;
  return hash;
}

/// From the FNV-1a of an LD_LIBRARY_PATH (library_path.hpp's absolute form; unset is empty); the
/// lowest bit says whether it found any library.
constexpr std::uint32_t search_path(std::uint64_t hash, bool used) {
  return (static_cast<std::uint32_t>(hash ^ (hash >> 32)) & ~std::uint32_t{1}) |
         std::uint32_t{used};
}

}  // namespace heddle::index_format
