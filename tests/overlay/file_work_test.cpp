// SPDX-License-Identifier: MIT
#include "fuseovl/files/file_work.hpp"

#include <linux/capability.h>
#include <linux/openat2.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "base/content_hash.hpp"
#include "base/file_systems.hpp"
#include "base/sandbox/privileges.hpp"
#include "fuseovl/files/map_file.hpp"
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

TEST(FileWork, piece_that_waits_for_nobody_needs_no_child) {
  const Shared<pid_t> first, second;
  const auto results =
      work_on_files(2, {.limit = 60s,
                        .work = [&](std::size_t, WorkPlace&) { *second = ::getpid(); },
                        .path_of = path_of,
                        .try_in_caller =
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

/// By several threads, with a few left for the child.
TEST(FileWork, many_pieces_are_each_done_once) {
  constexpr std::size_t kCount = 900;
  const SharedArray<std::atomic<int>> done(kCount);
  std::atomic<int> threads = 0;
  const auto results =
      work_on_files(kCount, {.limit = 60s,
                             .work =
                                 [&](std::size_t piece, WorkPlace& place) {
                                   done[piece] += 100;
                                   place.give(open_file("/", O_RDONLY).value());
                                 },
                             .path_of = path_of,
                             .try_in_caller =
                                 [&](std::size_t piece, WorkPlace& place) {
                                   thread_local bool is_new = true;
                                   threads += std::exchange(is_new, false);
                                   ++done[piece];
                                   if (piece % 100 == 7) return false;
                                   if (piece % 2 == 0)
                                     place.give(open_file("/usr", O_RDONLY).value());
                                   return true;
                                 }});
  for (std::size_t i = 0; i < kCount; ++i) {
    const bool is_childs = i % 100 == 7;
    EXPECT_EQ(done[i], is_childs ? 101 : 1) << i;
    EXPECT_EQ(results[i].state, WorkResult::State::done) << i;
    EXPECT_EQ(results[i].file.valid(), is_childs || i % 2 == 0) << i;
    if (results[i].file) {
      EXPECT_EQ(fs::read_symlink("/proc/self/fd/" + std::to_string(results[i].file.get())),
                is_childs ? "/" : "/usr");
    }
  }
  EXPECT_LE(threads, std::max(1U, std::thread::hardware_concurrency()));
}

/// Files of the root directory's file system, where that is local and the kernel can look names up
/// in its caches alone.
class LocalRootTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Fd root = open_file("/", O_PATH).value();
    if (locality_of(root.get()) < Locality::local) HEDDLE_SKIP("the root directory is not local");
    write_text_file(file_, "text");
    if (!opens(file_))
      HEDDLE_SKIP("no cached name is opened here: Linux 5.12, a seccomp filter, or TMPDIR a mount");
  }
  /// In one of several tries: a mount or rename anywhere makes the kernel ask again what it has.
  static bool opens(const std::string& path, std::uint64_t resolve = 0) {
    for (int tries = 0; tries < 1000; ++tries) {
      if (LocalRoot().open(path, O_RDONLY, resolve)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  /// Of children that have ended.
  static long page_faults() {
    rusage used{};
    ::getrusage(RUSAGE_CHILDREN, &used);
    return used.ru_minflt;
  }
  MapObject object(const std::string& path) const {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return {.path = path, .stamp = file_stamp(status), .hash = hash_bytes("text")};
  }
  static bool some_run_needs_no_child(const MapContent& map) {
    for (int tries = 0; tries < 20; ++tries) {
      const auto before = page_faults();
      const auto origins = open_origins(map, map.objects.size());
      EXPECT_TRUE(origins.drifts.empty());
      EXPECT_EQ(origins.pinned, map.objects.size());
      if (page_faults() == before) return true;
    }
    return false;
  }

  TestDir dir_;
  const std::string file_ = dir_ / "file";
};

TEST_F(LocalRootTest, names_that_lead_elsewhere_are_not_opened) {
  for (const char* target : {"/proc/self/status", "/proc/self/fd/0"}) {
    SCOPED_TRACE(target);
    fs::remove(dir_ / "link");
    fs::create_symlink(target, dir_ / "link");
    EXPECT_FALSE(opens(target));
    EXPECT_FALSE(opens(dir_ / "link"));
  }
  fs::create_symlink("file", dir_ / "inside");
  // The kernel writes the access time when a link is first followed, which it does not do from its
  // caches: a tick of its clock later.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(fs::exists(dir_ / "inside"));
  EXPECT_TRUE(opens(dir_ / "inside"));
  EXPECT_FALSE(opens(dir_ / "inside", RESOLVE_NO_SYMLINKS));
  EXPECT_FALSE(opens(dir_ / "missing"));
  EXPECT_FALSE(opens("file"));
}

TEST_F(LocalRootTest, files_below_mounts_are_not_opened) {
  if (!has_capability(CAP_SYS_ADMIN)) HEDDLE_SKIP("may not mount");
  fs::create_directory(dir_ / "mount");
  write_text_file(dir_ / "bound", "");
  auto child = fork_child({}, [&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", (dir_ / "mount").c_str(), "tmpfs", 0, nullptr) != 0 ||
        ::mount(file_.c_str(), (dir_ / "bound").c_str(), nullptr, MS_BIND, nullptr) != 0)
      return 1;
    std::ofstream(dir_ / "mount/file") << "text";
    return 2 * opens(dir_ / "mount/file") + 4 * opens(dir_ / "bound");
  });
  ASSERT_TRUE(child);
  EXPECT_EQ(child->wait().value(), 0);
}

TEST_F(LocalRootTest, unchanged_origins_are_opened_without_a_child) {
  fs::create_symlink("file", dir_ / "link");
  fs::create_directory_symlink(".", dir_ / "directory");
  MapContent map;
  for (const char* name : {"file", "link", "directory/file"})
    map.objects.push_back(object(dir_ / name));
  EXPECT_TRUE(some_run_needs_no_child(map));
  // One with another time is read, by the child.
  const auto before = page_faults();
  map.objects[1].stamp.mtime_ns -= 1;
  EXPECT_TRUE(open_origins(map, 3).drifts.empty());
  EXPECT_GT(page_faults(), before);
}

TEST_F(LocalRootTest, rights_are_those_that_a_child_finds) {
  if (::geteuid() != 0) HEDDLE_SKIP("not root");
  const struct {
    const char* name;
    uid_t uid;
    gid_t gid;
    mode_t mode;
  } directories[] = {{"open", 0, 0, 0755},     {"closed", 1500, 1500, 0700},
                     {"group", 0, 1500, 0750}, {"sticky", 0, 0, 01777},
                     {"all", 1500, 0, 0777},   {"closed/inner", 1500, 0, 0755}};
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
  MapContent map;
  for (const auto& [name, uid, gid, mode] : directories) {
    fs::create_directory(dir_ / name);
    ASSERT_EQ(::chmod((dir_ / name).c_str(), mode), 0);
    ASSERT_EQ(::chown((dir_ / name).c_str(), uid, gid), 0);
    const auto path = dir_ / (name + "/lib"s);
    write_text_file(path, "text");
    ASSERT_EQ(::chown(path.c_str(), uid, 0), 0);
    map.objects.push_back(object(path));
  }
  for (const char* target : {"closed/lib", "group", "closed/inner"}) {
    const auto link = dir_ / std::to_string(map.objects.size());
    fs::create_symlink(target, link);
    map.objects.push_back(object(fs::is_directory(link) ? link + "/lib" : link));
  }
  EXPECT_TRUE(some_run_needs_no_child(map));
  const auto here = open_origins(map, 0), there = open_origins(map, 0, 60s, Compare::content);
  int closed = 0;
  for (std::size_t i = 0; i < map.objects.size(); ++i) {
    SCOPED_TRACE(map.objects[i].path);
    const auto rights = [&](const Origins& origins) {
      const auto& file = origins.files[i];
      return std::tuple(file.mode, file.uid, file.gid, file.usable, file.as_mapped, file.locality,
                        file.stamp == map.objects[i].stamp);
    };
    EXPECT_EQ(rights(here), rights(there));
    closed += (here.files[i].mode & S_IRWXO) == 0;
  }
  EXPECT_EQ(closed, 6);  // below `closed` and `group`
}

TEST_F(LocalRootTest, fifo_that_a_map_names_is_not_opened) {
  const auto fifo = dir_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  auto writer = fork_child({}, [&] { return ::open(fifo.c_str(), O_WRONLY) < 0; });
  ASSERT_TRUE(writer);
  const auto state = "/proc/" + std::to_string(writer->pid()) + "/status";
  ASSERT_TRUE(wait_until(10s, [&] {
    return value_or_throw(read_file(state)).find("State:\tS") != std::string::npos;
  }));
  MapContent map;
  map.objects.push_back(object(fifo));
  const auto origins = open_origins(map, 1);
  ASSERT_EQ(origins.drifts.size(), 1U);
  EXPECT_EQ(origins.drifts[0].what, "no longer a regular file");
  EXPECT_FALSE(writer->wait_for(200ms).value()) << "it was opened";
  const Fd reader = open_file(fifo, O_RDONLY | O_NONBLOCK).value();
  EXPECT_EQ(writer->wait().value(), 0);
}

TEST_F(LocalRootTest, map_that_another_user_may_write_to_is_read_by_a_child) {
  const auto needs_no_child = [&] {
    for (int tries = 0; tries < 20; ++tries) {
      const auto before = page_faults();
      EXPECT_TRUE(MapFile::find(file_, 60s));
      if (page_faults() == before) return true;
    }
    return false;
  };
  EXPECT_TRUE(needs_no_child());
  ASSERT_EQ(::chmod(file_.c_str(), 0666), 0);
  EXPECT_FALSE(needs_no_child());
}

}  // namespace
}  // namespace heddle::test
