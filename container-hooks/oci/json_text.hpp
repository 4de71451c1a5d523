// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/result.hpp"

namespace heddle::hook {

using Json = nlohmann::ordered_json;

/// Parses `text` without exceptions; `name` is for the message. The accessors below return nothing
/// where a member is absent or of another type: the text may come from a runtime or an image.
Result<Json> parse_json(std::string_view text, const std::string& name);

/// The member `key` of an object; nullptr: no object, or no such member.
const Json* member(const Json& value, const std::string& key);
std::optional<std::string> text_member(const Json& value, const std::string& key);
std::optional<long> number_member(const Json& value, const std::string& key);
bool flag_member(const Json& value, const std::string& key);

/// On one line or indented; text that is no UTF-8 is written with replacement characters, never
/// thrown at.
std::string to_text(const Json& value, int indent = -1);

}  // namespace heddle::hook
