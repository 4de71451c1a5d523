// SPDX-License-Identifier: MIT
#include "ship/bundle/frame.hpp"

#include <zstd.h>

#include <algorithm>
#include <mutex>

#include "base/task_pool.hpp"
#include "base/try.hpp"
#include "ship/bundle/bundle_file.hpp"

namespace heddle {

bool decode_frame(const BundleFrame& frame, std::string_view stored, std::span<char> piece) {
  if (stored.size() != frame.size || hash_bytes(stored) != frame.hash) return false;
  if (stored.size() == piece.size()) {
    stored.copy(piece.data(), piece.size());
    return true;
  }
  return ::ZSTD_decompress(piece.data(), piece.size(), stored.data(), stored.size()) ==
         piece.size();
}

Result<std::string> read_frame(int file, const std::string& path, const BundleIndex& index,
                               std::size_t number) {
  const BundleFrame& frame = index.frames[number];
  const auto stored = TRY(read_piece(file, path, frame.offset, frame.size));
  std::string out(index.frame_length(number), '\0');
  if (decode_frame(frame, stored, out)) return out;
  return fail(Error::with_code(EBADMSG, path, "damaged bundle",
                               "frame " + std::to_string(number) + " has another hash"));
}

std::vector<std::size_t> damaged_frames(int file, const BundleIndex& index) {
  std::mutex mutex;
  std::vector<std::size_t> out;
  for_each_at_once(index.frames.size(), [&](std::size_t number) {
    if (read_frame(file, {}, index, number)) return;
    const std::lock_guard hold(mutex);
    out.push_back(number);
  });
  std::ranges::sort(out);
  return out;
}

Result<void> check_frames(int file, const std::string& path, const BundleIndex& index) {
  const auto bad = damaged_frames(file, index);
  if (bad.empty()) return {};
  return fail(Error::with_code(EBADMSG, path, "damaged bundle",
                               std::to_string(bad.size()) + " of " +
                                   std::to_string(index.frames.size()) +
                                   " frames have other bytes"));
}

}  // namespace heddle
