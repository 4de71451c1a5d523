// SPDX-License-Identifier: MIT
#include "fuseovl/audit/index_view.hpp"

#include "fuseovl/audit/kernel.hpp"

namespace heddle::audit {

using index_format::Bucket;
using index_format::File;
using index_format::Header;
using index_format::Program;

bool IndexView::open(const void* bytes, unsigned long size, unsigned long device) {
  if (size < sizeof(Header)) return false;
  const auto* header = static_cast<const Header*>(bytes);
  for (unsigned i = 0; i < sizeof header->magic; ++i)
    if (header->magic[i] != index_format::kMagic[i]) return false;
  if (header->version != index_format::kVersion || header->file_size > size ||
      header->file_size <= sizeof(Header) || header->file_size > UINT32_MAX)
    return false;
  const auto* text = static_cast<const char*>(bytes);
  if (text[header->file_size - 1] != '\0') return false;
  bytes_ = text;
  size_ = header->file_size;
  device_ = device;
  return true;
}

namespace {

/// The record of a sorted table with this identity, or nullptr. A file that was rebuilt in place
/// has another mtime, so it is not found.
template <class Record>
const Record* find_file(const Record* records, std::uint32_t count, std::uint64_t dev,
                        std::uint64_t ino, std::int64_t mtime_ns) {
  std::uint32_t low = 0, high = count;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    const Record& at = records[middle];
    const bool less = at.dev != dev   ? at.dev < dev
                      : at.ino != ino ? at.ino < ino
                                      : at.mtime_ns < mtime_ns;
    if (less)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == count) return nullptr;
  const Record& found = records[low];
  return found.dev == dev && found.ino == ino && found.mtime_ns == mtime_ns ? &found : nullptr;
}

}  // namespace

/// find_file(), also for a file of the index's own mount.
template <class Record>
const Record* IndexView::find(const Record* records, std::uint32_t count, std::uint64_t dev,
                              std::uint64_t ino, std::int64_t mtime_ns) const {
  const Record* found = find_file(records, count, dev, ino, mtime_ns);
  if (found || dev != device_) return found;
  return find_file(records, count, index_format::kThisMount, ino, mtime_ns);
}

template <class Record>
const Record* IndexView::table(std::uint64_t offset, std::uint64_t count) const {
  if (offset % alignof(Record) != 0 || offset > size_ || count > (size_ - offset) / sizeof(Record))
    return nullptr;
  return reinterpret_cast<const Record*>(bytes_ + offset);
}

bool IndexView::choose(std::uint64_t dev, std::uint64_t ino, std::int64_t mtime_ns) {
  if (!bytes_) return false;
  const auto* header = reinterpret_cast<const Header*>(bytes_);
  const auto* programs = table<Program>(header->programs_offset, header->program_count);
  if (!programs) return false;
  const Program* found = find(programs, header->program_count, dev, ino, mtime_ns);
  if (!found) return false;
  const std::uint64_t count = std::uint64_t{found->bucket_mask} + 1;
  const auto* buckets = table<Bucket>(found->buckets_offset, count);
  if (!buckets || (count & (count - 1)) != 0) return false;
  buckets_ = buckets;
  mask_ = found->bucket_mask;
  optional_static_tls_ = found->optional_static_tls;
  search_path_ = found->search_path;
  hwcaps_ = found->hwcaps;
  files_ = table<File>(found->files_offset, found->file_count);
  file_count_ = files_ ? found->file_count : 0;
  return true;
}

const char* IndexView::target(const char* name, const char* caller) const {
  if (!buckets_) return nullptr;
  std::uint64_t hash = index_format::fnv1a(name, length(name));
  if (caller) hash = index_format::fnv1a(caller, length(caller), index_format::fnv1a("", 1, hash));
  // A damaged table may have no empty bucket.
  for (std::uint64_t step = 0; step <= mask_; ++step) {
    const Bucket& bucket = buckets_[(hash + step) & mask_];
    if (bucket.name_offset == 0) return nullptr;
    if (bucket.name_hash != hash) continue;
    const char* text = string_at(bucket.name_offset);
    if (!text || !equal(text, name)) continue;
    const char* rest = string_at(std::uint64_t{bucket.name_offset} + length(text) + 1);
    if (caller && !(rest && equal(rest, caller))) continue;
    return path_at(bucket.target_offset);
  }
  return nullptr;
}

const char* IndexView::target_of_file(std::uint64_t dev, std::uint64_t ino,
                                      std::int64_t mtime_ns) const {
  const File* found = find(files_, file_count_, dev, ino, mtime_ns);
  return found ? path_at(found->target_offset) : nullptr;
}

const char* IndexView::original(const char* target) const {
  if (!owns(target)) return nullptr;
  return path_at(static_cast<std::uint32_t>(target - bytes_ + length(target) + 1));
}

}  // namespace heddle::audit
