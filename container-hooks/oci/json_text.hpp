// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/bounded_json.hpp"
#include "base/result.hpp"

namespace heddle::hook {

using Json = nlohmann::ordered_json;

/// Parses `text` without exceptions; `name` is for the message. The text may come from a runtime or
/// an image: the accessors below return an empty value for a member that is absent or of another
/// type.
inline Result<Json> parse_json(std::string_view text, const std::string& name) {
  if (const char* why = beyond({}, text)) return fail(name, "cannot read", why);
  auto value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return fail(name, "cannot read", "not JSON");
  if (!value.is_object()) return fail(name, "cannot read", "not a JSON object");
  return value;
}

inline const Json& member(const Json& value, const char* key) {
  static const Json kNone;
  const auto found = value.is_object() ? value.find(key) : value.end();
  return found == value.end() ? kNone : *found;
}
inline std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}
inline std::string text_member(const Json& value, const char* key) {
  return text_of(member(value, key));
}
inline long number_member(const Json& value, const char* key) {
  const Json& found = member(value, key);
  return found.is_number_integer() ? found.get<long>() : 0;
}
inline const Json& list_member(const Json& value, const char* key) {
  static const Json kNone = Json::array();
  const Json& found = member(value, key);
  return found.is_array() ? found : kNone;
}
inline std::vector<std::string> texts_member(const Json& value, const char* key) {
  std::vector<std::string> out;
  for (const Json& text : list_member(value, key))
    if (text.is_string()) out.push_back(text_of(text));
  return out;
}
/// The strings of an object, with their keys.
inline std::vector<std::pair<std::string, std::string>> pairs_member(const Json& value,
                                                                     const char* key) {
  std::vector<std::pair<std::string, std::string>> out;
  if (const Json& found = member(value, key); found.is_object())
    for (const auto& [name, text] : found.items())
      if (text.is_string()) out.emplace_back(name, text_of(text));
  return out;
}

/// On one line or indented; invalid UTF-8 becomes replacement characters.
inline std::string to_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace heddle::hook
