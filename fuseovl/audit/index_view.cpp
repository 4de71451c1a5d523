// SPDX-License-Identifier: MIT
#include "fuseovl/audit/index_view.hpp"

namespace heddle::audit {

using index_format::Bucket;
using index_format::Header;
using index_format::Program;

bool IndexView::open(const void* bytes, unsigned long size) {
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
  return true;
}

bool IndexView::choose(std::uint64_t dev, std::uint64_t ino, std::int64_t mtime_ns) {
  if (!bytes_) return false;
  const auto* header = reinterpret_cast<const Header*>(bytes_);
  const std::uint64_t at = header->programs_offset;
  if (at % alignof(Program) != 0 || at > size_ ||
      header->program_count > (size_ - at) / sizeof(Program))
    return false;
  const auto* programs = reinterpret_cast<const Program*>(bytes_ + at);
  // A file that was rebuilt in place stands under its old identity with another mtime: not found.
  std::uint32_t low = 0, high = header->program_count;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    const Program& p = programs[middle];
    const bool less = p.dev != dev   ? p.dev < dev
                      : p.ino != ino ? p.ino < ino
                                     : p.mtime_ns < mtime_ns;
    if (less)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == header->program_count) return false;
  const Program& found = programs[low];
  if (found.dev != dev || found.ino != ino || found.mtime_ns != mtime_ns) return false;
  const std::uint64_t count = std::uint64_t{found.bucket_mask} + 1;
  const std::uint64_t table = found.buckets_offset;
  if ((count & (count - 1)) != 0 || table % alignof(Bucket) != 0 || table > size_ ||
      count > (size_ - table) / sizeof(Bucket))
    return false;
  buckets_ = reinterpret_cast<const Bucket*>(bytes_ + table);
  mask_ = found.bucket_mask;
  optional_static_tls_ = found.optional_static_tls;
  return true;
}

const char* IndexView::target(const char* name) const {
  if (!buckets_) return nullptr;
  const std::uint64_t hash = index_format::fnv1a(name, length(name));
  // A damaged table may hold no empty bucket: look at each at most once.
  for (std::uint64_t step = 0; step <= mask_; ++step) {
    const Bucket& bucket = buckets_[(hash + step) & mask_];
    if (bucket.name_offset == 0) return nullptr;
    if (bucket.name_hash != hash) continue;
    const char* text = string_at(bucket.name_offset);
    if (!text || !equal(text, name)) continue;
    const char* out = string_at(bucket.target_offset);
    return out && *out == '/' ? out : nullptr;
  }
  return nullptr;
}

}  // namespace heddle::audit
