// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/timing.hpp"

namespace heddle::bench {

/// What was measured and where: the first keys of every result. Load is what the machine did
/// besides.
nlohmann::json environment_facts();

/// A number with what is wanted of it. Nothing here fails on a missed aim: bench tells, tests
/// judge.
struct Figure {
  std::string name;  ///< "start.star.500.ours_to_flat"
  double value = 0;
  std::string unit;  ///< "x", "ms", "MiB"
  std::optional<double> at_most = {};
  std::optional<double> at_least = {};
};

class Results {
 public:
  /// `json`: where all is written, also after each case, so that a run that is killed leaves what
  /// it has measured; empty: nowhere. `limit`: that of all cases together.
  explicit Results(std::string json = {}, std::chrono::seconds limit = std::chrono::hours(24))
      : json_(std::move(json)), end_(std::chrono::steady_clock::now() + limit) {}

  /// Runs one case of a bench. What it throws is kept as its failure, and the next case can run.
  /// `limit`: begin_case(). After the bench's own limit it is only named as not measured.
  void attempt(const std::string& name, const std::function<void()>& measure,
               std::chrono::seconds limit = std::chrono::minutes(4));
  bool has_failed() const { return !failed_.empty(); }
  /// Keeps the samples of `variants` under `group`, and prints their medians as one row.
  void add(const std::string& group, const std::vector<Variant>& variants);
  void add(Figure figure);
  /// A sentence on what could not be measured here, and why.
  void note_absent(const std::string& note) { absent_.push_back(note); }
  /// Median of a variant of a group; throws heddle::Error when it was not measured.
  double median_of(const std::string& group, const std::string& variant) const;

  /// Table of the figures, to stdout.
  void print() const;
  /// All samples and figures. Throws heddle::Error.
  void write_json() const;

 private:
  struct Sampled {
    std::string group;
    std::string variant;
    std::vector<double> samples;
  };
  std::vector<Sampled> sampled_;
  std::vector<Figure> figures_;
  std::vector<std::string> absent_;
  std::vector<std::string> failed_;
  std::map<std::string, double> seconds_;
  std::string json_;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace heddle::bench
