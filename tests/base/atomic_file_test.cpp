// SPDX-License-Identifier: MIT
#include "base/atomic_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/temp_dir.hpp"

namespace heddle::test {
namespace {

TEST(AtomicFile, replaces_a_file_whole_or_not_at_all) {
  const auto dir = value_or_throw(TempDir::create("atomic"));
  const auto path = dir.path() + "/f";
  for (const char* text : {"one", "two"}) {
    auto file = value_or_throw(AtomicFile::create(path));
    value_or_throw(file.write(text));
    if (text == std::string("two")) {
      EXPECT_EQ(read_file(path).value_or(""), "one");
    }
    value_or_throw(file.commit());
    EXPECT_EQ(read_file(path).value_or(""), text);
  }
  { value_or_throw(value_or_throw(AtomicFile::create(path)).write("three")); }
  EXPECT_EQ(read_file(path).value_or(""), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(AtomicFile, what_is_no_file_is_refused_and_stays) {
  const auto dir = value_or_throw(TempDir::create("atomic"));
  const auto pipe = dir.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // Nothing is opened for these names: the machine's own devices are safe.
  for (const std::string& path : {pipe, std::string("/dev/null"), std::string("/dev/fd/1"),
                                  std::string("/proc/self/comm"), std::string("-")})
    EXPECT_EQ(AtomicFile::create(path).error().code(), EINVAL) << path;
  EXPECT_EQ(AtomicFile::create(dir.path()).error().code(), EISDIR);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

}  // namespace
}  // namespace heddle::test
