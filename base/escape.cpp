// SPDX-License-Identifier: MIT
#include "base/escape.hpp"

#include <algorithm>
#include <cstdint>

namespace heddle {
namespace {

/// Length of the valid UTF-8 sequence at the start of `s`, 0 when there is none (RFC 3629, table
/// 3-7 of the Unicode standard).
std::size_t utf8_length(std::string_view s) {
  auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(s[i]); };
  auto tail = [&](std::size_t i) { return i < s.size() && (byte(i) & 0xC0) == 0x80; };
  const std::uint8_t b = byte(0);
  if (b < 0x80) return 1;
  if (b < 0xC2) return 0;
  if (b < 0xE0) return tail(1) ? 2 : 0;
  if (b < 0xF0) {
    if (!tail(1) || !tail(2)) return 0;
    if (b == 0xE0 && byte(1) < 0xA0) return 0;
    if (b == 0xED && byte(1) > 0x9F) return 0;
    return 3;
  }
  if (b > 0xF4 || !tail(1) || !tail(2) || !tail(3)) return 0;
  if (b == 0xF0 && byte(1) < 0x90) return 0;
  if (b == 0xF4 && byte(1) > 0x8F) return 0;
  return 4;
}

/// U+0080 to U+009F at the start of `s`, which terminals obey: U+009B is ESC [ (ECMA-48, 5.3).
bool is_c1_control(std::string_view s) {
  return s.size() > 1 && s[0] == '\xC2' && static_cast<std::uint8_t>(s[1]) - 0x80U < 0x20;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string escape_for_terminal(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = is_c1_control(text) ? 0 : utf8_length(text);
    const auto b = static_cast<std::uint8_t>(text[0]);
    if (b == '\n')
      out += "\\n";
    else if (b == '\t')
      out += "\\t";
    else if (b == '\\')
      out += "\\\\";
    else if (length == 0 || b < 0x20 || b == 0x7F)
      out += {'\\', 'x', kHex[b >> 4], kHex[b & 15]};
    else
      out += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::optional<std::string> unescape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    if (text[i] == '\\') {
      out += '\\';
    } else if (text[i] == 'n') {
      out += '\n';
    } else if (text[i] == 't') {
      out += '\t';
    } else if (text[i] == 'x' && i + 2 < text.size()) {
      const int high = hex_value(text[i + 1]);
      const int low = hex_value(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      out += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      return std::nullopt;
    }
  }
  return out;
}

std::string quote_for_shell(std::string_view text) {
  std::string out = "'";
  for (const char c : text) c == '\'' ? out += "'\\''" : out += c;
  return out + "'";
}

std::string quote_for_fish(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string to_json_text(std::string_view text) {
  return is_valid_utf8(text) ? std::string(text) : escape_for_terminal(text);
}

}  // namespace heddle
