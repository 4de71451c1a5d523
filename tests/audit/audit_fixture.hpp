// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include "tests/audit/guided_world.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// Libraries and programs of one's own, and worlds that map them.
class Audit : public ::testing::Test {
 protected:
  TestDir dir_;

  std::string library(const std::string& name, const std::string& source,
                      std::vector<std::string> flags = {}, const std::string& language = "c") {
    const std::string file = name.substr(name.rfind('/') + 1);
    flags.push_back("-Wl,-soname," + file);
    return build_library({dir_ / name, source, flags, language});
  }
  std::string program(const std::string& source, std::vector<std::string> flags = {},
                      const std::string& language = "c") {
    return build_program({dir_ / "app", source, flags, language});
  }
  /// A world that maps `app` with what it needs and `more`.
  GuidedWorld world(const std::string& app, const GuidedWorld::Libraries& more = {}) {
    GuidedWorld out(dir_ / "world");
    out.add_program(app, more);
    out.publish();
    return out;
  }
};

}  // namespace heddle::test
