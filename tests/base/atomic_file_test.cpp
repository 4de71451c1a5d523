// SPDX-License-Identifier: MIT
#include "base/atomic_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/temp_dir.hpp"

namespace heddle::test {
namespace {

using Special = AtomicFile::Special;

bool is_device(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && S_ISCHR(st.st_mode);
}

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

TEST(AtomicFile, a_device_is_written_to_and_never_replaced) {
  auto null = value_or_throw(AtomicFile::create("/dev/null"));
  ASSERT_EQ(null.temp_path(), "");  // or the machine would lose it
  EXPECT_TRUE(null.write("x"));
  EXPECT_TRUE(null.commit());
  auto full = value_or_throw(AtomicFile::create("/dev/full"));
  const auto written = full.write("x");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ENOSPC);
  for (const char* path : {"/dev/null", "/dev/full"}) EXPECT_TRUE(is_device(path)) << path;
  EXPECT_EQ(AtomicFile::create("/dev/null", Special::refuse).error().code(), EINVAL);
  EXPECT_EQ(AtomicFile::create("/dev").error().code(), EISDIR);
}

TEST(AtomicFile, a_pipe_and_a_descriptor_are_written_to) {
  const auto dir = value_or_throw(TempDir::create("atomic"));
  const auto pipe = dir.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = read_file(pipe).value_or("failed"); });
  {
    auto file = value_or_throw(AtomicFile::create(pipe));
    value_or_throw(file.write("through"));
    value_or_throw(file.commit());
  }
  reader.join();
  EXPECT_EQ(got, "through");
  // A descriptor goes on where it stands.
  const auto path = dir.path() + "/f";
  const Fd fd = value_or_throw(open_file(path, O_RDWR | O_CREAT));
  value_or_throw(write_all(fd.get(), "head ", path));
  auto file = value_or_throw(AtomicFile::create("/dev/fd/" + std::to_string(fd.get())));
  value_or_throw(file.write("tail"));
  value_or_throw(file.commit());
  EXPECT_EQ(read_file(path).value_or(""), "head tail");
  EXPECT_FALSE(AtomicFile::create("/dev/fd/98765"));
}

}  // namespace
}  // namespace heddle::test
