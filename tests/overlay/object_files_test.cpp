// SPDX-License-Identifier: MIT
#include "fuseovl/files/object_files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

class OriginsTest : public ::testing::Test {
 protected:
  std::string add(const std::string& name, const std::string& content) {
    const auto path = write_text_file(dir_ / name, content);
    maker_.add_file(path);
    return path;
  }
  Origins open(std::size_t pinned = 100) { return open_origins(maker_.content(), pinned); }
  ObjectFiles files(std::size_t pinned = 100) {
    std::vector<std::string> paths;
    for (const auto& object : maker_.content().objects) paths.push_back(object.path);
    return ObjectFiles(open(pinned), paths);
  }
  static std::string content(ObjectFiles& files, ObjectId object) {
    char buffer[100];
    const auto got = files.read(object, buffer, 0, MayBlock::yes);
    return got ? std::string(buffer, *got) : "errno " + std::to_string(got.error());
  }
  void set_time(const std::string& path, time_t seconds) {
    const timespec times[2] = {{seconds, 5}, {seconds, 5}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  TestDir dir_;
  MapMaker maker_;
};

TEST_F(OriginsTest, a_new_mtime_with_the_same_content_is_no_drift) {
  set_time(add("a", "one"), 1000);
  EXPECT_TRUE(open().drifts.empty());
}

TEST_F(OriginsTest, each_kind_of_drift_is_named) {
  // All first: a file made after another was removed may get its inode number.
  const auto longer = add("a_size", "one");
  const auto same_size = add("b_content", "one");
  const auto gone = add("c_gone", "one");
  const auto directory = add("d_directory", "one");
  const auto fifo = add("e_fifo", "one");
  write_text_file(longer, "longer");
  write_text_file(same_size, "two");
  set_time(same_size, 1000);
  ::unlink(gone.c_str());
  ::unlink(directory.c_str());
  ::mkdir(directory.c_str(), 0755);
  ::unlink(fifo.c_str());
  ::mkfifo(fifo.c_str(), 0644);
  const auto origins = open();
  ASSERT_EQ(origins.drifts.size(), 5U);
  EXPECT_EQ(origins.drifts[0].what, "size is 6, was 3");
  EXPECT_EQ(origins.drifts[1].what, "content changed");
  EXPECT_EQ(origins.drifts[2].what, "missing");
  EXPECT_EQ(origins.drifts[3].what, "no longer a regular file");
  EXPECT_EQ(origins.drifts[4].what, "no longer a regular file");
  EXPECT_TRUE(origins.files[0].usable);
  EXPECT_FALSE(origins.files[0].as_mapped);
  EXPECT_FALSE(origins.files[2].usable);
}

TEST_F(OriginsTest, files_beyond_the_limit_are_reopened_and_checked) {
  add("a", "one");
  const auto path = add("b", "two");
  auto files = this->files(1);
  EXPECT_EQ(files.pinned(), 1U);
  EXPECT_EQ(content(files, 1), "two");
  write_text_file(path + ".new", "two");
  const auto before = std::filesystem::last_write_time(path);
  std::filesystem::last_write_time(path + ".new", before);
  std::filesystem::rename(path + ".new", path);
  EXPECT_EQ(content(files, 1), "errno 5");
  EXPECT_EQ(content(files, 0), "one");
}

}  // namespace
}  // namespace heddle::test
