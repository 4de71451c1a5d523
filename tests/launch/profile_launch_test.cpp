// SPDX-License-Identifier: MIT
// fs-launch with profiles, before this machine's launchers.
#include <nlohmann/json.hpp>

#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

class ProfileOfALaunch : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_launch_ = staged_program("fs-launch");
    if (fs_launch_.empty()) HEDDLE_SKIP("fs-launch is not installed in $HEDDLE_STAGE");
    if (run({"sh", "-c", "command -v mpirun.openmpi"}).status != 0)
      HEDDLE_SKIP("Open MPI is not installed");
    fs::permissions(dir_.path(), fs::perms(0755));
  }
  RunResult launch(const Strings& words, const Strings& env = {}) const {
    return run(Strings{fs_launch_} + words,
               {.env = Strings{"XDG_CONFIG_HOME=" + (dir_ / "config"),
                               "XDG_CACHE_HOME=" + (dir_ / "cache"), "OMPI_ALLOW_RUN_AS_ROOT=1",
                               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"} +
                       env});
  }
  TestDir dir_;
  std::string fs_launch_;
};

// One, since mpirun mixes the lines of two.
const Strings kOneRank = {"mpirun.openmpi", "--oversubscribe", "-n", "1"};

TEST_F(ProfileOfALaunch, is_made_for_this_machines_mpi) {
  const auto made = launch({"profile", "create"});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.out, StartsWith("openmpi-"));
  const auto shown = launch({"profile", "show", lines_of(made.out).at(0)});
  const auto mpi = nlohmann::json::parse(shown.out).at("mpi");
  EXPECT_EQ(mpi.at("family"), "openmpi");
  EXPECT_TRUE(fs::exists(mpi.at("library").get<std::string>()));
  const auto again = launch({"profile", "create"});
  EXPECT_EQ(again.status, 3);
  EXPECT_THAT(again.err, HasSubstr("cannot make the profile: File exists\n"));
  // e4s-cl names its libraries.
  std::ofstream(dir_ / "e4s.json") << nlohmann::json{
      {"name", "Open_MPI@4"}, {"libraries", {"/nowhere/libmpi.so.40", mpi.at("library")}}};
  EXPECT_EQ(launch({"profile", "import", dir_ / "e4s.json"}).status, 0);
  EXPECT_EQ(nlohmann::json::parse(launch({"profile", "show", "Open_MPI@4"}).out).at("mpi"), mpi);
}

TEST_F(ProfileOfALaunch, has_the_mpi_that_two_ranks_of_a_program_load) {
  std::ofstream(dir_ / "app.c") << "#include <mpi.h>\nint main(int n, char** v) {\n"
                                   "  MPI_Init(&n, &v);\n  return MPI_Finalize();\n}\n";
  for (const std::string family : {"openmpi", "mpich"}) {
    const auto compiler = "mpicc." + family, app = dir_ / family;
    if (run({"sh", "-c", "command -v " + compiler}).status != 0) continue;
    run_checked({compiler, "-o", app, dir_ / "app.c"});
    const auto made = launch({"profile", "create", family, "--trace", app});
    EXPECT_EQ(made.status, 0) << made.err;
    const auto mpi = nlohmann::json::parse(launch({"profile", "show", family}).out).at("mpi");
    EXPECT_EQ(mpi.at("family"), family);
    const auto library = fs::path(mpi.at("library").get<std::string>()).filename().string();
    EXPECT_THAT(run_checked({"ldd", app}).out, HasSubstr(library.substr(0, library.find(".so"))));
  }
  const auto none = launch({"profile", "create", "none", "--trace", "/bin/true"});
  EXPECT_EQ(none.status, 3);
  EXPECT_THAT(none.err, HasSubstr("/bin/true: loads none of this machine's MPI libraries"));
  EXPECT_EQ(launch({"profile", "show", "none"}).status, 3);
}

TEST_F(ProfileOfALaunch, sets_the_variables_of_ranks_and_of_nothing_else) {
  const Strings show = {"bash", "-c", "printf '%s|' \"$VALUE\" \"${EMPTY-unset}\" \"$PATH_TO\""};
  ASSERT_EQ(launch({"profile", "create", "p", "--env", "VALUE=a b\n\"$HOME\" 'c' \\", "--env",
                    "EMPTY=", "--env", "PATH_TO=/x:/y"})
                .status,
            0);
  const auto ranks = kOneRank + show;
  const auto named = launch(Strings{"--profile", "p"} + ranks);
  const std::string each = "a b\n\"$HOME\" 'c' \\||/x:/y|";
  EXPECT_EQ(named.status, 0) << named.err;
  EXPECT_EQ(named.out, each) << named.err;
  EXPECT_EQ(launch(ranks).out, "|unset||") << "it is not selected";
  ASSERT_EQ(launch({"profile", "use", "p"}).status, 0);
  EXPECT_EQ(launch(ranks).out, each);
  EXPECT_EQ(launch(ranks, {"HEDDLE=off"}).out, "|unset||");
  EXPECT_EQ(launch(show).out, "|unset||") << "a launcher, no rank";
  const auto plan = launch(Strings{"--dry-run"} + ranks);
  EXPECT_THAT(plan.out, Not(HasSubstr("HOME%22"))) << "values are in no variable or argument";
}

TEST_F(ProfileOfALaunch, of_a_directory_that_others_may_write_to_is_refused_and_none_is_none) {
  fs::create_directories(dir_ / "config");
  fs::permissions(dir_ / "config", fs::perms(0777));
  EXPECT_EQ(launch({"echo", "ran"}).out, "ran\n");
  EXPECT_EQ(launch({"--profile", "p", "echo", "ran"}).status, 3);
  write_text_file(dir_ / "config/heddle/profiles/selected", "p\n");
  const auto refused = launch({"echo", "ran"});
  EXPECT_EQ(refused.status, 3);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("cannot be trusted"));
}

TEST_F(ProfileOfALaunch, that_cannot_be_read_starts_nothing) {
  const Strings touch = {"touch", dir_ / "started"};
  const auto missing = launch(Strings{"--profile", "none"} + touch);
  EXPECT_EQ(missing.status, 3);
  EXPECT_THAT(missing.err, HasSubstr("fs-launch: none: no profile of this name"));
  ASSERT_EQ(launch({"profile", "create", "p", "--env", "A=b"}).status, 0);
  ASSERT_EQ(launch({"profile", "use", "p"}).status, 0);
  std::ofstream(dir_ / "config/heddle/profiles/p.json") << "{";
  EXPECT_EQ(launch(touch).status, 3);
  EXPECT_FALSE(fs::exists(dir_ / "started"));
  ASSERT_EQ(launch({"profile", "use", "--none"}).status, 0);
  EXPECT_EQ(launch(touch).status, 0);
  EXPECT_TRUE(fs::exists(dir_ / "started"));
  // A program of that name is reached behind "--".
  write_text_file(dir_ / "profile", "#!/bin/sh\necho program \"$@\"\n", 0755);
  EXPECT_EQ(launch({"--", "profile", "list"}, {"PATH=" + dir_.path() + ":/usr/bin:/bin"}).out,
            "program list\n");
}

}  // namespace
}  // namespace heddle::test
