// SPDX-License-Identifier: MIT
// Where a report or a map may go: what is no regular file is never replaced by one.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>

#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/temp_dir.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

class OutputFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(dir_.path()), fs::directory_iterator()));
  }
  const TempDir dir_ = value_or_throw(TempDir::create("heddle-output-test"));
};

TEST_F(OutputFile, a_pipe_is_written_to_and_stays_a_pipe) {
  ASSERT_EQ(::mkfifo(path("p").c_str(), 0600), 0);
  auto reader = open_file(path("p"), O_RDONLY | O_NONBLOCK);
  ASSERT_TRUE(write_output(path("p"), "text"));
  EXPECT_EQ(read_all(reader->get(), "p").value_or(""), "text");
  EXPECT_TRUE(fs::is_fifo(path("p")));
}

TEST_F(OutputFile, a_device_behind_a_link_is_written_to_and_the_link_stays) {
  // A node of our own: a slip must not cost the machine its /dev/null.
  if (::mknod(path("null").c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0 ||
      !open_file(path("null"), O_WRONLY))
    GTEST_SKIP() << "device nodes need root";
  fs::create_symlink("null", path("link"));
  EXPECT_TRUE(write_output(path("link"), "text"));
  EXPECT_EQ(AtomicFile::create(path("link")).error().code(), EINVAL);
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_TRUE(fs::is_character_file(path("null")));
}

TEST_F(OutputFile, a_full_device_is_said) {
  if (::mknod(path("full").c_str(), S_IFCHR | 0666, makedev(1, 7)) != 0 ||
      !open_file(path("full"), O_WRONLY))
    GTEST_SKIP() << "device nodes need root";
  const auto written = write_output(path("full"), "text");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ENOSPC);
}

TEST_F(OutputFile, a_link_to_a_file_stays_and_the_file_is_replaced) {
  ASSERT_TRUE(write_output(path("file"), "old"));
  fs::create_symlink("file", path("link"));
  ASSERT_TRUE(write_output(path("link"), "new"));
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("file")).value_or(""), "new");
}

TEST_F(OutputFile, a_descriptors_name_is_written_behind_what_stands_there) {
  auto out = open_file(path("out"), O_WRONLY | O_CREAT);
  ASSERT_TRUE(write_all(out->get(), "of the program\n", "out"));
  ASSERT_TRUE(write_output("/proc/self/fd/" + std::to_string(out->get()), "report\n"));
  EXPECT_EQ(read_file(path("out")).value_or(""), "of the program\nreport\n");
  EXPECT_EQ(named_descriptor("/dev/stdout"), 1);
  EXPECT_EQ(named_descriptor("/dev/fd/63"), 63);
  EXPECT_EQ(named_descriptor("/dev/fd/6x"), std::nullopt);
  EXPECT_EQ(named_descriptor("/dev/null"), std::nullopt);
}

TEST_F(OutputFile, directories_and_dangling_links_are_errors_and_leave_nothing) {
  fs::create_symlink("nothing", path("dangling"));
  EXPECT_FALSE(write_output(path("dangling"), "x"));
  EXPECT_FALSE(write_output(dir_.path(), "x"));
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFile, an_atomic_one_is_replaced_whole_or_not_at_all) {
  const auto file_path = path("f");
  for (const char* text : {"one", "two"}) {
    auto file = value_or_throw(AtomicFile::create(file_path));
    value_or_throw(file.write(text));
    if (text == std::string("two")) {
      EXPECT_EQ(read_file(file_path).value_or(""), "one");
    }
    value_or_throw(file.commit());
    EXPECT_EQ(read_file(file_path).value_or(""), text);
  }
  { value_or_throw(value_or_throw(AtomicFile::create(file_path)).write("three")); }
  EXPECT_EQ(read_file(file_path).value_or(""), "two");
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFile, an_atomic_one_replaces_nothing_that_is_no_file) {
  const auto pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // Nothing is opened for these names: the machine's own devices are safe.
  for (const std::string& name : {pipe, std::string("/dev/null"), std::string("/dev/fd/1"),
                                  std::string("/proc/self/comm"), std::string("-")})
    EXPECT_EQ(AtomicFile::create(name).error().code(), EINVAL) << name;
  EXPECT_EQ(AtomicFile::create(dir_.path()).error().code(), EISDIR);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFile, a_log_grows_at_its_end) {
  for (const char* line : {"one\n", "two\n"})
    EXPECT_TRUE(write_all(value_or_throw(open_log(path("log"))).get(), line, "log"));
  EXPECT_EQ(read_file(path("log")).value_or(""), "one\ntwo\n");
}

TEST_F(OutputFile, a_log_is_no_link) {
  value_or_throw(open_file(path("victim"), O_WRONLY | O_CREAT));
  ASSERT_EQ(::symlink(path("victim").c_str(), path("link").c_str()), 0);
  ASSERT_EQ(::symlink(path("none").c_str(), path("dangling").c_str()), 0);
  EXPECT_FALSE(open_log(path("link")));
  EXPECT_FALSE(open_log(path("dangling")));
  EXPECT_FALSE(open_file(path("none"), O_RDONLY)) << "made where the link leads";
}

/// With a reader too, or a program of root's would talk to whoever made it.
TEST_F(OutputFile, a_log_is_no_fifo_and_no_device) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_FALSE(open_log(path("fifo")));
  const auto reader = value_or_throw(open_file(path("fifo"), O_RDONLY | O_NONBLOCK));
  EXPECT_FALSE(open_log(path("fifo")));
  EXPECT_FALSE(open_log("/dev/null"));
  EXPECT_FALSE(open_log(dir_.path()));
}

}  // namespace
}  // namespace heddle
