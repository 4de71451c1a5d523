// SPDX-License-Identifier: MIT
// Directory trees of root's and of another user's runs.

#include "tests/fsgen/run_fixture.hpp"
#include "tests/fsgen/user_world.hpp"

namespace heddle::test {
namespace {

struct Who {
  const char* name;
  unsigned uid;
};

class PythonOfUsers : public UserWorldFixture, public ::testing::WithParamInterface<Who> {
 protected:
  RunResult sh(const std::string& script) const {
    UserWorld::World world;
    world.uid = GetParam().uid;
    return world_->sh(world, script);
  }
};

const std::string kImport = " /usr/bin/python3 -c 'import json, sys; print(json.__file__)' ";

TEST_P(PythonOfUsers, sixteen_processes_share_one_mount) {
  const auto ours =
      sh("cd $OUT; FS_GEN=\"$FS_GEN --python /usr/bin/python3\"; $FS_GEN -q /bin/sh -c :; "
         "for i in $(seq 16); do OMPI_COMM_WORLD_RANK=$i $FS_GEN --json $OUT/%r.json /bin/sh -c "
         "\"/usr/bin/python3 -c 'import json, csv; print(json.__file__)'; touch $OUT/up.$i; "
         "while [ ! -e $OUT/go ]; do sleep 0.05; done\" & done; "
         "while [ $(ls $OUT | grep -c '^up') -lt 16 ]; do sleep 0.05; done; touch $OUT/go; wait");
  EXPECT_EQ(ours.err, "");
  unsigned starters = 0;
  for (int i = 1; i <= 16; ++i)
    starters += !world_->report(std::to_string(i) + ".json")["shared"].get<bool>();
  EXPECT_LE(starters, 1U);  // none if the first run's mount still is there
}

TEST_P(PythonOfUsers, killed_fs_gen_leaves_nothing) {
  const auto ours =
      sh("cd $OUT; $FS_GEN -q /usr/bin/python3 -c 'import time, json; open(\"up\", \"x\"); "
         "time.sleep(600)' & while [ ! -e up ]; do sleep 0.01; done; kill -9 $!; wait; echo gone");
  EXPECT_THAT(ours.out, HasSubstr("gone"));
}

TEST_P(PythonOfUsers, what_is_left_out_of_a_tree_is_the_original) {
  const auto ours = sh(
      "mkdir -p $OUT/lib/data $OUT/lib/closed && cd $OUT/lib && touch thing.py && mkfifo pipe && "
      "chmod 000 closed && cd / && $FS_GEN -q --json $OUT/r.json --tree $OUT/lib --tree-exclude "
      "$OUT/lib/data /bin/sh -c 'cd $OUT/lib; echo data > data/new; cat data/new; "
      "(echo piped > pipe &); cat pipe; ls closed 2>&1 | grep -o denied; "
      "touch new 2>&1 | grep -o Read-only'; ls $OUT/lib/data");
  EXPECT_EQ(ours.out, GetParam().uid == 0 ? "data\npiped\nRead-only\nnew\n"
                                          : "data\npiped\ndenied\nRead-only\nnew\n")
      << ours.err;
  EXPECT_EQ(world_->report("r.json")["first_refused"], world_->dir() / "out/lib/new");
  (void)sh("chmod 700 $OUT/lib/closed");
}

TEST_P(PythonOfUsers, report_of_a_shared_mount_names_no_path_of_another_run) {
  const auto ours =
      sh("mkdir $OUT/lib; echo one > $OUT/lib/file; $FS_GEN -q --out $OUT/map --tree $OUT/lib sh "
         "-c :; "
         "$FS_GEN -q --map $OUT/map --json $OUT/first.json sh -c 'touch $OUT/lib/mine; > $OUT/up; "
         "while [ ! -e $OUT/go ]; do sleep 0.01; done; cat $OUT/lib/file; > $OUT/up2; "
         "while [ ! -e $OUT/go2 ]; do sleep 0.01; done' 2> /dev/null & "
         "while [ ! -e $OUT/up ]; do sleep 0.01; done; echo other > $OUT/lib/file; > $OUT/go; "
         "while [ ! -e $OUT/up2 ]; do sleep 0.01; done; $FS_GEN --map $OUT/map --json "
         "$OUT/second.json sh -c 'touch $OUT/lib/other 2> /dev/null; :'; > $OUT/go2; wait");
  const auto first = world_->report("first.json");
  EXPECT_EQ(first["changed_files"], 1U);
  EXPECT_EQ(first["first_refused"], world_->dir() / "out/lib/mine");
  const auto second = world_->report("second.json");
  EXPECT_TRUE(second["shared"].get<bool>());
  EXPECT_EQ(second["writes_refused"], 1U);
  EXPECT_FALSE(second.contains("first_refused"));
  EXPECT_EQ(second["changed_files"], 0U);
  EXPECT_TRUE(second["changed"].empty());
  EXPECT_THAT(ours.err, HasSubstr("1 writes (EROFS)\n"));
}

TEST_P(PythonOfUsers, tree_that_cannot_be_placed_does_not_stop_the_run) {
  UserWorld::World world;
  world.uid = GetParam().uid;
  world.forbidden = {"open_tree"};  // as before Linux 5.2
  const auto ours = world_->sh(world, "cd $OUT; $FS_GEN -q --json $OUT/r.json" + kImport);
  EXPECT_EQ(ours.out, "/usr/lib/python3.11/json/__init__.py\n") << ours.err;
  EXPECT_THAT(ours.err, HasSubstr("continuing without directory trees"));
  EXPECT_TRUE(world_->report("r.json")["trees"].empty());
  EXPECT_EQ(world_->report("r.json")["via"],
            GetParam().uid == 0 ? "mount namespace" : "user namespace");
}

TEST_P(PythonOfUsers, tree_of_the_users_map_that_cannot_be_placed_is_refused_with_a_remedy) {
  UserWorld::World world;
  world.uid = GetParam().uid;
  world.forbidden = {"open_tree"};
  const auto ours = world_->sh(world,
                               "mkdir $OUT/lib; $FS_GEN -q --out $OUT/map --tree $OUT/lib sh -c :; "
                               "$FS_GEN -q --map $OUT/map sh -c 'echo ran' 2> $OUT/err; echo $?; "
                               "grep -c 'hint:.*Linux 5.2' $OUT/err");
  EXPECT_EQ(ours.out, "3\n1\n") << ours.err << world_->out("err");
}

TEST_P(PythonOfUsers, run_is_the_same_and_has_trees) {
  const auto ours = sh("cd $OUT; $FS_GEN -q --json $OUT/r.json" + kImport);
  EXPECT_EQ(ours.out, "/usr/lib/python3.11/json/__init__.py\n") << ours.err;
  EXPECT_EQ(ours.err, "");
  EXPECT_FALSE(world_->report("r.json")["trees"].empty()) << world_->out("r.json");
}

INSTANTIATE_TEST_SUITE_P(Users, PythonOfUsers, ::testing::Values(Who{"root", 0}, Who{"user", 1500}),
                         [](const auto& who) { return who.param.name; });

}  // namespace
}  // namespace heddle::test
