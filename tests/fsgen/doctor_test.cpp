// SPDX-License-Identifier: MIT
// fs-gen --doctor: what it says of nodes that lack something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/utsname.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/fsgen/user_world.hpp"

namespace heddle::test {
namespace {

using ::testing::HasSubstr;

class Doctor : public UserWorldFixture {
 protected:
  struct Answer {
    int status = -1;
    bool works = false;
    std::map<std::string, nlohmann::json> checks;  ///< the last of each name
  };
  Answer ask(const UserWorld::World& world,
             const std::string& command = "$FS_GEN --doctor --json -") const {
    const auto run = world_->sh(world, command);
    const auto json = nlohmann::json::parse(run.out, nullptr, false);
    Answer answer{.status = run.status, .works = false, .checks = {}};
    if (!json.is_object()) {
      ADD_FAILURE() << run.out << run.err;
      return answer;
    }
    answer.works = json["works"];
    for (const auto& check : json["checks"]) answer.checks[check["check"]] = check;
    return answer;
  }
};

TEST_F(Doctor, finds_every_way_of_root_and_users) {
  for (const unsigned uid : {0U, 1500U}) {
    SCOPED_TRACE(uid);
    auto answer = ask({.uid = uid, .forbidden = {}});
    EXPECT_EQ(answer.status, 0);
    EXPECT_TRUE(answer.works);
    for (const char* check : {"direct", "private", "fusermount", "fuse", "libc", "sharing"})
      EXPECT_EQ(answer.checks[check]["state"], "ok") << answer.checks[check];
    EXPECT_EQ(answer.checks.contains("userns"), uid != 0);
  }
}

TEST_F(Doctor, cache_needs_a_directory_of_the_user) {
  EXPECT_EQ(ask({}).checks["cache"]["state"], "absent") << "others may write to HOME";
  auto answer = ask({}, "mkdir -m 700 $OUT/own; XDG_CACHE_HOME=$OUT/own $FS_GEN --doctor --json -");
  EXPECT_EQ(answer.checks["cache"]["state"], "ok");
}

TEST_F(Doctor, names_what_is_missing_and_the_remedy) {
  struct {
    UserWorld::World world;
    const char* check;
    const char* text;
    const char* hint;
  } const cases[] = {
      {{.fuse = "absent", .forbidden = {}}, "fuse", "/dev/fuse", "modprobe fuse"},
      {{.fuse = "absent", .forbidden = {}}, "private", "/dev/fuse", "modprobe fuse"},
      {{.forbidden = {"unshare"}}, "userns", "user namespace", "user.max_user_namespaces"},
      {{.forbidden = {"unshare"}}, "private", "user namespace", "max_user_namespaces"},
      {{.forbidden = {}, .mtab = "absent"}, "fusermount", "/etc/mtab", "ln -s"},
  };
  for (const auto& [world, check, text, hint] : cases) {
    SCOPED_TRACE(check);
    auto answer = ask(world);
    EXPECT_EQ(answer.status, 0) << "--via direct needs none of this";
    EXPECT_EQ(answer.checks[check]["state"], "fails");
    EXPECT_THAT(answer.checks[check]["text"].get<std::string>(), HasSubstr(text));
    EXPECT_THAT(answer.checks[check]["hint"].get<std::string>(), HasSubstr(hint));
    EXPECT_EQ(answer.checks["direct"]["state"], "ok");
  }
}

TEST_F(Doctor, fails_where_no_way_works) {
  auto alone = ask({}, "cp $FS_GEN $OUT/fs-gen; $OUT/fs-gen --doctor --json -");
  EXPECT_EQ(alone.status, 3);
  EXPECT_FALSE(alone.works);
  EXPECT_THAT(alone.checks["install"]["hint"].get<std::string>(), HasSubstr("unpack all"));
  auto full = ask({.uid = 0, .forbidden = {}},
                  "mount -t tmpfs -o size=4k tmpfs $TMPDIR; head -c 4096 /dev/zero > $TMPDIR/all; "
                  "$FS_GEN --doctor --json -; umount $TMPDIR");
  EXPECT_FALSE(full.works);
  EXPECT_THAT(full.checks["private"]["text"].get<std::string>(), HasSubstr("No space left"));
}

TEST_F(Doctor, names_the_components_that_are_not_installed) {
  auto whole = ask({});
  EXPECT_EQ(whole.checks["fs-launch"]["state"], "ok");
  auto part = ask({},
                  "cp -a $(dirname $FS_GEN)/.. $OUT/part; rm $OUT/part/bin/fs-launch "
                  "$OUT/part/libexec/heddle/*-client; "
                  "$OUT/part/bin/fs-gen --doctor --json -");
  EXPECT_TRUE(part.works);
  for (const auto& [check, hint] :
       {std::pair("fs-launch", "unpack all"), std::pair("registry", "heddle-server"),
        std::pair("server", "heddle-server")}) {
    EXPECT_EQ(part.checks[check]["state"], "absent") << check;
    EXPECT_THAT(part.checks[check]["hint"].get<std::string>(), HasSubstr(hint));
  }
}

TEST_F(Doctor, noexec_and_a_missing_worker_are_named) {
  const std::string begin = "cp -a $(dirname $FS_GEN)/.. $OUT/copy; ";
  auto gone = ask(
      {}, begin + "rm $OUT/copy/libexec/heddle/elf-worker; $OUT/copy/bin/fs-gen --doctor --json -");
  EXPECT_FALSE(gone.works);
  EXPECT_THAT(gone.checks["install"]["text"].get<std::string>(), HasSubstr("elf-worker"));
  auto noexec = ask(
      {.uid = 0, .forbidden = {}},
      begin +
          "mount --bind $OUT/copy/lib $OUT/copy/lib; mount -o remount,bind,noexec $OUT/copy/lib; "
          "$OUT/copy/bin/fs-gen --doctor --json -; umount $OUT/copy/lib");
  EXPECT_FALSE(noexec.works);
  EXPECT_THAT(noexec.checks["install"]["text"].get<std::string>(), HasSubstr("noexec"));
}

TEST_F(Doctor, hook_of_a_removed_installation_is_reported) {
  const std::string directory = "$OUT/config/containers/oci/hooks.d";
  const std::string begin = "export XDG_CONFIG_HOME=$OUT/config; mkdir -p " + directory + "; ";
  const auto hook = [&](const std::string& text) {
    return begin + "printf '%s' '" + text + "' > " + directory +
           "/heddle.json; $FS_GEN --doctor --json -";
  };
  auto gone = ask({}, hook(R"({"hook": {"path": "/nowhere/fs-hook"}})"));
  EXPECT_EQ(gone.checks["hook"]["state"], "fails");
  EXPECT_THAT(gone.checks["hook"]["text"].get<std::string>(), HasSubstr("/nowhere/fs-hook"));
  auto there = ask({}, hook("\"path\": \"'$(dirname $FS_GEN)'/fs-hook\""));
  EXPECT_EQ(there.checks["hook"]["state"], "ok") << there.checks["hook"];
  // Others' files of hooks: any bytes.
  for (const char* odd : {"/fs-hook\"", "\"/fs-hook\"", "", "{"})
    EXPECT_EQ(ask({}, hook(odd)).status, 0) << odd;
  const auto fifo = world_->sh(begin + "mkfifo " + directory + "/a.json; $FS_GEN --doctor");
  EXPECT_EQ(fifo.status, 0) << fifo.err;
}

TEST_F(Doctor, knows_the_nodes_kernel_mpi_and_slurm) {
  utsname kernel{};
  ::uname(&kernel);
  const auto text = world_->sh("$FS_GEN --doctor").out;
  EXPECT_THAT(text, HasSubstr(std::string("kernel      Linux ") + kernel.release + "\n"));
  const auto without = world_->sh({.forbidden = {"landlock_create_ruleset"}}, "$FS_GEN --doctor");
  EXPECT_THAT(without.out, HasSubstr("no Landlock (Linux 5.13, or a sandbox forbids it)"));
  const std::string begin = "mkdir $OUT/bin; printf '#!/bin/sh\n' > $OUT/bin/srun; ";
  EXPECT_EQ(ask({}, begin + "PATH=$OUT/bin $FS_GEN --doctor --json -").checks["slurm"]["state"],
            "absent")
      << "it is not executable";
  auto there = ask({}, "chmod 755 $OUT/bin/srun; PATH=$OUT/bin $FS_GEN --doctor --json -");
  EXPECT_EQ(there.checks["slurm"]["state"], "ok");
  EXPECT_TRUE(there.checks["slurm"]["text"].get<std::string>().ends_with("/bin/srun"));
  const bool has_mpi = run({"sh", "-c", "ldconfig -p | grep -q libmpi"}).status == 0;
  EXPECT_EQ(there.checks["mpi"]["state"], has_mpi ? "ok" : "absent") << there.checks["mpi"];
  if (has_mpi)
    EXPECT_THAT(there.checks["mpi"]["text"].get<std::string>(), HasSubstr("/libmpi"));
  else
    EXPECT_THAT(there.checks["mpi"]["hint"].get<std::string>(), HasSubstr("module"));
}

TEST_F(Doctor, prints_a_line_for_each_check) {
  const auto text = world_->sh("$FS_GEN --doctor");
  EXPECT_EQ(text.status, 0);
  EXPECT_EQ(text.err, "");
  EXPECT_TRUE(text.out.starts_with("heddle ")) << text.out;
  EXPECT_THAT(text.out, HasSubstr("\nok      direct      works\n"));
  EXPECT_TRUE(text.out.ends_with("\nfs-gen guides programs here\n")) << text.out;
  EXPECT_EQ(world_->sh("$FS_GEN --doctor /bin/true").status, 2);
  EXPECT_EQ(world_->sh("$FS_GEN --doctor > /dev/full").status, 3);
  for (const char* environment : {"HEDDLE=off", "SLURM_PROCID=3"})
    EXPECT_EQ(world_->sh(std::string(environment) + " $FS_GEN --doctor").status, 0) << environment;
}

}  // namespace
}  // namespace heddle::test
