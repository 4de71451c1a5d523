// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "tests/support/prelude.hpp"

namespace heddle::test {

/// The staged fs-resolve with a cache of its own.
class ResolveFixture : public ::testing::Test {
 protected:
  using Json = nlohmann::json;
  using Words = std::vector<std::string>;
  void SetUp() override {
    fs_resolve_ = staged_program("fs-resolve");
    if (fs_resolve_.empty()) HEDDLE_SKIP("fs-resolve is not installed in $HEDDLE_STAGE");
    options_.env = {"XDG_CACHE_HOME=" + dir_ / "cache", "LD_LIBRARY_PATH"};
    options_.deadline = std::chrono::seconds(30);
    map_ = dir_ / "a.map";
  }
  RunResult resolve(Words words) const {
    words.insert(words.begin(), fs_resolve_);
    return run(words, options_);
  }
  Json json_of(const Words& words) const { return Json::parse(resolve(words).out); }
  Json shown() const { return json_of({"show", "--json", map_}); }

  TestDir dir_;
  std::string fs_resolve_;
  std::string map_;
  RunOptions options_;
};

}  // namespace heddle::test
