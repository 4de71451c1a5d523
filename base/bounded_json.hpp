// SPDX-License-Identifier: MIT
#pragma once

// JSON of others. nlohmann's parser needs no stack, but copies and dump() recurse, a value of two
// bytes takes up to a hundred of memory, and an ordered_json compares each new key of an object
// with all before. So the text is looked through first, before anything is allocated. Worst: it is
// refused.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace heddle {

struct JsonLimits {
  static constexpr std::size_t kDeepest = 64;
  std::size_t depth = kDeepest;  ///< of arrays and objects in each other; at most kDeepest
  std::size_t values = 1 << 20;  ///< in all, with keys
  std::size_t members = std::size_t{1} << 14;  ///< of one object
};

/// Why `text` is beyond the limits; null: it is not. What is no JSON is the parser's matter.
inline const char* beyond(const JsonLimits& limits, std::string_view text) {
  std::array<std::size_t, JsonLimits::kDeepest + 1> members{};
  std::size_t depth = 0, values = 1;
  for (std::size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '"':
        for (++at; at < text.size() && text[at] != '"'; ++at)
          if (text[at] == '\\') ++at;
        break;
      case '[':
      case '{':
        if (++depth > std::min(limits.depth, JsonLimits::kDeepest)) return "it is nested too deep";
        members[depth] = 0;
        ++values;
        break;
      case ']':
      case '}':
        if (depth > 0) --depth;
        break;
      case ':':
        if (++members[depth] > limits.members) return "an object has too many members";
        ++values;
        break;
      case ',':
        ++values;
        break;
      default:
        break;
    }
    if (values > limits.values) return "it has too many values";
  }
  return nullptr;
}

/// Discarded: no JSON, or beyond the limits. Throws nothing but bad_alloc.
template <class Json>
Json parse_bounded(std::string_view text, const JsonLimits& limits = {}) {
  if (beyond(limits, text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, false);
}

}  // namespace heddle
