// SPDX-License-Identifier: MIT
#include "fuseovl/files/file_work.hpp"

#include <linux/openat2.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/file_systems.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/session/shared.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

std::string_view path_of(std::size_t) { return "/x"; }

TEST(FileWork, killed_process_is_an_error) {
  EXPECT_THROW(work_on_files(5, {.limit = 60s,
                                 .work =
                                     [](std::size_t piece, WorkPlace&) {
                                       if (piece == 3) ::raise(SIGKILL);
                                     },
                                 .path_of = path_of}),
               Error);
}

TEST(FileWork, all_files_arrive_when_one_packet_cannot_hold_them) {
  const auto before = std::filesystem::current_path();
  auto results = work_on_files(
      600, {.limit = 60s,
            .work = [](std::size_t, WorkPlace& place) { place.give(open_file(".", 0).value()); },
            .path_of = path_of});
  for (const auto& result : results)
    EXPECT_EQ(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(result.file.get())),
              "/");
  EXPECT_EQ(std::filesystem::current_path(), before);
}

TEST(FileWork, piece_that_can_be_done_at_once_needs_no_child) {
  const Shared<pid_t> first, second;
  const auto results =
      work_on_files(2, {.limit = 60s,
                        .work = [&](std::size_t, WorkPlace&) { *second = ::getpid(); },
                        .path_of = path_of,
                        .at_once =
                            [&](std::size_t piece, WorkPlace& place) {
                              if (piece == 1) return false;
                              *first = ::getpid();
                              place.give(open_file("/", 0).value());
                              return true;
                            }});
  EXPECT_EQ(*first, ::getpid());
  EXPECT_NE(*second, ::getpid());
  EXPECT_TRUE(results[0].file);
  for (const auto& result : results) EXPECT_EQ(result.state, WorkResult::State::done);
}

/// Files of the root directory's file system, where that is local and the kernel can look names up
/// in its caches alone.
class LocalRootTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Fd root = open_file("/", O_PATH).value();
    const Fd directory = open_file(dir_.path(), O_PATH).value();
    if (locality_of(root.get()) < Locality::local) HEDDLE_SKIP("the root directory is not local");
    if (!LocalRoot().has(directory.get())) HEDDLE_SKIP("TMPDIR is on another file system");
    write_text_file(file_, "text");
    if (!opens(file_)) HEDDLE_SKIP("no RESOLVE_CACHED (before Linux 5.12)");
  }
  static bool opens(const std::string& path, std::uint64_t resolve = 0) {
    return static_cast<bool>(LocalRoot().open(path, O_RDONLY, resolve));
  }
  /// Of children that have ended.
  static long page_faults() {
    rusage used{};
    ::getrusage(RUSAGE_CHILDREN, &used);
    return used.ru_minflt;
  }

  TestDir dir_;
  const std::string file_ = dir_ / "file";
};

TEST_F(LocalRootTest, names_that_lead_elsewhere_are_not_opened) {
  for (const char* target : {"/proc/self/status", "/dev/null", "/proc/self/fd/0"}) {
    SCOPED_TRACE(target);
    fs::remove(dir_ / "link");
    fs::create_symlink(target, dir_ / "link");
    EXPECT_FALSE(opens(target));
    EXPECT_FALSE(opens(dir_ / "link"));
  }
  fs::create_symlink("file", dir_ / "inside");
  EXPECT_TRUE(opens(dir_ / "inside"));
  EXPECT_FALSE(opens(dir_ / "inside", RESOLVE_NO_SYMLINKS));
  EXPECT_FALSE(opens(dir_ / "missing"));
  EXPECT_FALSE(opens("file"));
}

TEST_F(LocalRootTest, files_below_mounts_are_not_opened) {
  if (::geteuid() != 0) HEDDLE_SKIP("not root");
  fs::create_directory(dir_ / "mount");
  write_text_file(dir_ / "bound", "");
  const pid_t child = ::fork();
  if (child == 0) {
    const bool mounted =
        ::unshare(CLONE_NEWNS) == 0 &&
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        ::mount("tmpfs", (dir_ / "mount").c_str(), "tmpfs", 0, nullptr) == 0 &&
        ::mount(file_.c_str(), (dir_ / "bound").c_str(), nullptr, MS_BIND, nullptr) == 0;
    write_text_file(dir_ / "mount/file", "");
    ::_exit(!mounted + 2 * opens(dir_ / "mount/file") + 4 * opens(dir_ / "bound") +
            8 * !opens(file_));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(exit_status(status), 0);
}

TEST_F(LocalRootTest, file_in_memory_is_local) {
  const Fd memory(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_TRUE(LocalRoot().has(memory.get()));
  EXPECT_FALSE(LocalRoot().has(open_file("/proc/self/status", O_RDONLY).value().get()));
}

TEST_F(LocalRootTest, origins_that_are_unchanged_are_opened_without_a_child) {
  fs::create_symlink("file", dir_ / "link");
  MapContent map;
  for (const char* name : {"file", "link"}) {
    struct stat status {};
    ASSERT_EQ(::stat((dir_ / name).c_str(), &status), 0);
    map.objects.push_back({.path = dir_ / name, .stamp = file_stamp(status)});
  }
  const auto before = page_faults();
  const auto origins = open_origins(map, 2);
  EXPECT_EQ(page_faults(), before);
  EXPECT_TRUE(origins.drifts.empty());
  EXPECT_EQ(origins.pinned, 2U);
  // One that has changed is read, by the child.
  map.objects[1].stamp.mtime_ns -= 1;
  EXPECT_EQ(open_origins(map, 2).drifts.size(), 1U);
  EXPECT_GT(page_faults(), before);
}

TEST_F(LocalRootTest, device_that_a_map_names_is_not_opened) {
  if (::geteuid() != 0) HEDDLE_SKIP("not root");
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  struct stat status {};
  ASSERT_EQ(::stat((dir_ / "fifo").c_str(), &status), 0);
  MapContent map;
  map.objects.push_back({.path = dir_ / "fifo", .stamp = file_stamp(status)});
  const auto origins = open_origins(map, 1);
  ASSERT_EQ(origins.drifts.size(), 1U);
  EXPECT_EQ(origins.drifts[0].what, "no longer a regular file");
}

}  // namespace
}  // namespace heddle::test
