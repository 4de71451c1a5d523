// SPDX-License-Identifier: MIT
// The loopback releases inodes that the kernel forgets. It runs in this process, so that the test
// can read its inode table.
#include <sys/mount.h>

#include "record/loopback/loopback.hpp"
#include "tests/support/fuse_kernel.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

constexpr int kFiles = 20'000;
constexpr std::size_t kMostOpen = 500;

struct NoLog final : loopback::AccessLog {
  void add_collision(const std::string&) override {}
  void start() override {}
  bool on() const noexcept override { return false; }
  bool each_io() const noexcept override { return false; }
  void add(trace::Event&) override {}
};

/// A detached FUSE mount on `device`; it ends with its descriptor.
Fd mount_detached(int device) {
  const Fd context(::fsopen("fuse", FSOPEN_CLOEXEC));
  const auto set = [&](const char* key, const std::string& value) {
    ::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0);
  };
  set("source", "forget_test");
  set("fd", std::to_string(device));
  set("rootmode", "40000");
  set("user_id", "0");
  set("group_id", "0");
  ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0);
  return Fd(::fsmount(context.get(), FSMOUNT_CLOEXEC, 0));
}

/// The loopback, served by this process.
class Served {
 public:
  Served()
      : root_(mount_detached(device_.get())),
        serving_([this] { loopback::serve(loopback_, device_.get()); }) {}
  ~Served() {
    root_.reset();
    serving_.join();
  }
  int root() const { return root_.get(); }
  std::size_t nodes() const { return loopback_.nodes.size(); }

 private:
  Fd device_ = value_or_throw(open_file("/dev/fuse", O_RDWR));
  NoLog log_;
  loopback::Loopback loopback_{log_, {device_.get(), kMostOpen, {}}};
  Fd root_;
  std::thread serving_;
};

/// Opened, since a lookup of stat(2) takes no descriptor.
void look_up_all(const Served& served, const std::string& directory, int count) {
  for (int i = 0; i < count; ++i)
    ASSERT_TRUE(Fd(::openat(served.root(), (directory.substr(1) + "/" + std::to_string(i)).c_str(),
                            O_PATH | O_CLOEXEC)));
}

std::size_t open_files() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST(LoopbackInodes, are_released_when_the_kernel_forgets_them) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount and to drop caches");
  HEDDLE_NEEDS_OPEN_TREE();
  TestDir dir;
  for (int i = 0; i < kFiles; ++i) {
    const Fd made(::open((dir / std::to_string(i)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    ASSERT_TRUE(made);
  }
  const Served served;
  const auto fds = open_files();
  for (int round = 0; round < 2; ++round) {
    look_up_all(served, dir.path(), kFiles);
    EXPECT_GE(served.nodes(), static_cast<std::size_t>(kFiles));
    EXPECT_LE(open_files(), fds + kMostOpen + 3) << "the least recently used keep no descriptor";
    const bool shrunk = wait_until(std::chrono::seconds(20), [&] {
      run({"sh", "-c", "echo 2 > /proc/sys/vm/drop_caches"});
      return served.nodes() < kFiles / 20;
    });
    EXPECT_TRUE(shrunk) << served.nodes() << " nodes are left";
    EXPECT_LE(open_files(), fds + served.nodes() + 3);
  }
}

TEST(LoopbackInodes, of_stat_take_no_descriptor) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount");
  HEDDLE_NEEDS_OPEN_TREE();
  TestDir dir;
  constexpr int kCount = 200;
  for (int i = 0; i < kCount; ++i) write_text_file(dir / std::to_string(i), "text");
  const Served served;
  struct stat st {};
  const auto stat_all = [&] {
    for (int i = 0; i < kCount; ++i) {
      const auto path = (dir / std::to_string(i)).substr(1);
      ASSERT_EQ(::fstatat(served.root(), path.c_str(), &st, 0), 0);
      EXPECT_EQ(st.st_size, 4);
    }
  };
  const auto fds = open_files();
  stat_all();
  // Some are of directories above, of the first file, which showed that this thread asks about
  // files, and of the server's threads, of which there may be several.
  EXPECT_LE(open_files(), fds + kCount / 4);
  EXPECT_GE(served.nodes(), static_cast<std::size_t>(kCount));
  for (int i = 0; i < kCount; i += 2)
    std::filesystem::rename(dir / std::to_string(i), dir / std::to_string(i + 1));
  for (int i = 0; i < kCount; i += 2) write_text_file(dir / std::to_string(i), "more");
  stat_all();
  look_up_all(served, dir.path(), kCount);
  EXPECT_GE(open_files(), fds + kCount);
}

TEST(LoopbackInodes, without_descriptor_reopen_only_the_same_file) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount");
  HEDDLE_NEEDS_OPEN_TREE();
  TestDir dir;
  for (const char* name : {"kept", "replaced", "moved"}) write_text_file(dir / name, name);
  run_checked({"mkdir", dir / "many"});
  for (int i = 0; i < kFiles / 10; ++i) write_text_file(dir / ("many/" + std::to_string(i)), "");
  const Served served;
  const auto below = [&](const std::string& name) { return (dir / name).substr(1); };
  std::vector<Fd> held;
  for (const char* name : {"kept", "replaced", "moved"})
    held.emplace_back(::openat(served.root(), below(name).c_str(), O_PATH | O_CLOEXEC));
  struct stat st {};
  look_up_all(served, dir / "many", kFiles / 10);
  std::filesystem::rename(dir / "replaced", dir / "aside");
  write_text_file(dir / "replaced", "another");
  std::filesystem::rename(dir / "moved", dir / "elsewhere");
  EXPECT_EQ(::fstatat(held[0].get(), "", &st, AT_EMPTY_PATH), 0);
  EXPECT_EQ(st.st_size, 4);
  EXPECT_NE(::fstatat(held[1].get(), "", &st, AT_EMPTY_PATH), 0);
  EXPECT_EQ(errno, ESTALE);
  EXPECT_NE(::fstatat(held[2].get(), "", &st, AT_EMPTY_PATH), 0);
  EXPECT_EQ(errno, ESTALE);
}

}  // namespace
}  // namespace heddle::test
