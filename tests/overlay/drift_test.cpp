// SPDX-License-Identifier: MIT
// Files that are not, or no longer, what the map says; with few descriptors too.

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/lifecycle_support.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST_F(Lifecycle, content_that_changed_behind_the_same_size_is_found) {
  write_text_file(dir_ / "src/b.so", "cOntent of b.so");
  fs::last_write_time(dir_ / "src/b.so", fs::file_time_type::clock::now() + 1h);
  const auto refused = fs_mount_run({map_, mnt()});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr(dir_ / "src/b.so: content changed"));
}

TEST_F(Lifecycle, drift_names_each_file_and_nothing_is_mounted) {
  write_text_file(dir_ / "src/b.so", "longer than before, really");
  fs::remove(dir_ / "src/c.so");
  const auto refused = fs_mount_run({map_, mnt()});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("src/b.so: size is 26, was 15"));
  EXPECT_THAT(refused.err, HasSubstr("src/c.so: missing"));
  EXPECT_THAT(refused.err, HasSubstr("2 files differ"));
  EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
}

TEST_F(Lifecycle, drift_by_warning_serves_what_is_there_and_leaves_out_what_is_not) {
  write_text_file(dir_ / "src/b.so", "longer than before, really");
  fs::remove(dir_ / "src/c.so");
  const Mount m(map_, mnt(), {"--on-drift", "warn"});
  EXPECT_EQ(value_or_throw(read_file(m / "a.so")), "content of a.so");
  EXPECT_EQ(value_or_throw(read_file(m / "b.so")), "longer than before, really");
  const auto gone = read_file(m / "c.so");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), ENOENT);
  EXPECT_THAT(value_or_throw(read_stats_text(m.path())), HasSubstr("\"what\": \"missing\""));
}

TEST_F(Lifecycle, a_file_replaced_by_rename_goes_on_with_its_old_content) {
  const Mount m(map_, mnt(), {"--prefetch", "0"});
  write_text_file(dir_ / "new", "new content, longer");
  fs::rename(dir_ / "new", dir_ / "src/a.so");
  EXPECT_EQ(value_or_throw(read_file(m / "a.so")), "content of a.so");
  fs::remove(dir_ / "src/b.so");
  EXPECT_EQ(value_or_throw(read_file(m / "b.so")), "content of b.so");
}

TEST_F(Lifecycle, a_file_changed_in_place_answers_eio_and_says_so) {
  const Mount m(map_, mnt(), {"--prefetch", "0", "--log", dir_ / "log"});
  write_text_file(dir_ / "src/a.so", "changed in place");
  const auto changed = read_file(m / "a.so");
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().code(), EIO);
  EXPECT_THAT(value_or_throw(read_file(dir_ / "log")), HasSubstr("a.so: answered with an error"));
  EXPECT_THAT(value_or_throw(read_stats_text(m.path())), HasSubstr("changed in place"));
  EXPECT_EQ(value_or_throw(read_file(m / "b.so")), "content of b.so");
}

TEST_F(Lifecycle, the_counters_command_tells_which_files_differ_now) {
  const Mount m(map_, mnt(), {"--prefetch", "0"});
  const auto now = [&] {
    const auto told = fs_mount_run({"--stats", mnt(), "--json"});
    EXPECT_EQ(told.err, "");
    return nlohmann::json::parse(told.out)["drift_now"];
  };
  EXPECT_EQ(now(), nlohmann::json::array());
  write_text_file(dir_ / "new", "new content, longer");
  fs::rename(dir_ / "new", dir_ / "src/a.so");
  fs::remove(dir_ / "src/b.so");
  const auto drift = now();
  ASSERT_EQ(drift.size(), 2U);
  EXPECT_EQ(drift[0]["path"], dir_ / "src/a.so");
  EXPECT_EQ(drift[0]["what"], "size is 19, was 15");
  EXPECT_EQ(drift[1]["what"], "missing");
}

TEST_F(Lifecycle, a_file_that_no_descriptor_was_left_for_is_checked_when_it_is_reopened) {
  MapMaker maker;
  for (int i = 0; i < 200; ++i)
    write_text_file(dir_ / ("many/lib" + std::to_string(i)), "number " + std::to_string(i));
  maker.add_directory("v", dir_ / "many");
  maker.write(dir_ / "many.map");
  const auto started = run({"sh", "-c", "ulimit -n 64; exec \"$0\" \"$@\"", fs_mount(),
                            "--prefetch", "0", dir_ / "many.map", mnt()});
  ASSERT_EQ(started.status, 0) << started.err;
  // Every file is replaced by one of the same size and times: a new file all the same.
  for (int i = 0; i < 200; ++i) {
    const std::string name = dir_ / ("many/lib" + std::to_string(i));
    const auto time = fs::last_write_time(name);
    write_text_file(name + ".new", std::string(fs::file_size(name), 'x'));
    fs::last_write_time(name + ".new", time);
    fs::rename(name + ".new", name);
  }
  std::size_t old = 0;
  std::size_t refused = 0;
  for (int i = 0; i < 200; ++i) {
    const auto got = read_file(mnt() + "/lib" + std::to_string(i));
    if (got)
      old += *got == "number " + std::to_string(i);
    else
      refused += got.error().code() == EIO;
  }
  const auto stats = nlohmann::json::parse(value_or_throw(read_stats_text(mnt())));
  const auto pinned = stats["pinned"].get<std::size_t>();
  EXPECT_GT(pinned, 0U);
  EXPECT_LT(pinned, 64U);
  EXPECT_EQ(old, pinned);
  EXPECT_EQ(refused, 200 - pinned);
  EXPECT_EQ(stats["drift"].size(), refused);
  EXPECT_EQ(fs_mount_run({"-u", mnt()}).status, 0);
}

}  // namespace
}  // namespace heddle::test
