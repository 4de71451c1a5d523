// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>
#include <time.h>

#include <compare>
#include <cstdint>
#include <functional>

namespace heddle {

/// A file's identity as ld.so compares it (glibc elf/dl-load.c, _dl_file_id_match_p).
struct FileId {
  std::uint64_t dev = 0;
  std::uint64_t ino = 0;
  auto operator<=>(const FileId&) const = default;
};

/// Identity and version of a file on this node. Times are nanoseconds since the epoch.
struct FileStamp {
  FileId id;
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;
  auto operator<=>(const FileStamp&) const = default;
};

/// Since the epoch; of a timespec or a statx_timestamp.
inline std::int64_t nanoseconds(const auto& time) {
  return time.tv_sec * INT64_C(1'000'000'000) + time.tv_nsec;
}
inline std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now);
}

inline FileId file_id(const struct stat& st) { return {st.st_dev, st.st_ino}; }
inline FileStamp file_stamp(const struct stat& st) {
  return {file_id(st), static_cast<std::uint64_t>(st.st_size), nanoseconds(st.st_mtim),
          nanoseconds(st.st_ctim)};
}

}  // namespace heddle

template <>
struct std::hash<heddle::FileId> {
  std::size_t operator()(const heddle::FileId& id) const noexcept {
    return std::hash<std::uint64_t>{}(id.ino * 0x9E3779B97F4A7C15ULL ^ id.dev);
  }
};
