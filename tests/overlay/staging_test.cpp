// SPDX-License-Identifier: MIT
// fs-mount --stage: what was copied to the node is served whatever becomes of the origin.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/origin_fs.hpp"
#include "tests/overlay/staging_support.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Staged, files_are_served_when_their_origin_has_gone) {
  HEDDLE_NEEDS_RESEND();
  const OriginFs origin(dir_ / "src", dir_ / "far");
  make_map(dir_ / "far");
  const Mount m(dir_ / "map", dir_ / "mnt", options());
  ASSERT_EQ(staging(m), "done");
  EXPECT_EQ(m.stat_number("staged"), std::uint64_t{kFiles});
  origin.hang();  // an answer would take for ever
  EXPECT_EQ(right(m), kFiles);
  ::kill(m.worker(), SIGKILL);
  EXPECT_EQ(right(m), kFiles);
  origin.answer();
  origin.disconnect();
  EXPECT_EQ(right(m), kFiles);
  EXPECT_EQ(verify(m.path()).status, 0);
}

TEST_F(Staged, a_program_starts_from_the_origin_meanwhile) {
  const OriginFs origin(dir_ / "src", dir_ / "far");
  make_map(dir_ / "far");
  origin.hang_reads();
  const Mount m(dir_ / "map", dir_ / "mnt", options());
  ASSERT_TRUE(wait_until(5s, [&] { return origin.held() > 0; }));
  EXPECT_EQ(m.stat_text("staging"), "running");
  origin.answer();
  EXPECT_EQ(right(m), kFiles);
  EXPECT_EQ(staging(m), "done");
}

TEST_F(Staged, many_mounts_read_their_origin_once) {
  const OriginFs origin(dir_ / "src", dir_ / "far");
  make_map(dir_ / "far");
  const auto before = origin.bytes_read();
  std::vector<std::unique_ptr<Mount>> mounts;
  for (int i = 0; i < 6; ++i)
    mounts.push_back(
        std::make_unique<Mount>(dir_ / "map", dir_ / ("mnt" + std::to_string(i)), options()));
  for (const auto& m : mounts) EXPECT_EQ(staging(*m), "done");
  const auto after = origin.bytes_read();
  for (int i = 0; i < kFiles; ++i) {
    const auto name = "/file" + std::to_string(i);
    EXPECT_EQ(after.at(name) - before.at(name), content(i).size()) << name;
  }
  for (const auto& m : mounts) EXPECT_EQ(right(*m), kFiles);
  EXPECT_EQ(origin.bytes_read(), after);
}

TEST_F(Staged, what_changes_in_place_goes_on_from_its_copy_or_answers_eio_as_asked) {
  for (const bool keeps : {true, false}) {
    SCOPED_TRACE(keeps);
    make_map(dir_ / "src");
    const Mount m(dir_ / "map", dir_ / "mnt",
                  options("node", {"--on-drift", keeps ? "keep" : "eio"}));
    ASSERT_EQ(staging(m), "done");
    std::ofstream(dir_ / "src/file5", std::ios::app) << "more";
    // Nobody reads it: it is noticed all the same.
    EXPECT_TRUE(wait_until(20s, [&] {
      return read_stats_text(m.path()).value().find("changed in place") != std::string::npos;
    }));
    const auto got = read(m, 5);
    if (keeps) {
      EXPECT_EQ(got.value(), content(5));
      EXPECT_THAT(log(), HasSubstr("its staged copy goes on"));
    } else {
      EXPECT_EQ(got.error().code(), EIO);
    }
    EXPECT_EQ(read(m, 6).value(), content(6));
    write_text_file(dir_ / "src/file5", content(5));
  }
}

TEST_F(Staged, verify_names_what_differs) {
  const Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  for (const std::string& whole : {m.path(), dir_ / "map"}) {
    const auto verified = verify(whole);
    EXPECT_EQ(verified.status, 0);
    EXPECT_EQ(verified.out, whole + ": 16 of 16 files are what the map says\n");
  }
  // Same size and time: no stamp tells.
  const auto path = dir_ / "src/file7";
  const auto time = fs::last_write_time(path);
  std::fstream(path) << "X";
  fs::last_write_time(path, time);
  ::unlink((dir_ / "src/file8").c_str());
  const auto files = verify(dir_ / "map");
  EXPECT_EQ(files.status, 1);
  EXPECT_THAT(files.out, HasSubstr(path + ": SHA-256 is "));
  EXPECT_THAT(files.out, HasSubstr("file8: cannot open: No such file"));
  EXPECT_THAT(files.out, HasSubstr(": 14 of 16 files are what the map says\n"));
  EXPECT_THAT(files.out, Not(HasSubstr("file9")));
  ::posix_fadvise(value_or_throw(open_file(m / "file7", O_RDONLY)).get(), 0, 0,
                  POSIX_FADV_DONTNEED);
  const auto served = verify(m.path());
  EXPECT_EQ(served.status, 1) << served.out;
  EXPECT_THAT(served.out, HasSubstr("/v/file7"));
  EXPECT_THAT(served.out, Not(HasSubstr("file8"))) << "it is pinned";
  EXPECT_EQ(served.err, "");
  EXPECT_EQ(verify(dir_ / "src").status, 3);
  EXPECT_EQ(verify(dir_ / "none").status, 3);
}

TEST_F(Staged, verify_says_that_what_is_served_is_right_though_its_origin_is_another) {
  const Mount m(dir_ / "map", dir_ / "mnt", options());
  ASSERT_EQ(staging(m), "done");
  EXPECT_EQ(verify(m.path()).err, "");
  std::ofstream(dir_ / "src/file5", std::ios::app) << "more";
  EXPECT_TRUE(wait_until(20s, [&] {
    return read_stats_text(m.path()).value().find("changed in place") != std::string::npos;
  }));
  const auto served = verify(m.path());
  EXPECT_EQ(served.status, 0) << served.out;
  EXPECT_EQ(std::count(served.out.begin(), served.out.end(), '\n'), 1) << served.out;
  EXPECT_THAT(served.err, HasSubstr("serves what the map says: 1 file has changed"));
}

}  // namespace
}  // namespace heddle::test
