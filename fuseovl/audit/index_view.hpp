// SPDX-License-Identifier: MIT
#pragma once

#include "fuseovl/audit/kernel.hpp"
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

}  // namespace heddle::audit
