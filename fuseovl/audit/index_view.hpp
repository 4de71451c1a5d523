// SPDX-License-Identifier: MIT
#pragma once

#include <link.h>

#include "fuseovl/audit/process.hpp"
#include "resolver/map/index_format.hpp"

namespace heddle::audit {

/// Reads an index of any content safely: each access is bounds-checked, no walk is endless, and a
/// damaged index gives no answer or a wrong one, never a fault. The whole is not checksummed: that
/// would cost each process more than its lookups.
class IndexView {
 public:
  constexpr IndexView() = default;

  /// False, and the view stays empty, unless this is an index of our version, whole.
  bool open(const void* bytes, unsigned long size);
  /// Chooses the program's table. False: the index does not know it.
  bool choose(std::uint64_t dev, std::uint64_t ino, std::int64_t mtime_ns);
  bool chosen() const { return buckets_ != nullptr; }
  /// Takes choose() and open() back: nothing is known any more, and the bytes may go.
  void forget();
  /// The chosen program's index_format::search_path().
  std::uint32_t search_path() const { return search_path_; }
  /// What the chosen program needs of the tunable; 0: its default is enough.
  std::uint64_t optional_static_tls() const { return optional_static_tls_; }
  /// Where the chosen program's `name` leads: an absolute path that lives as long as the bytes, or
  /// nullptr. Stateless, for any number of threads.
  const char* target(const char* name) const;
  /// As target(), for the file with this identity, by whatever path it was asked for.
  const char* target_of_file(std::uint64_t dev, std::uint64_t ino, std::int64_t mtime_ns) const;
  /// The own path of the file that names are sent to `target` for, or nullptr. Linear.
  const char* origin_of(const char* target) const;

 private:
  template <class Record>
  const Record* table(std::uint64_t offset, std::uint64_t count) const;
  const char* string_at(std::uint32_t offset) const {
    return offset < size_ ? bytes_ + offset : nullptr;  // the last byte is NUL: it ends in bounds
  }
  const char* path_at(std::uint32_t offset) const {
    const char* text = string_at(offset);
    return text && *text == '/' ? text : nullptr;
  }
  const char* bytes_ = nullptr;
  std::uint64_t size_ = 0;
  const index_format::Bucket* buckets_ = nullptr;
  std::uint32_t mask_ = 0;
  const index_format::File* files_ = nullptr;
  std::uint32_t file_count_ = 0;
  std::uint32_t optional_static_tls_ = 0;
  std::uint32_t search_path_ = 0;
};

// What the index cannot answer by a name alone.

/// Whether the chosen program, with the LD_LIBRARY_PATH that ld.so has read, finds its names where
/// the index sends them. The same value as the map's: yes, with no system call. Another one: when
/// the directories in which the map found libraries are still there, all in their order, and no
/// other directory of the list holds a file under a name of the index that is not the very file it
/// leads to. Where that cannot be told the answer is no: unguided is slower, never wrong.
bool library_path_agrees(const IndexView& index, const StartBlock& start);

/// Where a name with a slash leads that the index does not list: relative, through a directory's
/// other name, with $ORIGIN. The file itself is looked at (one stat) and recognised by its
/// identity: ld.so would map a file that is served a second time, since the view shows it under
/// another inode. Nullptr: the name is ld.so's to deal with. The answer holds until the next call;
/// callers hold ld.so's lock.
const char* find_by_path(const IndexView& index, const char* name, const link_map& requester);

}  // namespace heddle::audit
