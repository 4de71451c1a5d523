// SPDX-License-Identifier: MIT
// A map that does not fit the start: another LD_LIBRARY_PATH, or changed files. APP runs unguided
// and the report gives the reason.

#include "tests/fsgen/run_fixture.hpp"

namespace heddle::test {
namespace {

class LibraryPath : public FsGenFixture {
 protected:
  void SetUp() override {
    FsGenFixture::SetUp();
    if (IsSkipped()) return;
    for (const auto& [directory, answer] : {std::pair{"a", "1"}, {"b", "2"}})
      build_library({dir_ / (std::string(directory) + "/libx.so.1"),
                     "int x(void) { return " + std::string(answer) + "; }",
                     {"-Wl,-soname,libx.so.1"}});
    app_ = build_program(
        {dir_ / "app", "int x(void); int main(void) { return x(); }", {dir_ / "a/libx.so.1"}});
    under_b_ = options_;
    options_.env.push_back("LD_LIBRARY_PATH=" + dir_ / "a");
    under_b_.env.push_back("LD_LIBRARY_PATH=" + dir_ / "b");
  }

  std::string app_;
  RunOptions under_b_;
};

TEST_F(LibraryPath, report_names_a_different_value_as_the_reason) {
  const auto map = dir_ / "a.map";
  ASSERT_EQ(run({staged_program("fs-resolve"), "build", "-o", map, app_}, options_).status, 0);
  EXPECT_EQ(run_guided({app_}, {"--map", map}).status, 1);
  EXPECT_TRUE(report()["guided"].get<bool>());
  const auto other = run(command({app_}, {"--map", map}), under_b_);
  EXPECT_EQ(other.status, 2) << other.err;
  EXPECT_FALSE(report()["guided"].get<bool>());
  const auto why = report()["unguided_reason"].get<std::string>();
  EXPECT_NE(why.find("LD_LIBRARY_PATH"), std::string::npos) << why;
  EXPECT_NE(why.find(dir_ / "a"), std::string::npos) << why;
}

TEST_F(LibraryPath, loader_env_works_with_any_value) {
  const auto other = "LD_LIBRARY_PATH=" + dir_ / "b";
  EXPECT_EQ(gen({"--loader", "env", "/usr/bin/env", other, app_}).status, 2);
  // fs-gen's own LD_LIBRARY_PATH, into the mount, works too; also nested.
  EXPECT_EQ(gen({"-q", "--loader", "env", app_}).status, 1);
  EXPECT_EQ(gen({"-q", "--", fs_gen_, "-q", "--loader", "env", app_}).status, 1);
}

TEST_F(LibraryPath, map_records_the_value_it_was_made_with) {
  const auto map = dir_ / "a.map";
  const auto fs_resolve = staged_program("fs-resolve");
  RunOptions relative = options_;
  relative.env.back() = "LD_LIBRARY_PATH=a;" + dir_ / "none";
  relative.cwd = dir_.path();
  ASSERT_EQ(run({fs_resolve, "build", "-o", map, app_}, relative).status, 0);
  const std::string expected = dir_ / "a" + ":" + dir_ / "none";
  const auto json = nlohmann::json::parse(run({fs_resolve, "show", "--json", map}).out);
  EXPECT_EQ(json["programs"][0]["ld_library_path"], expected);
}

/// A program with the RUNPATH old:new; libx.so.1 is in old.
class StaleMap : public FsGenFixture {
 protected:
  void SetUp() override {
    FsGenFixture::SetUp();
    if (IsSkipped()) return;
    fs::create_directory(dir_ / "new");
    library("old", "1");
    app_ = build_program(
        {dir_ / "app",
         "int x(void); int main(void) { return x(); }",
         {dir_ / "old/libx.so.1", "-Wl,-rpath," + dir_ / "old" + ":" + dir_ / "new"}});
    EXPECT_EQ(run({staged_program("fs-resolve"), "build", "-o", dir_ / "a.map", app_, "/bin/true"},
                  options_)
                  .status,
              0);
  }
  void library(const std::string& directory, const std::string& answer) {
    build_library({dir_ / (directory + "/libx.so.1"),
                   "int x(void) { return " + answer + "; }",
                   {"-Wl,-soname,libx.so.1"}});
  }
  RunResult start(const std::string& via, const std::string& app) const {
    return gen({"--via", via, "--json", dir_ / "report.json", "--map", dir_ / "a.map", app});
  }

  std::string app_;
};

TEST_F(StaleMap, moved_library_is_found_unguided) {
  fs::rename(dir_ / "old/libx.so.1", dir_ / "new/libx.so.1");
  for (const char* via : {"best", "direct"}) {
    const auto ours = start(via, app_);
    EXPECT_EQ(ours.status, 1) << ours.err;
    EXPECT_NE(ours.err.find("a.map is out of date: " + dir_ / "old/libx.so.1: missing"),
              std::string::npos)
        << ours.err;
    EXPECT_FALSE(report()["guided"].get<bool>());
    const auto why = report()["unguided_reason"].get<std::string>();
    EXPECT_NE(why.find("out of date"), std::string::npos) << why;
  }
  EXPECT_EQ(start("direct", "/bin/true").status, 0);
  EXPECT_TRUE(report()["guided"].get<bool>()) << "none of its files has changed";
}

TEST_F(StaleMap, rebuilt_library_is_loaded_unguided) {
  library("old", "2; /* rebuilt, and longer */ } int y(void) { return 0");
  const auto ours = start("direct", app_);
  EXPECT_EQ(ours.status, 2) << ours.err;
  EXPECT_FALSE(report()["guided"].get<bool>());
}

TEST_F(StaleMap, touched_library_stays_guided) {
  const auto lib = dir_ / "old/libx.so.1";
  fs::last_write_time(lib, fs::last_write_time(lib) + std::chrono::hours(1));
  const auto ours = start("direct", app_);
  EXPECT_EQ(ours.status, 1) << ours.err;
  EXPECT_EQ(ours.err.find("out of date"), std::string::npos) << ours.err;
  EXPECT_TRUE(report()["guided"].get<bool>());
}

/// A node that has a file system mounted in a tree, which the map does not have.
class TreeOfAnotherNode : public FsGenFixture {
 protected:
  void SetUp() override {
    FsGenFixture::SetUp();
    if (IsSkipped()) return;
    if (::geteuid() != 0) HEDDLE_SKIP("mounts need root");
    fs::create_directories(dir_ / "tree/place");
    std::ofstream(dir_ / "tree/file") << "old";
    run_checked({staged_program("fs-resolve"), "build", "-o", dir_ / "map", "--python", "off",
                 "--tree", dir_ / "tree", "/bin/cat"});
  }
  RunResult on_the_node(const std::string& mounts, const std::string& script) const {
    return sh("exec unshare -m sh -c '" + mounts +
              " && exec $FS_GEN --no-share --json report.json "
              "--map map -- sh -c \"" +
              script + "\"'");
  }
};

TEST_F(TreeOfAnotherNode, mounts_in_it_are_there) {
  const auto done = on_the_node(
      "mount -t tmpfs none tree/place && mkdir tree/place/in && mount -t tmpfs none tree/place/in "
      "&& echo inner >tree/place/in/file",
      "cat tree/place/in/file && cd $PWD && touch tree/place/new && ls tree tree/place");
  EXPECT_EQ(done.out, "inner\ntree:\nfile\nplace\n\ntree/place:\nin\nnew\n") << done.err;
  const auto none = on_the_node("mkdir tree/late && mount -t tmpfs none tree/late", "echo RAN");
  EXPECT_EQ(none.status, 3);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("tree/late: a mount point that the map does not have"));
}

/// sh is not in the map.
TEST_F(TreeOfAnotherNode, report_of_an_unguided_run_names_what_was_refused_and_what_changed) {
  std::ofstream(dir_ / "tree/file") << "newer";
  const auto done =
      on_the_node("true", "cd /; cat " + dir_ / "tree/file" + "; : >" + dir_ / "tree/new");
  EXPECT_NE(done.status, 0);
  EXPECT_THAT(done.err, HasSubstr("ran unguided"));
  EXPECT_THAT(done.err, HasSubstr("tree changed during the run: " + dir_ / "tree/file"));
  EXPECT_THAT(done.err, HasSubstr("1 writes (EROFS); first: " + dir_ / "tree/new"));
}

}  // namespace
}  // namespace heddle::test
