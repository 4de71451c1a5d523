// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// A row of processes.tsv by the names of its columns, unescaped, and its metrics.
struct JobRow {
  std::map<std::string, std::string> columns;
  std::vector<std::map<std::string, std::int64_t>> threads;  ///< without those that are NULL

  std::string operator[](const std::string& column) const { return columns.at(column); }
  std::int64_t number(const std::string& column) const { return std::stoll(columns.at(column)); }
  std::int64_t sum(const std::string& key) const {
    std::int64_t out = 0;
    for (const auto& thread : threads)
      if (const auto at = thread.find(key); at != thread.end()) out += at->second;
    return out;
  }
  Strings args() const {
    Strings out;
    std::istringstream words(columns.at("args"));
    for (std::string word; std::getline(words, word, ' ');)
      out.push_back(word == "\\e" ? "" : unescape(word).value_or("?"));
    return out;
  }
};

struct JobArchive {
  nlohmann::json job;
  std::vector<JobRow> rows;
  std::string libraries;

  /// Those of the program `name`.
  std::vector<JobRow> of(const std::string& name) const {
    std::vector<JobRow> out;
    for (const auto& row : rows)
      if (row["exename"] == name) out.push_back(row);
    return out;
  }
};

inline Strings split(const std::string& text, char at) {
  Strings out{""};
  for (const char c : text)
    if (c == at)
      out.emplace_back();
    else
      out.back() += c;
  return out;
}

inline JobArchive read_job(const std::string& path) {
  const auto file = [&](const std::string& name) {
    return run_checked({"tar", "xzOf", path, name}).out;
  };
  JobArchive out;
  out.job = nlohmann::json::parse(file("job.json"));
  out.libraries = file("libraries.tsv");
  const auto lines = lines_of(file("processes.tsv"));
  const auto names = split(lines.at(0), '\t');
  const auto keys = split(names[0].substr(1, names[0].size() - 2), ',');
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const auto fields = split(lines[i], '\t');
    EXPECT_EQ(fields.size(), names.size()) << lines[i];
    JobRow row;
    for (std::size_t k = 1; k < names.size(); ++k)
      row.columns[names[k]] = names[k] == "args" ? fields[k] : unescape(fields[k]).value_or("?");
    const auto values = split(fields[0].substr(1, fields[0].size() - 2), ',');
    EXPECT_EQ(values.size() % keys.size(), 0U);
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (k % keys.size() == 0) row.threads.emplace_back();
      if (values[k] != "NULL") row.threads.back()[keys[k % keys.size()]] = std::stoll(values[k]);
    }
    out.rows.push_back(std::move(row));
  }
  return out;
}

}  // namespace heddle::test
