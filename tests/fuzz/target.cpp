// SPDX-License-Identifier: MIT
#include "tests/fuzz/target.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace heddle::fuzz {

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

std::string_view Input::take(std::size_t count) {
  const auto piece = bytes_.substr(0, count);
  bytes_.remove_prefix(piece.size());
  return piece;
}

std::string text_piece(std::string_view text) {
  const auto size = static_cast<std::uint16_t>(std::min<std::size_t>(text.size(), UINT16_MAX));
  std::string out(reinterpret_cast<const char*>(&size), sizeof(size));
  return out.append(text.substr(0, size));
}

BytesFile::BytesFile(std::string_view bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  value_or_throw(write_all(fd_.get(), bytes, "memfd"));
  (void)::lseek(fd_.get(), 0, SEEK_SET);
}

}  // namespace heddle::fuzz
