// SPDX-License-Identifier: MIT
#pragma once

#include <link.h>

#include "fuseovl/audit/process.hpp"
#include "resolver/map/index_format.hpp"

namespace heddle::audit {

/// Reads an index of any content: each access is bounds-checked, each walk ends, and a damaged
/// index gives no answer or a wrong one, never a fault. A checksum would cost each process more
/// than its lookups.
class IndexView {
 public:
  constexpr IndexView() = default;

  /// False, and the view stays empty, unless `bytes` are a whole index of this version. `device`:
  /// of the file that they were read from.
  bool open(const void* bytes, unsigned long size, unsigned long device = 0);
  /// Chooses the program's table. False: the index does not know it.
  bool choose(std::uint64_t dev, std::uint64_t ino, std::int64_t mtime_ns);
  bool chosen() const { return buckets_ != nullptr; }
  /// The chosen program's index_format::search_path().
  std::uint32_t search_path() const { return search_path_; }
  /// The chosen program's index_format::Program::hwcaps.
  std::uint64_t hwcaps() const { return hwcaps_; }
  /// The tunable's value that the chosen program needs; 0: the default.
  std::uint64_t optional_static_tls() const { return optional_static_tls_; }
  /// Where the chosen program's `name` leads: an absolute path that lives as long as the bytes, or
  /// nullptr. Stateless, for any number of threads.
  const char* target(const char* name) const { return target(name, nullptr); }
  /// Likewise where only `caller` (link_map::l_name) is guided by that name.
  const char* target(const char* name, const char* caller) const;
  /// As target(), for the file with this identity.
  const char* target_of_file(std::uint64_t dev, std::uint64_t ino, std::int64_t mtime_ns) const;
  /// The path of the original file that is served as `target`, an answer of target() or
  /// target_of_file(); nullptr: `target` is that path.
  const char* original(const char* target) const;
  /// Whether `target` is a string of the index.
  bool owns(const char* target) const { return target >= bytes_ && target < bytes_ + size_; }

 private:
  template <class Record>
  const Record* find(const Record* records, std::uint32_t count, std::uint64_t dev,
                     std::uint64_t ino, std::int64_t mtime_ns) const;
  template <class Record>
  const Record* table(std::uint64_t offset, std::uint64_t count) const;
  const char* string_at(std::uint64_t offset) const {
    return offset < size_ ? bytes_ + offset : nullptr;  // the last byte is NUL: it ends in bounds
  }
  const char* path_at(std::uint32_t offset) const {
    const char* text = string_at(offset);
    return text && *text == '/' ? text : nullptr;
  }
  const char* bytes_ = nullptr;
  std::uint64_t size_ = 0;
  std::uint64_t device_ = 0;
  const index_format::Bucket* buckets_ = nullptr;
  std::uint32_t mask_ = 0;
  const index_format::File* files_ = nullptr;
  std::uint32_t file_count_ = 0;
  std::uint32_t optional_static_tls_ = 0;
  std::uint32_t search_path_ = 0;
  std::uint64_t hwcaps_ = 0;
};

/// Whether the chosen program, with this process's LD_LIBRARY_PATH, finds its names where the index
/// sends them.
enum class LibraryPath : unsigned char {
  other,     ///< it does not, or that is not certain: unguided is slower, never wrong
  harmless,  ///< it has the map's directories in their order, and no other directory of it holds
             ///< another file under a name of the index
  same,      ///< the map's own value; found with no system call
};
LibraryPath compare_library_path(const IndexView& index, const StartBlock& start);
/// Whether ld.so has read the tunable glibc.cpu.hwcaps that names were resolved with: it decides
/// which glibc-hwcaps directories are searched.
bool hwcaps_agree(const IndexView& index, const StartBlock& start);

/// The target of a name with a slash that the index does not list: relative, with $ORIGIN, or by
/// another name of a directory. The file is recognised by its identity (one stat): ld.so would map
/// a served file twice, since it has another inode in the mount. nullptr: left to ld.so. Valid
/// until the next call; callers hold ld.so's lock. `moved`: ld.so's $ORIGIN of the requester is a
/// directory of the mount.
const char* find_by_path(const IndexView& index, const char* name, const link_map& requester,
                         bool moved);

}  // namespace heddle::audit
