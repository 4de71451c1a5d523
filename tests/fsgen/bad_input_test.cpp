// SPDX-License-Identifier: MIT
// fs-gen and fs-mount on input of any kind: APP runs as without fs-gen, or there is one clear
// error; nothing crashes, hangs or is left behind.

#include "tests/fsgen/run_fixture.hpp"
#include "tests/fsgen/user_world.hpp"
#include "tests/resolve/corpus.hpp"

namespace heddle::test {
namespace {

class FsGenInput : public FsGenFixture {
 protected:
  void SetUp() override {
    FsGenFixture::SetUp();
    fs_mount_ = staged_program("fs-mount");
    fs_resolve_ = staged_program("fs-resolve");
    fs::create_directory(dir_ / "mnt");
    options_.deadline = std::chrono::seconds(30);
  }
  void TearDown() override {
    FsGenFixture::TearDown();
    EXPECT_EQ(mounts_with(dir_.path()), 0U);
  }

  std::string fs_mount_, fs_resolve_;
};

TEST_F(FsGenInput, damaged_map_is_refused_before_app_runs) {
  const auto map = dir_ / "good.map";
  run_checked({fs_resolve_, "build", "-o", map, "/usr/bin/git"}, options_);
  const auto good = value_or_throw(read_file(map));
  Corpus corpus(good, 6);
  auto newer = good;
  newer[good.size() - 32] = 7;  // docs/formats/map.md: the trailer's version
  std::vector<std::string> maps = {"", "no map\n", newer, good.substr(0, good.size() / 2)};
  while (maps.size() < 150) maps.push_back(corpus.next());
  for (std::size_t i = 0; i < maps.size(); ++i) {
    if (maps[i] == good) continue;
    const auto bad = write_text_file(dir_ / "bad.map", maps[i]);
    const auto mark = dir_ / "ran";
    const std::vector<std::string> commands[] = {{fs_gen_, "--map", bad, "/usr/bin/touch", mark},
                                                 {fs_mount_, bad, dir_ / "mnt"},
                                                 {fs_gen_, "--print-env", bad, dir_ / "mnt"}};
    const auto result = run(commands[i % 3], options_);
    EXPECT_EQ(result.status, 3) << i << result.err;
    EXPECT_NE(result.err.find(bad + ": "), std::string::npos) << i << result.err;
    EXPECT_LE(std::count(result.err.begin(), result.err.end(), '\n'), 2) << result.err;
    EXPECT_FALSE(fs::exists(mark)) << i;
  }
}

TEST_F(FsGenInput, damaged_program_ends_as_without_fs_gen) {
  const auto app = build_program({.output = dir_ / "app", .source = "int main(){return 7;}"});
  const auto good = value_or_throw(read_file(app));
  // Only the first page: the kernel and ld.so read it.
  std::vector<std::string> cases;
  for (std::size_t n = 0; n < 4096; n += 183) cases.push_back(good.substr(0, n));
  for (std::size_t at = 0; at < 64; at += 3)
    for (const char value : {'\0', '\x7f', '\xff'}) {
      cases.push_back(good);
      cases.back()[at] = value;
    }
  for (const auto& bytes : cases) {
    write_text_file(app + ".new", bytes, 0755);
    fs::rename(app + ".new", app);
    // The shell's status covers a failure of exec, of ld.so and death by a signal.
    const auto bare = run({"/bin/bash", "-c", "\"$0\"", app}, options_);
    const auto ours = gen({"-q", app});
    EXPECT_EQ(ours.status, bare.status) << ours.err << bare.err;
    EXPECT_FALSE(ours.timed_out);
  }
}

TEST_F(FsGenInput, program_of_32_bits_runs_without_the_auditor) {
  // The loader prints its environment; no 32-bit glibc is needed.
  const auto loader = dir_ / "ld32";
  run_checked({"cc", "-m32", "-O1", "-ffreestanding", "-fno-stack-protector", "-fno-pic", "-static",
               "-nostdlib", "-x", "c", "-", "-o", loader},
              {.env = {}, .cwd = {}, .input = R"(
__asm__(".globl _start\n_start: mov %esp, %eax\n push %eax\n call go\n");
static int call(int n, int a, const void* b, int c) {
  int r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(n), "b"(a), "c"(b), "d"(c) : "memory");
  return r;
}
void go(int* sp) {
  char** e = (char**)(sp + *sp + 2);
  for (; *e; ++e) { int n = 0; while ((*e)[n]) ++n; call(4, 1, *e, n); call(4, 1, "\n", 1); }
  call(1, 5, 0, 0);
}
)"});
  const auto app = dir_ / "app32";
  run_checked({"cc", "-m32", "-nostdlib", "-shared", "-fPIC", "-Wl,-e,0",
               "-Wl,--dynamic-linker=" + loader, "-x", "c", "-", "-o", app},
              {.env = {},
               .cwd = {},
               .input = "const char i[] "
                        "__attribute__((section(\".interp\"))) = \"" +
                        loader + "\";"});
  const auto bare = run({"/bin/sh", "-c", "exec \"$0\"", app}, options_);
  if (bare.status == 126) HEDDLE_SKIP("this kernel runs no 32-bit programs");
  ASSERT_EQ(bare.status, 5) << bare.err;
  const auto ours = run_guided({app});
  EXPECT_EQ(ours.status, 5);
  EXPECT_EQ(ours.out.find("LD_AUDIT"), std::string::npos) << ours.out;
  EXPECT_FALSE(report()["guided"].get<bool>());
}

TEST_F(FsGenInput, x32_program_ends_as_without_fs_gen) {
  const auto app = dir_ / "x32";
  run_checked({"cc", "-mx32", "-O1", "-nostdlib", "-static", "-x", "c", "-", "-o", app},
              {.env = {},
               .cwd = {},
               .input = "void _start(void) { __asm__ volatile(\"syscall\" : : "
                        "\"a\"(0x40000000 + 231), \"D\"(7)); }"});
  for (const auto& way : {"best", "direct"}) {
    const auto ours = run_guided({app}, {"--via", way});
    EXPECT_TRUE(ours.status == 7 || ours.status == 126) << ours.err;  // 126: no CONFIG_X86_X32_ABI
  }
  const auto child = same({"/bin/bash", "-c", app + "; echo $?"});
  EXPECT_THAT(child.out, ::testing::AnyOf("7\n", "126\n"));
}

TEST_F(FsGenInput, arguments_that_are_programs_are_not_taken_for_app) {
  const auto app = build_program({.output = dir_ / "static",
                                  .source = "#include <unistd.h>\nint main(int c, char** v) {\n"
                                            "execv(v[1], v + 1); return 9; }",
                                  .flags = {"-static", "-no-pie"}});
  EXPECT_EQ(run_guided({app, "/usr/bin/git", "--version"}).status, 0);
  EXPECT_FALSE(report()["guided"].get<bool>());
  EXPECT_EQ(report()["unguided_reason"], "static program");
  EXPECT_EQ(report()["guided_processes"], 1U) << "git, by exec";
}

TEST_F(FsGenInput, names_of_any_bytes_go_through_a_whole_run) {
  const std::string odd = "a b\t\n\xc3\xa4 \xff\\";
  const auto directory = dir_ / odd;
  fs::create_directory(directory);
  fs::create_directory(directory + "/tmp");
  const auto plugin =
      build_library({.output = directory + "/p" + odd + ".so", .source = "int p(void){return 3;}"});
  const auto library = build_library({.output = directory + "/lib" + odd + ".so",
                                      .source = "int x(void){return 4;}",
                                      .flags = {"-Wl,-soname,lib" + odd + ".so"}});
  const auto app =
      build_program({.output = directory + "/app" + odd,
                     .source = "#include <dlfcn.h>\nint x(void);\nint main(int c, char** v) {\n"
                               "void* h = dlopen(v[1], RTLD_NOW); if (!h) return 99;\n"
                               "return 10 * x() + ((int (*)(void))dlsym(h, \"p\"))(); }",
                     .flags = {library, "-Wl,-rpath,$ORIGIN"}});
  options_.env.push_back("TMPDIR=" + directory + "/tmp");
  const auto map = directory + "/m" + odd;
  const auto json = directory + "/j" + odd;
  const auto by_name = "p" + odd + ".so";
  EXPECT_EQ(gen({"-q", "--json", json, app, by_name}).status, 43);
  EXPECT_EQ(gen({"-q", "--learn", "--out", map, app, plugin}).status, 43);
  EXPECT_EQ(gen({"-q", "--learn", "--out", map, app, by_name}).status, 43);
  for (const char* via : {"private", "direct"}) {
    const auto ours = gen({"--via", via, "--json", json, "--map", map, "--", app, by_name});
    EXPECT_EQ(ours.status, 43) << ours.err;
    EXPECT_EQ(ours.err.find('\t'), std::string::npos) << ours.err;
    const auto written = nlohmann::json::parse(std::ifstream(json), nullptr, false);
    ASSERT_TRUE(written.is_object());
    EXPECT_TRUE(written["guided"].get<bool>());
    EXPECT_EQ(written["names_unknown"], 0U);
  }
  EXPECT_TRUE(
      wait_until(std::chrono::seconds(5), [&] { return fs::is_empty(directory + "/tmp"); }));
}

/// Files that a user may not read.
class UsersInput : public UserWorldFixture {
 protected:
  std::string in(const std::string& name) const { return world_->dir() / name; }
};

TEST_F(UsersInput, unreadable_program_runs_unguided) {
  build_program({.output = in("closed"), .source = "int main(){return 7;}"});
  ASSERT_EQ(::chmod(in("closed").c_str(), 0711), 0);
  const auto ours = world_->sh("$FS_GEN --json $OUT/r.json " + in("closed") + "; echo $?");
  EXPECT_EQ(ours.out, "7\n") << ours.err;
  EXPECT_FALSE(world_->report("r.json")["guided"].get<bool>());
  EXPECT_NE(ours.err.find("Permission denied"), std::string::npos) << ours.err;
}

TEST_F(UsersInput, unreadable_library_or_program_is_named) {
  const auto library = build_library({.output = in("lib/libx.so.1"),
                                      .source = "int x(void){return 7;}",
                                      .flags = {"-Wl,-soname,libx.so.1"}});
  const auto app = build_program({.output = in("app"),
                                  .source = "int x(void);int main(){return x();}",
                                  .flags = {library, "-Wl,-rpath," + in("lib")}});
  ASSERT_EQ(::chmod(library.c_str(), 0), 0);
  const auto resolve = "$(dirname $FS_GEN)/fs-resolve ";
  // The message and status of ld.so.
  auto ours = world_->sh(resolve + ("build -o $OUT/map " + app + "; echo $?; ") + app +
                         " 2> $OUT/bare; echo $?; $FS_GEN -q " + app + " 2> $OUT/guided; echo $?");
  EXPECT_EQ(ours.out, "1\n127\n127\n") << ours.err;
  EXPECT_NE(ours.err.find(app + ": needs libx.so.1"), std::string::npos) << ours.err;
  EXPECT_NE(world_->out("guided").find(world_->out("bare")), std::string::npos)
      << world_->out("guided");
  ASSERT_EQ(::chmod(app.c_str(), 0), 0);
  ours = world_->sh(resolve +
                    ("build -o $OUT/map " + app + "; echo $?; $FS_GEN " + app + "; echo $?"));
  EXPECT_EQ(ours.out, "3\n126\n") << ours.err;
  EXPECT_EQ(ours.err, "fs-resolve: " + app + ": cannot open: Permission denied\nfs-gen: " + app +
                          ": cannot run: Permission denied\n");
}

TEST_F(UsersInput, setuid_program_is_reported_as_unguided) {
  build_program({.output = in("setuid"),
                 .source = "#include <unistd.h>\nint main(){return geteuid() == 1 ? 7 : 8;}"});
  ASSERT_EQ(::chown(in("setuid").c_str(), 1, 1), 0);
  ASSERT_EQ(::chmod(in("setuid").c_str(), 04755), 0);
  for (const char* via : {"fusermount", "direct"}) {
    const auto ours = world_->sh("$FS_GEN --json $OUT/r.json --via " + std::string(via) + " " +
                                 in("setuid") + "; echo $?");
    EXPECT_EQ(ours.out, "7\n") << ours.err;
    EXPECT_FALSE(world_->report("r.json")["guided"].get<bool>()) << via;
    EXPECT_NE(ours.err.find("setuid"), std::string::npos) << ours.err;
  }
}

}  // namespace
}  // namespace heddle::test
