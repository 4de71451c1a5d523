// SPDX-License-Identifier: MIT
#pragma once

// The encoding of all private messages and files: integers and enums little-endian at their fixed
// width, bool as one byte, a string as u32 length and bytes, a list as u32 count and elements, an
// optional as a bool and the value, std::array of bytes as its bytes. A record lists its fields
// once, for both directions:
//
//     struct Request { std::string path; std::uint32_t flags = 0; };
//     template <class Coder, class R>  // R: Request or const Request
//     requires std::same_as<std::remove_const_t<R>, Request>
//     void fields(Coder& coder, R& r) { coder(r.path, r.flags); }
//
// The function is found by argument-dependent lookup.

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle {

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
    auto bits = static_cast<std::uint64_t>(static_cast<Bits>(value));
    char raw[sizeof(T)];
    for (char& byte : raw) {
      byte = static_cast<char>(bits);
      bits >>= 8;
    }
    out_.append(raw, sizeof(raw));
  }
  template <class T>
  requires std::is_enum_v<T>
  void put(T value) { put(static_cast<std::underlying_type_t<T>>(value)); }
  void put(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    out_ += text;
  }
  void put(const std::string& text) { put(std::string_view(text)); }
  template <std::size_t N>
  void put(const std::array<std::uint8_t, N>& bytes) {
    out_.append(reinterpret_cast<const char*>(bytes.data()), N);
  }
  template <class A, class B>
  void put(const std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
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

/// Reads an Encoder's output from untrusted bytes. After the first field that does not fit, all
/// fields are left unchanged and complete() is false. Memory is bounded by a small multiple of the
/// input's size.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}
  template <class... Fields>
  void operator()(Fields&... fields) {
    (get(fields), ...);
  }
  /// All fields so far were complete.
  bool good() const { return good_; }
  /// All fields were complete and no byte is left.
  bool complete() const { return good_ && rest_.empty(); }
  /// Marks the input as invalid; nothing more is read.
  void refuse() { good_ = false; }

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
    const auto raw = take(sizeof(T));
    if (!good_) return;
    std::uint64_t bits = 0;
    for (std::size_t i = sizeof(T); i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(raw[i]);
    value = static_cast<T>(bits);
  }
  /// Accepts any value of the underlying type; the caller checks the range.
  template <class T>
  requires std::is_enum_v<T>
  void get(T& value) {
    std::underlying_type_t<T> number{};
    get(number);
    if (good_) value = static_cast<T>(number);
  }
  void get(std::string& text) {
    std::uint32_t size = 0;
    get(size);
    const auto bytes = take(size);
    if (good_) text = bytes;
  }
  /// A view into the input.
  void get(std::string_view& text) {
    std::uint32_t size = 0;
    get(size);
    const auto bytes = take(size);
    if (good_) text = bytes;
  }
  template <std::size_t N>
  void get(std::array<std::uint8_t, N>& bytes) {
    const auto raw = take(N);
    for (std::size_t i = 0; i < raw.size(); ++i) bytes[i] = static_cast<std::uint8_t>(raw[i]);
  }
  template <class A, class B>
  void get(std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <class T>
  void get(std::optional<T>& value) {
    bool there = false;
    get(there);
    value.reset();
    if (good_ && there) get(value.emplace());
  }
  template <class T>
  void get(std::vector<T>& list) {
    std::uint32_t count = 0;
    get(count);
    // Each element has at least one byte, which bounds what a damaged count allocates.
    if (count > rest_.size()) good_ = false;
    list.clear();
    for (std::uint32_t i = 0; i < count && good_; ++i) get(list.emplace_back());
  }
  template <class T>
  requires requires(Decoder& coder, T& record) { fields(coder, record); }
  void get(T& record) { fields(*this, record); }
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace heddle
