// SPDX-License-Identifier: MIT
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/temp_dir.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "tests/support/run.hpp"

namespace heddle {

/// The exit status of `body` in a child process.
inline int in_a_child(const std::function<int()>& body) {
  return value_or_throw(value_or_throw(fork_child({}, body)).wait());
}

/// A directory for each case, files that gcc or the case makes in it, and the pool's worker.
class ElfTest : public ::testing::Test {
 protected:
  static std::string env(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr) throw Error(name, "not set", "", "run this test by meson test");
    return value;
  }
  /// Facts without a cache.
  static FactsOptions options(const char* worker = "ELF_WORKER") {
    FactsOptions options;
    options.pool.worker_path = env(worker);
    options.cache = CacheUse::none;
    return options;
  }
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  /// Builds `name` from C source; `flags` as words of gcc's command line.
  std::string build(const std::string& name, std::string_view source,
                    const std::vector<std::string>& flags = {"-shared", "-fPIC"}) const {
    const auto file = write(name + ".c", source);
    std::vector<std::string> argv = {"gcc", "-O0", "-nostartfiles", "-o", path(name), file};
    argv.insert(argv.end(), flags.begin(), flags.end());
    test::run_checked(argv);
    return path(name);
  }

  TempDir dir_ = value_or_throw(TempDir::create("heddle elf test"));
};

}  // namespace heddle
