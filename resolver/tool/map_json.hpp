// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "resolver/map/map_content.hpp"
#include "resolver/search/closure.hpp"

namespace heddle {

using Json = nlohmann::ordered_json;

/// `value` as text, its strings in the form of to_json_text(): they may hold any bytes until here.
/// Keys must be UTF-8.
std::string to_text(Json value);
void print_json(Json value);

/// A map for `show --json`: everything that the same input gives again. What belongs to one node
/// and moment (dev, ino, ctime, host name) is left out.
Json to_json(const MapContent& content);
Json to_json(const MapObject& object);

/// A library as every `--json` gives it: soname, path, found_by, needed_by, requested_as.
Json library_json(const std::string& soname, const std::string& path, const std::string& found_by,
                  const std::string& needed_by, const std::string& requested_as);
Json library_json(const Closure& closure, std::size_t index);

}  // namespace heddle
