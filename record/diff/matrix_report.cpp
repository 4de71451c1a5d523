// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "record/diff/matrix.hpp"

namespace heddle::diff {
namespace {

std::string number(double value) { return fmt::format("{:.4g}", value); }

/// The tree as folders are drawn; a joint shows the height at which its two sides meet.
void draw(std::string& out, const Matrix& m, std::size_t node, const std::string& lead,
          std::string_view branch, std::string_view below) {
  out += lead;
  out += branch;
  if (node < m.size()) {
    out += fmt::format("{} {}\n", node + 1, escape_for_terminal(m.runs[node].name));
    return;
  }
  const Joint& joint = m.tree[node - m.size()];
  out += number(joint.height) + "\n";
  const std::string next = lead + std::string(below);
  draw(out, m, joint.left, next, "├─ ", "│  ");
  draw(out, m, joint.right, next, "└─ ", "   ");
}

}  // namespace

std::string newick(const Matrix& m) {
  const auto height = [&](std::size_t node) {
    return node < m.size() ? 0.0 : m.tree[node - m.size()].height;
  };
  const auto write = [&](const auto& self, std::size_t node, double above) -> std::string {
    std::string name;
    if (node < m.size()) {
      for (const char c : to_json_text(m.runs[node].name))
        name += c == '\'' ? "''" : std::string(1, c);
      name = "'" + name + "'";
    } else {
      const Joint& joint = m.tree[node - m.size()];
      name = "(" + self(self, joint.left, joint.height) + "," +
             self(self, joint.right, joint.height) + ")";
    }
    // Half the distance on either side: leaves are then as far apart as their joint says.
    return above < 0 ? name : fmt::format("{}:{:g}", name, (above - height(node)) / 2);
  };
  return m.size() == 0 ? ";" : write(write, m.size() + m.tree.size() - 1, -1) + ";";
}

std::string matrix_text(const Matrix& m, const ReportOptions& options) {
  std::string out;
  const std::size_t width =
      std::max(fmt::formatted_size("{}", m.greatest()), fmt::formatted_size("{}", m.size())) + 1;
  const std::size_t label = fmt::formatted_size("{}", m.size());
  out += fmt::format("{:>{}}", "", label);
  for (std::size_t j = 0; j < m.size(); ++j) out += fmt::format("{:>{}}", j + 1, width);
  out += '\n';
  for (std::size_t i = 0; i < m.size(); ++i) {
    out += fmt::format("{:>{}}", i + 1, label);
    for (std::size_t j = 0; j < m.size(); ++j) out += fmt::format("{:>{}}", m.at(i, j), width);
    out += fmt::format("  {}\t{}\n", escape_for_terminal(m.runs[i].name),
                       run_text(m.runs[i], m.runs[i].sequence.size()));
  }
  out += "tree (mean distance where branches join):\n";
  if (m.size() > 0) draw(out, m, m.size() + m.tree.size() - 1, "", "", "");
  for (const std::size_t i : m.outliers)
    out += fmt::format("outlier: {}, {} edits from its nearest\n",
                       escape_for_terminal(m.runs[i].name), m.lonely[i]);
  if (m.outliers.empty()) out += "outliers: none\n";
  return out + fmt::format("compared: {}\n", rules_text(options));
}

std::string matrix_json(const Matrix& m, const ReportOptions& options) {
  nlohmann::ordered_json j;
  j["runs"] = nlohmann::ordered_json::array();
  j["distances"] = nlohmann::ordered_json::array();
  j["normalised"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < m.size(); ++i) {
    const Run& run = m.runs[i];
    j["runs"].push_back({{"name", to_json_text(run.name)},
                         {"events", run.sequence.size()},
                         {"complete", run.complete()},
                         {"lonely", m.lonely[i]}});
    nlohmann::ordered_json row, normal;
    for (std::size_t k = 0; k < m.size(); ++k) {
      row.push_back(m.at(i, k));
      normal.push_back(m.normalised(i, k));
    }
    j["distances"].push_back(std::move(row));
    j["normalised"].push_back(std::move(normal));
  }
  j["max_distance"] = m.greatest();
  j["tree"] = nlohmann::ordered_json::array();
  for (const Joint& joint : m.tree)
    j["tree"].push_back({{"left", joint.left}, {"right", joint.right}, {"height", joint.height}});
  j["newick"] = newick(m);
  j["order"] = m.order();
  j["outliers"] = nlohmann::ordered_json::array();
  for (const std::size_t i : m.outliers) j["outliers"].push_back(to_json_text(m.runs[i].name));
  j["ops"] = options.ops;
  j["normalisers"] = nlohmann::ordered_json::array();
  for (const std::string& rule : options.rules) j["normalisers"].push_back(to_json_text(rule));
  j["by"] = options.by_process ? "process" : "run";
  return j.dump(2) + "\n";
}

}  // namespace heddle::diff
