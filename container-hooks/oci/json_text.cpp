// SPDX-License-Identifier: MIT
#include "container-hooks/oci/json_text.hpp"

namespace heddle::hook {

Result<Json> parse_json(std::string_view text, const std::string& name) {
  auto value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return fail(name, "cannot read", "it is no JSON");
  if (!value.is_object()) return fail(name, "cannot read", "it is no JSON object");
  return value;
}

const Json* member(const Json& value, const std::string& key) {
  if (!value.is_object()) return nullptr;
  const auto found = value.find(key);
  return found == value.end() ? nullptr : &*found;
}

std::optional<std::string> text_member(const Json& value, const std::string& key) {
  const Json* found = member(value, key);
  if (!found || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

std::optional<long> number_member(const Json& value, const std::string& key) {
  const Json* found = member(value, key);
  if (!found || !found->is_number_integer()) return std::nullopt;
  return found->get<long>();
}

bool flag_member(const Json& value, const std::string& key) {
  const Json* found = member(value, key);
  return found && found->is_boolean() && found->get<bool>();
}

std::string to_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace heddle::hook
