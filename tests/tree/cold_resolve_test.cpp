// SPDX-License-Identifier: MIT
// Making a map of libraries on a slow file system: the requests that do not need each other's
// answers are in flight together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/resolve/resolve_fixture.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

class ColdResolve : public ResolveFixture, public ::testing::WithParamInterface<FarmShape> {};

TEST_P(ColdResolve, keeps_32_requests_in_flight) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 120, .shape = GetParam()});
  const auto copy = dir_ / "copy";
  fs::copy(dir_ / "farm", copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  // At the farm's own path, which is in its RPATH.
  SlowMount slow(copy, dir_ / "farm", dir_ / "counts", {.delay_us = 10'000});
  const auto built = resolve({"build", "-o", map_, farm.program});
  EXPECT_EQ(built.status, 0) << built.err;
  const auto counts = slow.reset();
  EXPECT_GE(counts.most_in_flight, 32U);
  EXPECT_EQ(shown()["objects"].size(), farm.libraries.size() + 3);  // the program, libc, ld.so
  ASSERT_EQ(resolve({"verify", map_}).status, 0);
  EXPECT_GE(slow.reset().most_in_flight, 32U);
}

INSTANTIATE_TEST_SUITE_P(OfA, ColdResolve, ::testing::Values(FarmShape::star, FarmShape::random),
                         [](const auto& shape) {
                           return shape.param == FarmShape::star ? "star" : "graph";
                         });

}  // namespace
}  // namespace heddle::test
