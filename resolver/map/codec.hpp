// SPDX-License-Identifier: MIT
#pragma once

// The bytes of a map's values: integers little-endian at their fixed width, a string as u32 length
// and bytes, a list as u32 count and elements. One field list (map_records.cpp) drives both
// directions, so that writer and reader cannot drift apart.

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/checksum.hpp"
#include "base/content_hash.hpp"

namespace heddle::map_format {

class Encoder {
 public:
  template <class... Fields>
  void operator()(const Fields&... fields) {
    (put(fields), ...);
  }
  std::string take() { return std::move(out_); }

 private:
  template <std::integral T>
  void put(T value) {
    using Bits = std::make_unsigned_t<std::conditional_t<std::same_as<T, bool>, std::uint8_t, T>>;
    for (Bits bits = static_cast<Bits>(value), i = 0; i < sizeof(Bits); ++i)
      out_ += static_cast<char>(static_cast<std::uint64_t>(bits) >> (8 * i));
  }
  void put(const std::string& text) {
    put(static_cast<std::uint32_t>(text.size()));
    out_ += text;
  }
  template <class Hash>
  requires std::same_as<Hash, ContentHash> || std::same_as<Hash, Checksum>
  void put(const Hash& hash) {
    out_.append(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
  }
  template <class A, class B>
  void put(const std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <class T>
  void put(const std::vector<T>& list) {
    put(static_cast<std::uint32_t>(list.size()));
    for (const T& element : list) put(element);
  }
  template <class T>
  requires requires(Encoder& coder, const T& record) { fields(coder, record); }
  void put(const T& record) { fields(*this, record); }
  std::string out_;
};

/// Never reads past its bytes: after the first field that does not fit all fields are left empty
/// and complete() is false. The memory it takes is bounded by a small multiple of the input's size.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}
  template <class... Fields>
  void operator()(Fields&... fields) {
    (get(fields), ...);
  }
  /// All fields fitted and no byte is left over.
  bool complete() const { return good_ && rest_.empty(); }

 private:
  std::string_view take(std::size_t size) {
    good_ = good_ && size <= rest_.size();
    if (!good_) return {};
    const std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return out;
  }
  template <std::integral T>
  void get(T& value) {
    std::uint64_t bits = 0;
    unsigned shift = 0;
    for (const char byte : take(sizeof(T))) {
      bits |= std::uint64_t{static_cast<unsigned char>(byte)} << shift;
      shift += 8;
    }
    value = static_cast<T>(bits);
  }
  void get(std::string& text) {
    std::uint32_t size = 0;
    get(size);
    text = take(size);
  }
  template <class Hash>
  requires std::same_as<Hash, ContentHash> || std::same_as<Hash, Checksum>
  void get(Hash& hash) {
    const std::string_view bytes = take(hash.bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i)
      hash.bytes[i] = static_cast<std::uint8_t>(bytes[i]);
  }
  template <class A, class B>
  void get(std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <class T>
  void get(std::vector<T>& list) {
    std::uint32_t count = 0;
    get(count);
    // Each element takes four bytes at least, so a damaged count cannot make us allocate much.
    good_ = good_ && count <= rest_.size() / 4;
    if (!good_) return;
    list.clear();
    for (std::uint32_t i = 0; i < count && good_; ++i) get(list.emplace_back());
  }
  template <class T>
  requires requires(Decoder& coder, T& record) { fields(coder, record); }
  void get(T& record) { fields(*this, record); }
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace heddle::map_format
