// SPDX-License-Identifier: MIT
// A log may lie where others write: what they put there is not written to.
#include "base/log_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/temp_dir.hpp"

namespace heddle {
namespace {

class LogFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  const TempDir dir_ = value_or_throw(TempDir::create("heddle-log-test"));
};

TEST_F(LogFile, grows_at_its_end) {
  for (const char* line : {"one\n", "two\n"})
    EXPECT_TRUE(write_all(value_or_throw(open_log(path("log"))).get(), line, "log"));
  EXPECT_EQ(read_file(path("log")).value_or(""), "one\ntwo\n");
}

TEST_F(LogFile, is_no_link) {
  value_or_throw(open_file(path("victim"), O_WRONLY | O_CREAT));
  ASSERT_EQ(::symlink(path("victim").c_str(), path("link").c_str()), 0);
  ASSERT_EQ(::symlink(path("none").c_str(), path("dangling").c_str()), 0);
  EXPECT_FALSE(open_log(path("link")));
  EXPECT_FALSE(open_log(path("dangling")));
  EXPECT_FALSE(open_file(path("none"), O_RDONLY)) << "made where the link leads";
}

/// With a reader too, or a program of root's would talk to whoever made it.
TEST_F(LogFile, is_no_fifo_and_no_device) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_FALSE(open_log(path("fifo")));
  const auto reader = value_or_throw(open_file(path("fifo"), O_RDONLY | O_NONBLOCK));
  EXPECT_FALSE(open_log(path("fifo")));
  EXPECT_FALSE(open_log("/dev/null"));
  EXPECT_FALSE(open_log(dir_.path()));
}

}  // namespace
}  // namespace heddle
