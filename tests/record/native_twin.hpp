// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include "tests/record/recorded.hpp"

namespace heddle::test {

/// What fs-record is allowed to differ in: nothing.
inline void expect_same(const RunResult& native, const RunResult& recorded) {
  EXPECT_FALSE(recorded.timed_out);
  EXPECT_EQ(native.status, recorded.status) << recorded.err;
  EXPECT_EQ(native.out, recorded.out);
  EXPECT_EQ(native.err, recorded.err);
}

inline void expect_same_run(const std::vector<std::string>& argv, const RunOptions& options = {}) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const auto native = run(argv, options);
  const auto recorded = record(dir / "run.txt", argv, options);
  expect_same(native, recorded);
  EXPECT_TRUE(read_seen(dir / "run.txt").complete());
}

}  // namespace heddle::test
