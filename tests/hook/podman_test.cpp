// SPDX-License-Identifier: MIT
//
// podman, of root and of a user, with the hook file and the CDI specification that fs-hook writes;
// and a user's containers without podman. As on most nodes, /dev/fuse is open to all users, and
// cgroups are not writable for them.

#include "tests/hook/podman_session.hpp"
#include "tests/jobs/archive_text.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

class Podman : public PodmanTest {
 protected:
  void SetUp() override {
    PodmanTest::SetUp();
    if (IsSkipped()) return;
    // podman makes /etc/mtab and the like in a --rootfs.
    if (is_user()) run_checked({"chown", "-R", "1500:1500", world_->rootfs()});
    install({"--allow-annotations", "/"});
  }
  void expect_nothing_left() const {
    EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
    EXPECT_EQ(world_->mounts(), 0U);
  }
};

class PodmanOfAUser : public Podman {};
class PodmanOfRoot : public Podman {};

const Strings kAnnotation{"--annotation", "heddle.mpi=host"};

TEST_P(Podman, annotated_container_runs_on_the_hosts_library) {
  const auto ran = run_image(kAnnotation, {"/bin/app"});
  EXPECT_EQ(ran.out, "host\n") << ran.err << log();
  EXPECT_EQ(run_image({}, {"/bin/app"}).out, "container\n");
  EXPECT_EQ(run_image({"--annotation", "heddle.mpi=off"}, {"/bin/app"}).out, "container\n");
  expect_nothing_left();
}

TEST_P(Podman, job_in_a_container_has_its_id) {
  HEDDLE_STAGED(fs_job, "fs-job");
  const auto stage = fs_job.substr(0, fs_job.rfind("/bin/"));
  const auto out = session_->path("out");
  fs::create_directory(out);
  ASSERT_EQ(::chown(out.c_str(), is_user() ? kUser : 0, is_user() ? kUser : 0), 0);
  Strings options{
      "--cidfile", out + "/id",   "--env", "HEDDLE_JOB_SPOOL=/out/spool", "--env", "SLURM_JOB_ID=1",
      "-v",        out + ":/out", "-v",    stage + ":" + stage + ":ro"};
  for (const std::string directory : {"/usr", "/bin", "/lib", "/lib64"})  // this machine's programs
    options = options + Strings{"-v", directory + ":" + directory + ":ro"};
  const auto ran = run_image(options, {fs_job, "run", "-q", "--to", "/out", "true"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  Strings archives;
  for (const auto& entry : fs::directory_iterator(out))
    if (entry.path().extension() == ".gz") archives.push_back(entry.path());
  ASSERT_EQ(archives.size(), 1U) << ran.err;
  const auto archive = read_job(archives[0]);
  const auto id = value_or_throw(read_file(out + "/id"));
  EXPECT_EQ(id.size(), 64U);
  EXPECT_EQ(archive.job["container"], id);
  EXPECT_EQ(archive.of("true").size(), 1U);
}

TEST_P(PodmanOfAUser, keep_id_container_runs_on_the_hosts_library) {
  const auto ran =
      run_image(kAnnotation + Strings{"--userns=keep-id", "--passwd=false"}, {"/bin/app"});
  EXPECT_EQ(ran.out, "host\n") << ran.err << log();
  expect_nothing_left();
}

TEST_P(Podman, container_with_mapped_users_runs_on_the_hosts_library) {
  const std::string root = is_user() ? "300000" : "100000";
  run_checked({"chown", "-R", root + ":" + root, world_->rootfs()});
  const Strings mapped{"--uidmap", is_user() ? "0:1:1000" : "0:100000:65536", "--passwd=false"};
  const auto ran = run_image(kAnnotation + mapped, {"/bin/app"});
  EXPECT_EQ(ran.out, "host\n") << ran.err << log();
  expect_nothing_left();
}

/// Root of a user's namespace is not the machine's root.
TEST_P(PodmanOfAUser, podman_unshare_uses_the_users_directories) {
  const auto spec = session_->run(session_->words() + Strings{"unshare", world_->hook(), "cdi"});
  for (const char* file : {"/.cache/heddle/images", "/.local/state/heddle-hook.log"})
    EXPECT_THAT(spec.out, HasSubstr(session_->path("home") + file)) << spec.err;
}

/// All of a user's containers run in the user namespace that `podman unshare` enters, so they may
/// use FUSE mounts made there.
TEST_P(PodmanOfAUser, containers_of_a_user_share_one_mount) {
  install({"--allow-annotations", "/", "--node", "/mnt/node"});
  std::string unshare;
  for (const auto& word : session_->words()) unshare += "'" + word + "' ";
  const auto script =
      unshare +
      "unshare sh -c 'echo $$ >/mnt/pid; exec \"$0\" --prefetch 0 --node "
      "/mnt/node' '" +
      world_->path("stage/bin/fs-mount") +
      "' </dev/null >/dev/null 2>&1 &\n"
      "for i in $(seq 400); do [ ! -e /mnt/node/socket ] || break; sleep 0.05; done\n"
      "\"$@\"; \"$@\"; kill $(cat /mnt/pid); wait\n";
  const auto ran = session_->run(Strings{"sh", "-c", script, "sh"} +
                                 image_words(kAnnotation, {"/bin/app", "/dev/heddle"}));
  const auto second = ran.out.rfind("host\n");
  ASSERT_TRUE(ran.out.starts_with("host\n") && second > 0) << ran.out << ran.err << log();
  const auto pid_in = [](const std::string& text) {
    return Json::parse(text.substr(text.find('{'))).at("supervisor_pid");
  };
  EXPECT_EQ(pid_in(ran.out.substr(0, second)), pid_in(ran.out.substr(second)));
  EXPECT_THAT(log(), HasSubstr("by the node's mount"));
  EXPECT_THAT(log(), Not(HasSubstr("a mount of its own")));
  expect_nothing_left();
}

TEST_P(PodmanOfRoot, cdi_device_enables_the_swap) {
  const auto ran = run_image({"--device", "heddle/mpi=host"}, {"/bin/app"}, cdi_setup());
  EXPECT_EQ(ran.out, "host\n") << ran.err << log();
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Oci, Podman, ::testing::Values("runc", "crun", "user_runc", "user_crun"),
                         kParameterName);
INSTANTIATE_TEST_SUITE_P(Oci, PodmanOfAUser, ::testing::Values("user_runc", "user_crun"),
                         kParameterName);
INSTANTIATE_TEST_SUITE_P(Oci, PodmanOfRoot, ::testing::Values("runc", "crun"), kParameterName);

/// A user's container, started by the runtime without podman.
class UserContainer : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("only root can become another user");
    if (const auto reason = why_not(GetParam()); !reason.empty()) HEDDLE_SKIP(reason);
    world_ = std::make_unique<ContainerWorld>();
    for (const char* directory : {"user", "user/run", "user/home"}) {
      fs::create_directory(world_->path(directory));
      ASSERT_EQ(::chown(world_->path(directory).c_str(), kUser, kUser), 0);
      ::chmod(world_->path(directory).c_str(), 0700);
    }
  }
  Json config(const std::string& stage, const Strings& args) const {
    auto config = world_->config(args);
    auto hook = world_->hook_json(stage);
    hook["args"] = {
        "fs-hook", "oci",     "--allow-annotations",      "/",     "--stage",
        stage,     "--cache", world_->path("user/cache"), "--log", world_->path("user/hook.log")};
    config["hooks"] = {{stage, {hook}}};
    add_user_namespace(config, kUser);
    return config;
  }
  RunResult start(const Json& config) const {
    const auto id = "heddle-user-" + std::to_string(::getpid());
    return run(session_command({world_->path("user/home"), world_->path("user/run")}) +
               Strings{GetParam(), "--root", world_->path("user/run/state")} +
               (GetParam() == "crun" ? Strings{"--cgroup-manager", "disabled"} : Strings()) +
               Strings{"run", "--bundle", world_->bundle("bundle", config), id});
  }
  std::string log() const { return read_file(world_->path("user/hook.log")).value_or(""); }
  void expect_nothing_left() const {
    EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
    EXPECT_EQ(world_->mounts(), 0U);
    EXPECT_TRUE(!fs::exists(world_->path("user/run/state")) ||
                fs::is_empty(world_->path("user/run/state")));
  }
  std::unique_ptr<ContainerWorld> world_;
};

TEST_P(UserContainer, program_runs_on_the_hosts_library) {
  const auto before = world_->image_state();
  // A user's createRuntime hook cannot see crun's process.
  const auto ran =
      start(config(GetParam() == "crun" ? "createContainer" : "createRuntime", {"/bin/app"}));
  EXPECT_EQ(ran.out, "host\n") << ran.err << log();
  EXPECT_EQ(world_->image_state(), before);
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Oci, UserContainer, ::testing::Values("runc", "crun"), kParameterName);

}  // namespace
}  // namespace heddle::test
