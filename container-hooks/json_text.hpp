// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/result.hpp"

namespace heddle {

using Json = nlohmann::ordered_json;

/// Parses `text` without exceptions; `name` is for the message. What comes from a runtime is
/// checked before it is used: each accessor below gives nothing where the type is another.
Result<Json> parse_json(std::string_view text, const std::string& name);

/// The member `key` of an object; nullptr: no object, or no such member.
const Json* member(const Json& value, const std::string& key);
std::optional<std::string> text_member(const Json& value, const std::string& key);
std::optional<long> number_member(const Json& value, const std::string& key);
bool flag_member(const Json& value, const std::string& key);

/// On one line or indented; text that is no UTF-8 is written with replacement characters, never
/// thrown at.
std::string to_text(const Json& value, int indent = -1);

}  // namespace heddle
