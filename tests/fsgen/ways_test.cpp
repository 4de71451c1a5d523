// SPDX-License-Identifier: MIT
// fs-gen's ways for root and users: which is chosen, what fails without it, and that none leaves
// anything behind.

#include <nlohmann/json.hpp>

#include "tests/fsgen/user_world.hpp"

namespace heddle::test {
namespace {

class Ways : public UserWorldFixture {};

constexpr const char* kRun =
    "$FS_GEN -q --json $OUT/report.json /usr/bin/git --version; echo $?; "
    "grep -c fuse.heddle /proc/self/mountinfo";

TEST_F(Ways, a_user_namespace_reports_its_limits) {
  const auto ours = world_->sh(
      "touch $OUT/file; $FS_GEN --via private --json $OUT/report.json /bin/sh -c "
      "'id -u; id -G; chgrp 4 $OUT/file 2>/dev/null || echo no chgrp'");
  EXPECT_EQ(ours.out, "1500\n1500 65534\nno chgrp\n") << ours.err;
  const auto report = world_->report("report.json");
  EXPECT_EQ(report["via"], "user namespace");
  EXPECT_EQ(report["limits"].size(), 3U);
  for (const char* word : {"65534", "chgrp", "setuid"})
    EXPECT_NE(ours.err.find(word), std::string::npos) << word;
}

TEST_F(Ways, hung_fusermount3_is_abandoned_and_started_again) {
  const auto ours = world_->sh(
      "mkdir $OUT/bin; cat > $OUT/bin/fusermount3 <<'END'\n#!/bin/sh\n"
      "[ $1 = -o ] || [ -e $OUT/go ] || { echo >> $OUT/hung; exec sleep 600; }\n"
      "exec /usr/bin/fusermount3 \"$@\"\nEND\n"
      "chmod +x $OUT/bin/fusermount3; PATH=$OUT/bin:$PATH; "
      "$FS_GEN -q --via fusermount /bin/echo ran; while [ ! -e $OUT/hung ]; do sleep 0.01; done; "
      "touch $OUT/go; while grep -q \"$TMPDIR.*fuse.heddle\" /proc/self/mountinfo; do sleep 0.01; "
      "done; "
      "echo gone");
  EXPECT_EQ(ours.out, "ran\ngone\n") << ours.err;
}

TEST_F(Ways, fusermount_keeps_groups_and_setuid_programs) {
  const auto ours = world_->sh(
      "touch $OUT/file; $FS_GEN -q --via fusermount /bin/sh -c "
      "'id -G; chgrp 4 $OUT/file && stat -c %g $OUT/file; /usr/bin/su --version | head -c 3'");
  EXPECT_EQ(ours.out, "1500 4\n4\nsu ") << ours.err;
}

TEST_F(Ways, fs_gen_falls_back_to_direct_with_a_warning) {
  struct {
    UserWorld::World world;
    std::size_t passed_over;
    const char* warning;
  } const cases[] = {
      {{.fuse = "absent", .forbidden = {"unshare"}}, 2, "continuing without a mount"},
      {{.uid = 0, .forbidden = {"unshare"}}, 1, "warning: mount namespace"},
      {{.uid = 0, .fuse = "absent", .forbidden = {}}, 1, "/dev/fuse"}};
  for (const auto& [world, passed_over, warning] : cases) {
    SCOPED_TRACE(warning);
    const auto ours = world_->sh(world, kRun);
    EXPECT_TRUE(ours.out.ends_with("\n0\n0\n")) << ours.out << ours.err;
    EXPECT_NE(ours.err.find(warning), std::string::npos) << ours.err;
    const auto report = world_->report("report.json");
    EXPECT_EQ(report["via"], "direct");
    EXPECT_TRUE(report["guided"].get<bool>());
    EXPECT_EQ(report["probes_with"], 0U);
    EXPECT_EQ(report["passed_over"].size(), passed_over);
  }
  const auto refused =
      world_->sh(cases[2].world,
                 "mkdir $OUT/mnt; $FS_GEN -q --out $OUT/map /bin/true 2> /dev/null;"
                 "$(dirname $FS_GEN)/fs-mount $OUT/map $OUT/mnt; echo $?");
  EXPECT_EQ(refused.out, "3\n");
  EXPECT_NE(refused.err.find("/dev/fuse: cannot open"), std::string::npos) << refused.err;
}

TEST_F(Ways, explain_names_the_way_that_a_run_takes_and_why_not_others) {
  struct {
    UserWorld::World world;
    const char* options;
    const char* mount;  ///< what is said of it
    const char* reason;
  } const cases[] = {
      {{.forbidden = {}}, "", "yes, serving all files", "way: fusermount3: works"},
      {{.uid = 0, .forbidden = {}}, "", "yes, serving all files", "way: mount namespace: works"},
      {{.forbidden = {}, .mtab = "absent"}, "", "yes, serving all files", "/etc/mtab"},
      {{.fuse = "absent", .forbidden = {"unshare"}},
       "",
       "no, none can be made here: the original files are opened",
       "cannot make a user namespace"},
      {{.uid = 0, .fuse = "absent", .forbidden = {}},
       "",
       "no, none can be made here: the original files are opened",
       "/dev/fuse"},
      {{.fuse = "absent", .forbidden = {}},
       "--via private",
       "no, none can be made here: the run would fail",
       "/dev/fuse"},
      {{.forbidden = {}}, "--via direct", "no, --via direct", ""},
  };
  for (const auto& [world, options, mount, reason] : cases) {
    SCOPED_TRACE(mount + std::string(reason));
    const auto gen = "$FS_GEN " + std::string(options);
    const auto told = world_->sh(world, gen + " --explain /usr/bin/git --version");
    EXPECT_EQ(told.status, 0) << told.err;
    EXPECT_NE(told.out.find(std::string("\nmount: ") + mount + "\n"), std::string::npos)
        << told.out;
    EXPECT_NE(told.out.find(reason), std::string::npos) << told.out;
    const auto file = "report" + std::to_string(world.uid);  // others may not replace root's
    const auto ours =
        world_->sh(world, gen + " -q --json $OUT/" + file + " /usr/bin/git --version");
    EXPECT_EQ(ours.status == 0, !std::string(mount).ends_with("fail")) << ours.err;
    if (ours.status != 0) continue;
    const std::string via = world_->report(file)["via"];
    EXPECT_EQ(via == "direct", told.out.find(": works\n") == std::string::npos) << via << told.out;
    if (via != "direct") {
      EXPECT_NE(told.out.find("\nway: " + via + ": works\n"), std::string::npos) << told.out;
    }
  }
}

TEST_F(Ways, requested_way_is_taken) {
  for (const unsigned uid : {0U, 1500U}) {
    const std::string privately = uid == 0 ? "mount namespace" : "user namespace";
    const std::pair<std::string, std::string> ways[] = {
        {"private", privately},
        {"fusermount", "fusermount3"},
        {"direct", "direct"},
        {"best", uid == 0 ? privately : "fusermount3"}};
    for (const auto& [option, name] : ways) {
      UserWorld::World world;
      world.uid = uid;
      const auto ours =
          world_->sh(world, "$FS_GEN -q --via " + option + " --json $OUT/r" + std::to_string(uid) +
                                " /usr/bin/git --version; grep -c fuse.heddle "
                                "/proc/self/mountinfo");
      EXPECT_TRUE(ours.out.starts_with("git version")) << option << ours.err;
      EXPECT_TRUE(ours.out.ends_with("\n0\n")) << option << ours.out;
      EXPECT_EQ(ours.err, "") << option;
      const auto report = world_->report("r" + std::to_string(uid));
      EXPECT_EQ(report["via"], name);
      EXPECT_TRUE(report["guided"].get<bool>()) << option;
      EXPECT_EQ(report["probes_with"], 0U) << option;
      EXPECT_EQ(report["limits"].size(), name == "user namespace" ? 3U : 0U);
      EXPECT_TRUE(report["passed_over"].empty());
    }
  }
}

TEST_F(Ways, failed_way_leaves_the_next_one_its_own_directory) {
  // A daemon that cannot serve removes the directory that it was to use.
  const auto ours = world_->sh(
      "mkdir -p $OUT/heddle/bin $OUT/lib; real=$(dirname $FS_GEN); "
      "cp -r $real/../lib $real/../libexec $OUT/heddle; cp $FS_GEN $OUT/heddle/bin; "
      "cat > $OUT/heddle/bin/fs-mount <<END\n#!/bin/sh\n"
      "case \"\\$*\" in *'--keep private'*) exit 1;; *--cleanup*) ;; "
      "*) exec $real/fs-mount \"\\$@\";; esac\n"
      "while [ \"\\$1\" != --cleanup ]; do shift; done; rm -r \"\\$2\"; exit 1\nEND\n"
      "chmod +x $OUT/heddle/bin/fs-mount; "
      "$OUT/heddle/bin/fs-gen --tree $OUT/lib --json $OUT/report.json /bin/echo ran");
  EXPECT_EQ(ours.out, "ran\n") << ours.err;
  EXPECT_EQ(world_->report("report.json")["via"], "fusermount3") << ours.err;
}

TEST_F(Ways, reloaded_mount_of_a_user_admits_that_user_s_other_namespaces) {
  const auto ours = world_->sh(
      "mkdir $OUT/m; $FS_GEN -q --out $OUT/map /bin/true; FS_MOUNT=$(dirname $FS_GEN)/fs-mount; "
      "export FS_MOUNT; unshare -U --map-current-user --keep-caps -m sh -c '"
      "$FS_MOUNT $OUT/map $OUT/m && grep -o fuse.heddle.* /proc/self/mountinfo; "
      "$FS_MOUNT --reload $OUT/map $OUT/m && grep -o fuse.heddle.* /proc/self/mountinfo; "
      "$FS_MOUNT -u $OUT/m'");
  // Three before Linux 6.5, which puts the new mount on top.
  EXPECT_GE(std::count(ours.out.begin(), ours.out.end(), '\n'), 2) << ours.out << ours.err;
  EXPECT_EQ(ours.out.find("allow_other"), std::string::npos) << ours.out;
}

TEST_F(Ways, missing_etc_mtab_rules_fusermount3_out) {
  UserWorld::World world;
  world.mtab = "absent";
  const auto ours = world_->sh(world, kRun);
  EXPECT_TRUE(ours.out.starts_with("git version")) << ours.out << ours.err;
  EXPECT_TRUE(ours.out.ends_with("\n0\n0\n")) << ours.out;
  const auto report = world_->report("report.json");
  EXPECT_EQ(report["via"], "user namespace");
  EXPECT_NE(report["passed_over"].dump().find("/etc/mtab"), std::string::npos) << report;
  const auto forced = world_->sh(world, "$FS_GEN --via fusermount /bin/echo ran");
  EXPECT_EQ(forced.status, 3);
  EXPECT_NE(forced.err.find("ln -s /proc/self/mounts /etc/mtab"), std::string::npos) << forced.err;
}

TEST_F(Ways, unavailable_way_fails_with_one_line_and_a_hint) {
  struct Impossible {
    const char* via;
    const char* fuse;
    std::vector<std::string> forbidden;
  };
  for (const auto& [via, fuse, forbidden] :
       {Impossible{"private", "open", {"unshare"}}, Impossible{"private", "absent", {}},
        Impossible{"fusermount", "absent", {}}}) {
    UserWorld::World world;
    world.fuse = fuse;
    world.forbidden = forbidden;
    const auto ours = world_->sh(world, std::string("$FS_GEN --via ") + via + " /bin/echo ran");
    EXPECT_EQ(ours.status, 3);
    EXPECT_EQ(ours.out, "");
    EXPECT_EQ(std::count(ours.err.begin(), ours.err.end(), '\n'), 2) << ours.err;
    EXPECT_NE(ours.err.find("\nhint: "), std::string::npos) << ours.err;
  }
}

}  // namespace
}  // namespace heddle::test
