// SPDX-License-Identifier: MIT
// Which requests reach the daemon, cold and warm.

#include <link.h>

#include "fuseovl/mount/warm_up.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/tree_index.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

/// The C library of this process, for the program's view.
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
    farm_ = ElfFarm::build(dir_ / "farm",
                           {.libraries = 50, .shape = FarmShape::random, .tag = FarmTag::none});
    for (std::size_t i = 0; i < farm_.libraries.size(); ++i)
      maker_.add_name("app", farm_.sonames[i], farm_.libraries[i]);
    maker_.add_name("app", "app.program", farm_.program);
    maker_.add_name("app", "libc.so.6", libc());
    maker_.write(dir_ / "map");
  }
  RunResult start(const Mount& m, const std::string& program) {
    return run({program}, {.env = {"LD_LIBRARY_PATH=" + m.path()}, .deadline = 10s});
  }

  TestDir dir_;
  ElfFarm farm_;
  MapMaker maker_;
};

TEST_F(Warm, second_start_needs_no_daemon) {
  make_farm();
  const Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  ASSERT_EQ(start(m, farm_.program).out, farm_.output);
  const Stopped stopped(m.worker());
  const auto again = start(m, farm_.program);
  EXPECT_FALSE(again.timed_out);
  EXPECT_EQ(again.out, farm_.output);
}

TEST_F(Warm, first_start_after_the_prefetch_needs_no_daemon) {
  HEDDLE_NEEDS_OPEN_TREE();
  make_farm();
  const Mount m(dir_ / "map", dir_ / "mnt");
  m.wait_for_prefetch();
  const Stopped stopped(m.worker());
  const auto first = start(m, farm_.program);
  EXPECT_FALSE(first.timed_out);
  EXPECT_EQ(first.out, farm_.output);
  // The program itself from the mount.
  const auto inside = start(m, m / "app.program");
  EXPECT_FALSE(inside.timed_out);
  EXPECT_EQ(inside.out, farm_.output);
}

TEST_F(Warm, listing_stat_and_missing_names_need_no_daemon) {
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
  const auto after =
      run({"sh", "-c",
           "ls -a \"$0\" \"$0/app\" >/dev/null; cat \"$0/libnot.so\" 2>/dev/null; stat "
           "\"$0\" \"$0/app\" \"$0/app/libfarm0001.so.1\"; realpath \"$0/app\"",
           m / ""},
          {.deadline = 10s});
  EXPECT_FALSE(after.timed_out);
  EXPECT_EQ(before.status, after.status);
}

TEST_F(Warm, views_beside_a_generated_file_are_warmed) {
  const auto file = write_text_file(dir_ / "file", "content");
  for (const char* view : {"one", "two"}) maker_.add_name(view, "liba.so", file);
  auto content = maker_.content();
  content.generated = {{".heddle/ld.so.cache", "bytes"}};
  value_or_throw(write_map(content, dir_ / "map"));
  const Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  ASSERT_TRUE(fs::exists(m / ".ldc"));
  const Stopped stopped(m.worker());
  const auto seen =
      run({"stat", "-c", "%s", m / "one/liba.so", m / "two/liba.so"}, {.deadline = 10s});
  EXPECT_FALSE(seen.timed_out);
  EXPECT_EQ(seen.out, "7\n7\n");
}

TEST_F(Warm, kernel_repeats_no_request) {
  make_farm();
  const Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  ASSERT_EQ(start(m, farm_.program).out, farm_.output);
  const auto reads = m.stat_number("bytes_read");
  EXPECT_GT(reads, 0U);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(start(m, farm_.program).out, farm_.output);
  EXPECT_EQ(m.stat_number("bytes_read"), reads);
  for (const char* once : {"open", "opendir", "flush"}) EXPECT_EQ(m.stat_number(once), 1U) << once;
  for (const char* never : {"release", "releasedir", "access"})
    EXPECT_EQ(m.stat_number(never), 0U) << never;
}

TEST_F(Warm, names_of_trees_need_no_daemon_after_the_prefetch) {
  HEDDLE_NEEDS_OPEN_TREE();
  for (int i = 0; i < 50; ++i) {
    const auto package = dir_ / ("site/p" + std::to_string(i));
    write_text_file(package + "/__init__.py", "x");
    write_text_file(package + "/__pycache__/__init__.cpython-311.pyc", "y");
  }
  maker_.add_tree(dir_ / "site");
  const Mount m(maker_.write(dir_ / "map"), dir_ / "mnt");
  m.wait_for_prefetch();
  EXPECT_EQ(m.stat_number("tree_files_opened"), 0U);
  const auto look =
      "cd \"$0/.t/0\" && ls -RF . | grep -c '^__init__' && stat -c %X */* >/dev/null\n"
      "for i in $(seq 0 49); do for end in cpython-311-$(uname -m)-linux-gnu.so abi3.so so; do\n"
      "[ -e p$i/__init__.$end ] && echo $i; done; done";
  const Stopped stopped(m.worker());
  const auto seen = run({"sh", "-c", look, m.path()}, {.deadline = 10s});
  EXPECT_FALSE(seen.timed_out);
  EXPECT_EQ(seen.out, "100\n") << seen.err;
}

TEST_F(Warm, prefetch_of_many_names_ends_early) {
  HEDDLE_NEEDS_OPEN_TREE();
  constexpr int kDirectories = 300, kFiles = 100;
  const auto named = [](const std::string& name, unsigned mode) {
    TreeIndexWriter::Entry entry;
    entry.name = name;
    entry.mode = static_cast<std::uint16_t>(mode);
    return entry;
  };
  auto root = named("", S_IFDIR | 0755U);  // files that are not read need not be there
  for (int i = 0; i < kDirectories; ++i) {
    auto& directory = root.children.emplace_back(named("d" + std::to_string(i), S_IFDIR | 0755U));
    for (int k = 0; k < kFiles; ++k)
      directory.children.push_back(named("f" + std::to_string(k), S_IFREG | 0644U));
  }
  fs::create_directory(dir_ / "site");
  auto content = maker_.content();
  content.trees = {{dir_ / "site", value_or_throw(TreeIndexWriter::encode(std::move(root)))}};
  value_or_throw(write_map(content, dir_ / "map"));
  const auto begin = std::chrono::steady_clock::now();
  {
    const Mount m(dir_ / "map", dir_ / "mnt");
    m.wait_for_prefetch();
    // Two for each directory, and a few for large ones.
    const auto listed = m.stat_number("readdirplus");
    EXPECT_LT(listed, 2 * kPrefetchedTreeNames / kFiles + 100);
    EXPECT_GT(listed, 2 * kPrefetchedTreeNames / kFiles - 10);
  }
  const auto whole = std::chrono::steady_clock::now() - begin;
  // No unmount waits for its end. One of several, since this machine may be busy.
  bool is_soon = false;
  for (int tries = 0; tries < 10 && !is_soon; ++tries) {
    const Mount m(dir_ / "map", dir_ / "mnt");
    const auto unmounted = std::chrono::steady_clock::now();
    EXPECT_EQ(m.unmount().status, 0);
    EXPECT_TRUE(wait_until(10s, [&] { return !is_running(m.pid()); }));
    is_soon = std::chrono::steady_clock::now() - unmounted < whole / 3;
  }
  EXPECT_TRUE(is_soon);
}

TEST_F(Warm, prefetch_reads_the_smallest_files_within_its_budget) {
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

TEST_F(Warm, prefetch_blocks_neither_unmount_nor_readers_of_a_killed_daemon) {
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
    const auto readers =
        run({"sh", "-c",
             "for k in 1 2 3 4; do cat \"$0\"/lib*$k >/dev/null 2>&1 & done; kill -9 $1; wait",
             m.path(), std::to_string(m.pid())},
            {.deadline = 10s});
    EXPECT_FALSE(readers.timed_out) << i;
    EXPECT_EQ(m.unmount().status, 0);
  }
}

}  // namespace
}  // namespace heddle::test
