// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace heddle {

// Fixed-size numbers in the machine's own order: writer and reader are always on one machine (a
// socket to a worker, a cache that is thrown away when it comes from elsewhere).

/// Appends values to a byte string.
class ByteWriter {
 public:
  template <class T>
  void number(T value) {
    static_assert(std::is_integral_v<T>);
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes_.append(raw, sizeof(T));
  }
  void text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    bytes_ += text;
  }
  void raw(std::string_view data) { bytes_ += data; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads them back from bytes that may be anything: past the end it gives zeros and ok() is false
/// from then on, so that one check at the end is enough.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T number() {
    static_assert(std::is_integral_v<T>);
    const auto raw = take(sizeof(T));
    T value{};
    if (raw.size() == sizeof(T)) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  /// A view into the given bytes.
  std::string_view text() { return take(number<std::uint32_t>()); }
  std::string_view take(std::size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  /// A count of items that take at least `least` bytes each: a lying count cannot make the reader
  /// reserve more memory than it was given.
  std::size_t count(std::size_t least) {
    const auto n = number<std::uint32_t>();
    if (n > rest_.size() / least) ok_ = false;
    return ok_ ? n : 0;
  }
  bool ok() const { return ok_; }
  void refuse() { ok_ = false; }
  bool at_end() const { return rest_.empty(); }
  std::size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace heddle
