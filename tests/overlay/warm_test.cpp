// SPDX-License-Identifier: MIT
// What the daemon is asked, and what it is not asked any more.

#include <gtest/gtest.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// The C library this test runs with: a closure without it is not one.
std::string libc() {
  std::string path;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        if (std::string_view(info->dlpi_name).ends_with("/libc.so.6"))
          *static_cast<std::string*>(out) = info->dlpi_name;
        return 0;
      },
      &path);
  return path;
}

class Warm : public ::testing::Test {
 protected:
  void SetUp() override { HEDDLE_NEEDS_FUSE(); }
  /// A 50-library program whose map's only view is flat.
  void make_farm() {
    FarmOptions options;
    options.libraries = 50;
    options.shape = FarmShape::random;
    options.tag = FarmTag::none;
    farm_ = ElfFarm::build(dir_ / "farm", options);
    for (std::size_t i = 0; i < farm_.libraries.size(); ++i)
      maker_.add_name("app", farm_.sonames[i], farm_.libraries[i]);
    maker_.add_name("app", "app.program", farm_.program);
    maker_.add_name("app", "libc.so.6", libc());
    maker_.write(dir_ / "map");
  }
  RunResult start(const Mount& m, const std::string& program) {
    RunOptions options;
    options.env = {"LD_LIBRARY_PATH=" + m.path()};
    options.deadline = 10s;
    return run({program}, options);
  }

  TestDir dir_;
  ElfFarm farm_;
  MapMaker maker_;
};

TEST_F(Warm, a_second_start_completes_while_the_daemon_is_stopped) {
  make_farm();
  const Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  ASSERT_EQ(start(m, farm_.program).out, farm_.output);
  const Stopped stopped(m.worker());
  const auto again = start(m, farm_.program);
  EXPECT_FALSE(again.timed_out);
  EXPECT_EQ(again.out, farm_.output);
}

TEST_F(Warm, after_the_prefetch_even_the_first_start_asks_nothing) {
  HEDDLE_NEEDS_OPEN_TREE();
  make_farm();
  const Mount m(dir_ / "map", dir_ / "mnt");
  m.wait_for_prefetch();
  const Stopped stopped(m.worker());
  const auto first = start(m, farm_.program);
  EXPECT_FALSE(first.timed_out);
  EXPECT_EQ(first.out, farm_.output);
  // The program itself from the mount, too: execve, and /proc/self/exe is inside.
  const auto inside = start(m, m / "app.program");
  EXPECT_FALSE(inside.timed_out);
  EXPECT_EQ(inside.out, farm_.output);
}

TEST_F(Warm, listing_stat_and_missing_names_ask_nothing_when_warm) {
  make_farm();
  const Mount m(dir_ / "map", dir_ / "mnt");
  const auto look = [&] {
    return run(
        {"sh", "-c",
         "ls -aR \"$0\" >/dev/null; cat \"$0/libnot.so\" 2>/dev/null; stat \"$0\" \"$0/app\" "
         "\"$0/app/libfarm0001.so.1\"; getfattr -d \"$0/app\" 2>/dev/null; realpath \"$0/app\"",
         m.path()});
  };
  const auto before = look();
  const Stopped stopped(m.worker());
  RunOptions options;
  options.deadline = 10s;
  const auto after =
      run({"sh", "-c",
           "ls -a \"$0\" \"$0/app\" >/dev/null; cat \"$0/libnot.so\" 2>/dev/null; stat "
           "\"$0\" \"$0/app\" \"$0/app/libfarm0001.so.1\"; realpath \"$0/app\"",
           m / ""},
          options);
  EXPECT_FALSE(after.timed_out);
  EXPECT_EQ(before.status, after.status);
}

TEST_F(Warm, every_view_is_warm_where_a_generated_file_stands_beside_them) {
  const auto file = write_text_file(dir_ / "file", "content");
  for (const char* view : {"one", "two"}) maker_.add_name(view, "liba.so", file);
  auto content = maker_.content();
  content.generated = {{".heddle/ld.so.cache", "bytes"}};
  value_or_throw(write_map(content, dir_ / "map"));
  const Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  ASSERT_TRUE(fs::exists(m / ".ldc"));
  const Stopped stopped(m.worker());
  RunOptions options;
  options.deadline = 10s;
  const auto seen = run({"stat", "-c", "%s", m / "one/liba.so", m / "two/liba.so"}, options);
  EXPECT_FALSE(seen.timed_out);
  EXPECT_EQ(seen.out, "7\n7\n");
}

TEST_F(Warm, nothing_is_asked_twice) {
  make_farm();
  const Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  ASSERT_EQ(start(m, farm_.program).out, farm_.output);
  const auto reads = m.stat_number("bytes_read");
  EXPECT_GT(reads, 0U);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(start(m, farm_.program).out, farm_.output);
  EXPECT_EQ(m.stat_number("bytes_read"), reads);
  EXPECT_EQ(m.stat_number("open"), 1U);
  EXPECT_EQ(m.stat_number("opendir"), 1U);
  EXPECT_EQ(m.stat_number("flush"), 1U);
  EXPECT_EQ(m.stat_number("release"), 0U);
  EXPECT_EQ(m.stat_number("releasedir"), 0U);
  EXPECT_EQ(m.stat_number("access"), 0U);
}

TEST_F(Warm, the_prefetch_keeps_its_budget_smallest_files_first) {
  HEDDLE_NEEDS_OPEN_TREE();
  write_text_file(dir_ / "src/small", std::string(10'000, 's'));
  write_text_file(dir_ / "src/middle", std::string(50'000, 'm'));
  write_text_file(dir_ / "src/large", std::string(200'000, 'l'));
  maker_.add_directory("v", dir_ / "src");
  const Mount m(maker_.write(dir_ / "map"), dir_ / "mnt", {"--prefetch", "100K"});
  m.wait_for_prefetch();
  const auto before = m.stat_number("bytes_read");
  EXPECT_LT(before, 100'000U);
  EXPECT_EQ(value_or_throw(read_file(m / "large")), std::string(200'000, 'l'));
  const Stopped stopped(m.worker());
  EXPECT_EQ(value_or_throw(read_file(m / "middle")), std::string(50'000, 'm'));
}

TEST_F(Warm, the_prefetch_keeps_nobody_from_unmounting_nor_a_killed_daemon_s_readers_waiting) {
  HEDDLE_NEEDS_OPEN_TREE();
  for (int i = 0; i < 100; ++i)
    write_text_file(dir_ / ("src/lib" + std::to_string(i)), std::string(500'000, 'x'));
  maker_.add_directory("v", dir_ / "src");
  maker_.write(dir_ / "map");
  for (int i = 0; i < 10; ++i) {
    {
      const Mount m(dir_ / "map", dir_ / "mnt");
      EXPECT_EQ(run({"umount", m.path()}).status, 0);
      EXPECT_TRUE(wait_until(10s, [&] { return !is_running(m.pid()); }));
    }
    const Mount m(dir_ / "map", dir_ / "mnt");
    RunOptions options;
    options.deadline = 10s;
    const auto readers =
        run({"sh", "-c",
             "for k in 1 2 3 4; do cat \"$0\"/lib*$k >/dev/null 2>&1 & done; kill -9 $1; wait",
             m.path(), std::to_string(m.pid())},
            options);
    EXPECT_FALSE(readers.timed_out) << i;
    EXPECT_EQ(m.unmount().status, 0);
  }
}

}  // namespace
}  // namespace heddle::test
