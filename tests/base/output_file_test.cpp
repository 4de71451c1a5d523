// SPDX-License-Identifier: MIT
// Where a report or a map may go: what is no regular file is never replaced by one.
#include "base/output_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>

#include "base/atomic_file.hpp"
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

TEST_F(OutputFile, a_file_is_made_or_replaced_whole) {
  ASSERT_TRUE(write_output(path("a"), "one"));
  ASSERT_TRUE(write_output(path("a"), "2"));
  EXPECT_EQ(read_file(path("a")).value_or(""), "2");
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFile, a_pipe_is_written_to_and_stays_a_pipe) {
  ASSERT_EQ(::mkfifo(path("p").c_str(), 0600), 0);
  auto reader = open_file(path("p"), O_RDONLY | O_NONBLOCK);
  ASSERT_TRUE(write_output(path("p"), "text"));
  EXPECT_EQ(read_all(reader->get(), "p").value_or(""), "text");
  EXPECT_TRUE(fs::is_fifo(path("p")));
  EXPECT_FALSE(AtomicFile::create(path("p")));
  EXPECT_TRUE(fs::is_fifo(path("p")));
}

TEST_F(OutputFile, a_device_behind_a_link_is_written_to_and_the_link_stays) {
  // A node of our own: a slip must not cost the machine its /dev/null.
  if (::mknod(path("null").c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0 ||
      !open_file(path("null"), O_WRONLY))
    GTEST_SKIP() << "device nodes need root";
  fs::create_symlink("null", path("link"));
  EXPECT_TRUE(write_output(path("link"), "text"));
  const auto file = AtomicFile::create(path("link"));
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().message().find("not a regular file"), std::string::npos);
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

}  // namespace
}  // namespace heddle
