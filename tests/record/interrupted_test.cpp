// SPDX-License-Identifier: MIT
// A worker of the recorder is killed at some instruction of what it does for a request: the next
// one answers the request, what it changes is changed once, and the trace is told of it once. The
// kernel's side of the device is played here, so that the instruction can be chosen.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <random>

#include "base/sandbox/sanitized.hpp"
#include "tests/record/played_kernel.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
constexpr unsigned kUser = 1500;

/// What a request is tried on: a folder with the files `one` and `two`, and the folder `sub`.
struct Scene {
  explicit Scene(const TestDir& dir, int number) : path(dir / std::to_string(number)) {
    ::mkdir(path.c_str(), 0755);
    for (const char* name : {"one", "two"}) {
      std::FILE* file = std::fopen(file_path(name).c_str(), "w");
      std::fputs(name, file);
      std::fclose(file);
    }
    ::mkdir(file_path("sub").c_str(), 0755);
    folder = kernel.walk(path);
    (void)told();
  }
  std::string file_path(const std::string& name) const { return path + "/" + name; }
  std::string content(const std::string& name) const {
    return read_file(file_path(name)).value_or("(none)");
  }
  mode_t mode(const std::string& name) const {
    struct stat st {};
    return ::lstat(file_path(name).c_str(), &st) == 0 ? st.st_mode : 0;
  }
  std::string told() { return kernel.told_of(path); }
  std::string text() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    std::string out;
    for (const auto& name : names) out += (out.empty() ? "" : " ") + name;
    return out;
  }
  /// What is opened so can be written to, once.
  void write(std::uint64_t node, std::uint64_t fh, const std::string& text, std::uint64_t offset,
             bool append) {
    fuse_write_in in{};
    in.fh = fh;
    in.offset = offset;
    in.size = static_cast<std::uint32_t>(text.size());
    in.flags = append ? O_APPEND : 0;
    const auto answer = kernel.ask(FUSE_WRITE, node, bytes_of(in) + text);
    EXPECT_EQ(answer.error, 0);
    EXPECT_EQ(answer.as<fuse_write_out>().size, text.size());
  }

  std::string path;
  Kernel kernel;
  std::uint64_t folder = 0;
};

/// Asks for it, with workers that die so, and looks what has become of it.
struct Doing {
  const char* name;
  void (*run)(Scene&, const Deaths& deaths);
};

/// By a plain user, whom the mode of what is made forbids to open it once more.
Answer create(Scene& scene, const Deaths& deaths, std::uint32_t opcode, std::uint32_t flags) {
  if (::geteuid() == 0) {
    ::chmod(fs::path(scene.path).parent_path().c_str(), 0755);
    (void)!::chown(scene.path.c_str(), kUser, kUser);
    scene.kernel.ask_as(kUser);
  }
  fuse_create_in in{};
  in.flags = flags;
  in.mode = S_IFREG | 0444;
  scene.kernel.kill_next(deaths);
  const auto answer = scene.kernel.ask(opcode, scene.folder, bytes_of(in) + c_string("new"));
  EXPECT_EQ(answer.error, 0);
  if (answer.error != 0) return answer;
  scene.write(answer.as<fuse_entry_out>().nodeid,
              answer.as<fuse_open_out>(sizeof(fuse_entry_out)).fh, "text", 0, false);
  return answer;
}

void create_new(Scene& scene, const Deaths& deaths) {
  const auto answer = create(scene, deaths, FUSE_CREATE, O_CREAT | O_EXCL | O_WRONLY);
  EXPECT_EQ(scene.text(), "new one sub two");
  EXPECT_EQ(scene.content("new"), "text");
  EXPECT_EQ(scene.mode("new"), S_IFREG | 0444U);
  EXPECT_EQ(scene.kernel.look_up(scene.folder, "new"), answer.as<fuse_entry_out>().nodeid);
}

void create_shared(Scene& scene, const Deaths& deaths) {
  (void)create(scene, deaths, FUSE_CREATE, O_CREAT | O_WRONLY);
  EXPECT_EQ(scene.text(), "new one sub two");
  EXPECT_EQ(scene.content("new"), "text");
  EXPECT_EQ(scene.mode("new"), S_IFREG | 0444U);
}

void create_nameless(Scene& scene, const Deaths& deaths) {
  (void)create(scene, deaths, loopback::kOpTmpfile, O_TMPFILE | O_RDWR);
  EXPECT_EQ(scene.text(), "one sub two");
}

/// A request that answers with an entry.
void make(Scene& scene, const Deaths& deaths, std::uint32_t opcode, const std::string& body,
          mode_t type) {
  scene.kernel.kill_next(deaths);
  const auto answer = scene.kernel.ask(opcode, scene.folder, body);
  EXPECT_EQ(answer.error, 0);
  EXPECT_EQ(scene.text(), "new one sub two");
  EXPECT_EQ(scene.mode("new") & S_IFMT, type);
  EXPECT_EQ(scene.kernel.look_up(scene.folder, "new"), answer.as<fuse_entry_out>().nodeid);
}

void make_folder(Scene& scene, const Deaths& deaths) {
  fuse_mkdir_in in{};
  in.mode = 0555;
  make(scene, deaths, FUSE_MKDIR, bytes_of(in) + c_string("new"), S_IFDIR);
}

void make_fifo(Scene& scene, const Deaths& deaths) {
  fuse_mknod_in in{};
  in.mode = S_IFIFO | 0600;
  make(scene, deaths, FUSE_MKNOD, bytes_of(in) + c_string("new"), S_IFIFO);
}

void make_symlink(Scene& scene, const Deaths& deaths) {
  make(scene, deaths, FUSE_SYMLINK, c_string("new") + c_string("elsewhere"), S_IFLNK);
}

void make_link(Scene& scene, const Deaths& deaths) {
  fuse_link_in in{};
  in.oldnodeid = scene.kernel.look_up(scene.folder, "one");
  make(scene, deaths, FUSE_LINK, bytes_of(in) + c_string("new"), S_IFREG);
  EXPECT_EQ(scene.content("new"), "one");
}

void rename(Scene& scene, const Deaths& deaths, std::uint32_t flags) {
  const auto one = scene.kernel.look_up(scene.folder, "one");
  const auto two = scene.kernel.look_up(scene.folder, "two");
  fuse_rename2_in in{};
  in.newdir = scene.folder;
  in.flags = flags;
  scene.kernel.kill_next(deaths);
  const auto answer = scene.kernel.ask(FUSE_RENAME2, scene.folder,
                                       bytes_of(in) + c_string("one") + c_string("two"));
  EXPECT_EQ(answer.error, 0);
  EXPECT_EQ(scene.content("two"), "one");
  EXPECT_EQ(scene.kernel.look_up(scene.folder, "two"), one);
  EXPECT_EQ(scene.kernel.look_up(scene.folder, "one"), flags != 0 ? two : 0);
}

void move(Scene& scene, const Deaths& deaths) {
  rename(scene, deaths, 0);
  EXPECT_EQ(scene.text(), "sub two");
}

void exchange(Scene& scene, const Deaths& deaths) {
  rename(scene, deaths, 2);  // RENAME_EXCHANGE
  EXPECT_EQ(scene.content("one"), "two");
}

void remove(Scene& scene, const Deaths& deaths, std::uint32_t opcode, const char* name) {
  (void)scene.kernel.look_up(scene.folder, name);
  scene.kernel.kill_next(deaths);
  EXPECT_EQ(scene.kernel.ask(opcode, scene.folder, c_string(name)).error, 0);
  EXPECT_EQ(scene.kernel.look_up(scene.folder, name), 0U);
}

void unlink(Scene& scene, const Deaths& deaths) {
  remove(scene, deaths, FUSE_UNLINK, "one");
  EXPECT_EQ(scene.text(), "sub two");
}

void remove_folder(Scene& scene, const Deaths& deaths) {
  remove(scene, deaths, FUSE_RMDIR, "sub");
  EXPECT_EQ(scene.text(), "one two");
}

void append(Scene& scene, const Deaths& deaths) {
  const auto node = scene.kernel.look_up(scene.folder, "one");
  fuse_open_in in{};
  in.flags = O_WRONLY | O_APPEND;
  const auto opened = scene.kernel.ask(FUSE_OPEN, node, bytes_of(in)).as<fuse_open_out>();
  scene.kernel.kill_next(deaths);
  scene.write(node, opened.fh, " and more", 3, true);
  EXPECT_EQ(scene.content("one"), "one and more");
  fuse_release_in release{};
  release.fh = opened.fh;
  EXPECT_EQ(scene.kernel.ask(FUSE_RELEASE, node, bytes_of(release)).error, 0);
}

void open_and_close(Scene& scene, const Deaths& deaths) {
  const auto node = scene.kernel.look_up(scene.folder, "one");
  fuse_open_in in{};
  in.flags = O_RDONLY;
  scene.kernel.kill_next({deaths.front()});
  const auto opened = scene.kernel.ask(FUSE_OPEN, node, bytes_of(in));
  EXPECT_EQ(opened.error, 0);
  fuse_read_in read{};
  read.fh = opened.as<fuse_open_out>().fh;
  read.size = 100;
  EXPECT_EQ(scene.kernel.ask(FUSE_READ, node, bytes_of(read)).body, "one");
  fuse_release_in release{};
  release.fh = read.fh;
  scene.kernel.kill_next({deaths.back()});
  EXPECT_EQ(scene.kernel.ask(FUSE_RELEASE, node, bytes_of(release)).error, 0);
}

class Interrupted : public ::testing::TestWithParam<Doing> {};
INSTANTIATE_TEST_SUITE_P(
    , Interrupted,
    ::testing::Values(Doing{"create", create_new}, Doing{"create_shared", create_shared},
                      Doing{"create_nameless", create_nameless}, Doing{"mkdir", make_folder},
                      Doing{"mknod", make_fifo}, Doing{"symlink", make_symlink},
                      Doing{"link", make_link}, Doing{"rename", move}, Doing{"exchange", exchange},
                      Doing{"unlink", unlink}, Doing{"rmdir", remove_folder},
                      Doing{"append", append}, Doing{"open_and_close", open_and_close}),
    [](const auto& which) { return which.param.name; });

TEST_P(Interrupted, at_any_instruction_it_is_done_and_told_once) {
  if (kSanitized) HEDDLE_SKIP("an instruction of ours is many there");
  // Most of what matters is done soon after a system call; with time, everything is tried.
  const char* seconds = std::getenv("HEDDLE_TEST_SECONDS");
  const int rounds = 40 * (seconds ? std::max(std::atoi(seconds), 1) : 1);
  const unsigned seed = seconds ? std::random_device()() : 1;
  std::mt19937 random(seed);
  TestDir dir;
  long stops = 0;
  std::string told;
  {
    Scene scene(dir, 0);
    GetParam().run(scene, {{std::numeric_limits<long>::max(), 0}});
    stops = scene.kernel.stops();
    told = scene.told();
  }
  EXPECT_NE(told, "");
  ASSERT_GT(stops, 4);
  std::uniform_int_distribution<long> some_stop(0, stops);
  std::uniform_int_distribution<long> some_instruction(0, seconds ? 5000 : 1000);
  for (int round = 1; round <= rounds && !HasFailure(); ++round) {
    const Deaths deaths{{some_stop(random), some_instruction(random)},
                        {some_stop(random), some_instruction(random)}};
    SCOPED_TRACE(fmt::format("seed {}, round {}: killed {} instructions after stop {}, {} after {}",
                             seed, round, deaths[0].instructions, deaths[0].stops,
                             deaths[1].instructions, deaths[1].stops));
    Scene scene(dir, round);
    GetParam().run(scene, deaths);
    EXPECT_EQ(scene.told(), told);
  }
}

}  // namespace
}  // namespace heddle::test
