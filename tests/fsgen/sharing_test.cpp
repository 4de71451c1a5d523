// SPDX-License-Identifier: MIT
// fs-gens of one user and one map share one daemon and leave nothing, whichever is killed.

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/fsgen/user_world.hpp"
#include "tests/support/fuse_kernel.hpp"
#include "tests/support/occurrences.hpp"

namespace heddle::test {
namespace {

const std::string& git() {
  static const std::string line = run({"/usr/bin/git", "--version"}).out;
  return line;
}

struct Users {
  const char* name;
  unsigned uid;
  const char* option;  ///< of each fs-gen
};

class Sharing : public UserWorldFixture, public ::testing::WithParamInterface<Users> {
 protected:
  void SetUp() override {
    if (!is_by_fusermount()) HEDDLE_NEEDS_OPEN_TREE();
    UserWorldFixture::SetUp();
    if (!world_) return;
    where_.uid = GetParam().uid;
    const auto made = sh("$FS_GEN -q --out $OUT/map /usr/bin/git --version > /dev/null; echo $?");
    ASSERT_EQ(made.out, "0\n") << made.err;
  }
  RunResult sh(const std::string& script) const {
    return world_->sh(where_,
                      "FS_MOUNT=$(dirname $FS_GEN)/fs-mount; export FS_MOUNT; FS_GEN=\"$FS_GEN " +
                          std::string(GetParam().option) + "\"; " + script);
  }
  static bool is_by_fusermount() { return GetParam().uid != 0 && *GetParam().option == '\0'; }

  UserWorld::World where_;
};

// An fs-gen that uses the mount until $OUT/go exists; $OUT/daemon gets the daemon's pid.
const std::string kHolder =
    "rm -f $OUT/go $OUT/up; $FS_GEN -q --map $OUT/map --json $OUT/first.json /bin/sh -c '"
    "$FS_MOUNT --stats --json "
    "${HEDDLE_INDEX%/.heddle/index} | grep supervisor_pid | tr -dc 0-9 > $OUT/daemon; echo > "
    "$OUT/up; while [ ! -e $OUT/go ]; do sleep 0.01; done; "
    "/usr/bin/git --version' & first=$!; while [ ! -e $OUT/up ]; do sleep 0.01; done; ";
const std::string kGone =
    "while grep -q fuse.heddle /proc/self/mountinfo; do sleep 0.01; done; echo gone";

TEST_P(Sharing, second_fs_gen_shares_the_mount_and_outlives_the_first) {
  const auto ours =
      sh(kHolder +
         "$FS_GEN -q --map $OUT/map --json $OUT/second.json /bin/sh -c 'touch $OUT/go; "
         "while kill -0 '$first' 2>/dev/null; do sleep 0.01; done; /usr/bin/git --version'; "
         "wait; " +
         kGone);
  EXPECT_EQ(ours.out, git() + git() + "gone\n") << ours.err;
  EXPECT_FALSE(world_->report("first.json")["shared"].get<bool>());
  EXPECT_TRUE(world_->report("second.json")["shared"].get<bool>());
  EXPECT_GE(world_->report("second.json")["guided_processes"].get<unsigned>(), 1U);
}

TEST_P(Sharing, stopped_daemon_is_not_mistaken_for_a_dead_one) {
  const auto ours =
      sh(kHolder +
         "$FS_GEN -q --map $OUT/map /bin/sh -c 'kill -STOP $(cat $OUT/daemon)'; echo $?; "
         "kill -CONT $(cat $OUT/daemon); "
         "$FS_GEN -q --map $OUT/map --json $OUT/third.json /usr/bin/git --version; "
         "touch $OUT/go; wait; " +
         kGone);
  EXPECT_EQ(ours.out, "0\n" + git() + git() + "gone\n");
  EXPECT_EQ(ours.err, "");
  EXPECT_TRUE(world_->report("third.json")["shared"].get<bool>());
  EXPECT_GE(world_->report("third.json")["guided_processes"].get<unsigned>(), 1U);
}

TEST_P(Sharing, killed_and_stopped_members_affect_no_other) {
  const std::string second = "$FS_GEN -q --map $OUT/map --json $OUT/second.json ";
  const struct {
    const char* name;
    std::string script, out;
    std::optional<bool> shared;  ///< whether the second fs-gen shares the mount of the first
  } cases[] = {
      {"--no-share",
       "$FS_GEN -q --no-share --map $OUT/map --json $OUT/second.json /usr/bin/git --version; "
       "touch $OUT/go; wait; ",
       git() + git(), false},
      {"first killed",
       second + "/bin/sh -c 'kill -9 '$first'; while kill -0 '$first' 2>/dev/null; do sleep 0.01; "
                "done; sleep 0.05; /usr/bin/git --version'; ",
       git(), true},
      {"both killed",
       "$FS_GEN -q --map $OUT/map /bin/sh -c 'echo $$ > $OUT/up2; exec sleep 600' & second=$!; "
       "while [ ! -s $OUT/up2 ]; do sleep 0.01; done; kill -9 $first $second; wait; "
       "while kill -0 $(cat $OUT/up2) 2>/dev/null; do sleep 0.01; done; ",
       "", std::nullopt},
      {"daemon killed",
       // The mount ends with the last thread.
       "d=$(cat $OUT/daemon); kill -9 $d; while grep -qs '^State:.[^ZX]' /proc/$d/task/*/status; "
       "do sleep 0.01; done; " +
           second + "/usr/bin/git --version; kill $first; wait; ",
       git(), false},
      {"first stopped",
       "kill -STOP $first; " + second +
           "/usr/bin/git --version; kill -CONT $first; touch $OUT/go; wait; ",
       git() + git(), true}};
  for (const auto& [name, script, out, shared] : cases) {
    SCOPED_TRACE(name);
    const auto ours = sh(kHolder + script + kGone);
    EXPECT_EQ(ours.out, out + "gone\n") << ours.err;
    if (shared) {
      EXPECT_EQ(world_->report("second.json")["shared"].get<bool>(), *shared);
    }
    expect_nothing_left();
  }
}

TEST_P(Sharing, process_that_app_leaves_behind_keeps_the_mount) {
  const auto ours =
      sh("$FS_GEN -q --out $OUT/sh.map /bin/sh -c :; "
         "$FS_GEN -q --map $OUT/sh.map --json $OUT/first.json /bin/sh -c '(while [ ! -e $OUT/go ]; "
         "do sleep 0.01; done; ls $HEDDLE_INDEX; /usr/bin/git --version; echo > $OUT/done) "
         "> $OUT/text 2>&1 &'; touch $OUT/go; while [ ! -e $OUT/done ]; do sleep 0.01; done; " +
         kGone);
  EXPECT_EQ(ours.out, "gone\n") << ours.err;
  EXPECT_TRUE(world_->report("first.json")["left_running"].get<bool>());
  EXPECT_THAT(world_->out("text"), ::testing::EndsWith("/m/.heddle/index\n" + git()));
}

TEST_P(Sharing, stale_map_is_refused_to_every_client) {
  const auto ours =
      sh("cp /usr/bin/git $OUT/app; $FS_GEN -q --out $OUT/own.map $OUT/app --version > /dev/null; "
         "cp /usr/bin/env $OUT/app; "
         "for i in 1 2 3 4 5 6 7 8; do ($FS_GEN -q " +
         std::string(is_by_fusermount()    ? "--via fusermount"
                     : GetParam().uid == 0 ? "--via private"
                                           : "") +
         " --map $OUT/own.map /bin/echo ran 2> $OUT/err.$i; echo status $?) & done; wait; cat "
         "$OUT/err.*");
  EXPECT_EQ(occurrences(ours.out, "status 3\n"), 8U) << ours.out;
  EXPECT_EQ(occurrences(ours.out, "out/app: "), 8U) << ours.out;
}

TEST_P(Sharing, sixty_four_fs_gens_share_one_daemon) {
  // None ends before all have started.
  const auto ours = sh(
      "for i in $(seq 64); do $FS_GEN -q --map $OUT/map --json $OUT/$i.json /bin/sh -c "
      "\"/usr/bin/git --version; touch $OUT/up.$i; while [ ! -e $OUT/go ]; do sleep 0.05; done\" & "
      "done; while [ $(ls $OUT | grep -c '^up') -lt 64 ]; do sleep 0.05; done; touch $OUT/go; "
      "wait; " +
      kGone);
  EXPECT_EQ(occurrences(ours.out, git()), 64U) << ours.out << ours.err;
  EXPECT_EQ(ours.err, "");
  unsigned starters = 0;
  for (int i = 1; i <= 64; ++i)
    starters += !world_->report(std::to_string(i) + ".json")["shared"].get<bool>();
  EXPECT_EQ(starters, 1U);
}

TEST_P(Sharing, randomly_killed_fs_gens_leave_nothing) {
  const auto ours =
      sh("for i in $(seq 96); do $FS_GEN -q --map $OUT/map /usr/bin/git --version & "
         "[ $((i % 3)) = 0 ] && kill -9 $! 2> /dev/null; "  // which may have ended
         "[ $((i % 8)) = 0 ] && sleep 0.02; done > $OUT/text 2> $OUT/errors; wait; " +
         kGone +
         // The next fs-gen removes the directory of one killed before its mount was complete.
         "; touch -c -d '5 minutes ago' $TMPDIR/hd-* 2> /dev/null; $FS_GEN -q --map $OUT/map true");
  EXPECT_EQ(ours.out, "gone\n") << ours.err;
  EXPECT_EQ(world_->out("errors"), "");
}

const std::string& runs_in_a_row() {
  static const char* asked = std::getenv("HEDDLE_TEST_RUNS");
  static const std::string runs = asked ? asked : "60";
  return runs;
}

TEST_P(Sharing, repeated_runs_leak_no_descriptor_in_the_daemon) {
  // Descriptors of the daemon and of the first fs-gen.
  const auto ours = sh(
      kHolder +
      "fds() { for p in $(cat $OUT/daemon) $first; do ls /proc/$p/fd | wc -l; done; }; "
      "$FS_GEN -q --map $OUT/map /usr/bin/git --version > /dev/null; fds > $OUT/before; i=0; "
      "while [ $i -lt " +
      runs_in_a_row() +
      " ]; do $FS_GEN -q --map $OUT/map --json $OUT/last.json /usr/bin/git --version || echo bad; "
      "i=$((i + 1)); done | sort | uniq -c | tr -s ' '; "
      // The last connection may still be closing.
      "n=0; while fds > $OUT/after; ! cmp -s $OUT/before $OUT/after && [ $n -lt 200 ]; "
      "do sleep 0.01; n=$((n + 1)); done; touch $OUT/go; wait; " +
      kGone);
  EXPECT_EQ(ours.out, " " + runs_in_a_row() + " " + git() + git() + "gone\n") << ours.err;
  EXPECT_TRUE(world_->report("last.json")["shared"].get<bool>());
  EXPECT_EQ(world_->out("before"), world_->out("after"));
  EXPECT_EQ(("\n" + world_->out("before")).find("\n0\n"), std::string::npos)
      << world_->out("before");
}

INSTANTIATE_TEST_SUITE_P(Users, Sharing,
                         ::testing::Values(Users{"root", 0, ""}, Users{"user", 1500, ""},
                                           Users{"private_user", 1500, "--via private"}),
                         [](const auto& users) { return users.param.name; });

}  // namespace
}  // namespace heddle::test
