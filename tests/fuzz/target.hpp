// SPDX-License-Identifier: MIT
#pragma once

// One fuzz target is one source file that defines run() and seeds(). It is linked twice: with
// replay.cpp, by any compiler, for the test suite; and with libFuzzer (`./dev fuzz`).

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle::fuzz {

/// Lets the code under test read `bytes`. A crash, an exception and a failed check() are findings;
/// a refusal is not.
void run(std::string_view bytes);

/// Valid inputs, from which mutations start.
std::vector<std::string> seeds();

/// Aborts with `what` unless it holds.
inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

/// Reads values from the front of some bytes; zeros after the end.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  template <class T>
  T number() {
    T out{};
    const auto piece = take(sizeof(T));
    if (!piece.empty()) std::memcpy(&out, piece.data(), piece.size());
    return out;
  }
  /// A length of two bytes, then the bytes, as far as they go.
  std::string_view text() { return take(number<std::uint16_t>()); }
  std::string_view take(std::size_t count) {
    const auto piece = bytes_.substr(0, count);
    bytes_.remove_prefix(piece.size());
    return piece;
  }
  std::string_view rest() { return take(bytes_.size()); }

 private:
  std::string_view bytes_;
};
/// The input of Input::text().
inline std::string text_piece(std::string_view text) {
  const auto size = static_cast<std::uint16_t>(std::min<std::size_t>(text.size(), UINT16_MAX));
  std::string out(reinterpret_cast<const char*>(&size), sizeof(size));
  return out.append(text.substr(0, size));
}

/// Bytes as an open file, for readers that take a path or a descriptor.
class BytesFile {
 public:
  explicit BytesFile(std::string_view bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    value_or_throw(write_all(fd_.get(), bytes, "memfd"));
    (void)::lseek(fd_.get(), 0, SEEK_SET);
  }
  int fd() const { return fd_.get(); }
  /// Valid as long as this object.
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }

 private:
  Fd fd_;
};

}  // namespace heddle::fuzz
