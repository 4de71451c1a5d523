// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

#include "base/result.hpp"
#include "resolver/map/counters_format.hpp"

namespace heddle {

/// The page that guided processes count in, mapped shared. Owns the mapping, not the file.
class CountersFile {
 public:
  /// Makes the file at `path`, of its owner alone: processes of other users do not count.
  static Result<CountersFile> create(const std::string& path);
  CountersFile(CountersFile&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  CountersFile& operator=(CountersFile&&) = delete;
  ~CountersFile();

  Counters& live() noexcept { return *page_; }
  /// A copy at this moment.
  Counters snapshot() const noexcept { return *page_; }

 private:
  explicit CountersFile(Counters* page) : page_(page) {}
  Counters* page_;
};

}  // namespace heddle
