// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/store/database.hpp"

namespace heddle::jobs::store {

using Json = nlohmann::ordered_json;

enum class Format { table, json, csv };

/// Rows as aligned columns, a JSON array of objects, or CSV (RFC 4180). Ends with a newline.
std::string render(Format format, const std::vector<std::string>& columns,
                   const std::vector<Row>& rows);
/// A text of the store on one line. Those of processes are stored escaped, and are not once more.
std::string on_terminal(const std::string& text);
Json to_json(const Value& value);
void print(const std::string& text);

/// `1 job`, `2 jobs`.
std::string counted(std::uint64_t count, std::string_view one, std::string_view many);

/// `1.5 GB`, `12.3 s`: a feature's number as people read it.
std::string human(std::string_view feature, double value);

}  // namespace heddle::jobs::store
