// SPDX-License-Identifier: MIT
#pragma once

// What tests that run the installed programs include and name.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/child.hpp"
#include "base/fd.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

namespace fs = std::filesystem;
using namespace std::literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Strings = std::vector<std::string>;

inline Strings operator+(Strings words, const Strings& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline Strings lines_of(const std::string& text) {
  Strings out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

/// Names the cases of a parameterized suite by their parameter, a string.
inline constexpr auto kParameterName = [](const auto& each) { return std::string(each.param); };

/// Starts `program` with `argv` in the background, with its stdio on /dev/null.
inline Child start_silently(const std::string& program, const Strings& argv,
                            std::optional<Strings> environment = {}) {
  const auto null = value_or_throw(open_file("/dev/null", O_RDWR));
  SpawnOptions options{
      {{null.get(), STDIN_FILENO}, {null.get(), STDOUT_FILENO}, {null.get(), STDERR_FILENO}}};
  options.environment = std::move(environment);
  return value_or_throw(spawn(program, argv, options));
}

}  // namespace heddle::test
