// SPDX-License-Identifier: MIT
//
// podman with the hook file and the CDI specification that fs-hook writes, as root and as a user;
// and a user's plain containers. As on most nodes, /dev/fuse is open to all, and cgroups are the
// administrator's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.hpp"
#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/hook/podman_session.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Podman : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("only root can become another user");
    if (const auto reason = why_not(runtime()); !reason.empty()) HEDDLE_SKIP(reason);
    if (run({"sh", "-c", "command -v podman"}).status != 0) HEDDLE_SKIP("podman is not installed");
    world_ = std::make_unique<ContainerWorld>();
    session_ =
        std::make_unique<PodmanSession>(world_->path("user"), runtime(), is_user() ? kUser : 0);
    // podman makes /etc/mtab and the like in a --rootfs.
    if (is_user()) run_checked({"chown", "-R", "1500:1500", world_->rootfs()});
    install();
  }
  void install(const std::vector<std::string>& options = {}) const {
    std::vector<std::string> argv{world_->hook(),
                                  "install",
                                  "--dir",
                                  world_->path("user/hooks.d"),
                                  "--cache",
                                  world_->path("user/cache"),
                                  "--log",
                                  log_path(),
                                  "--allow-annotations",
                                  "/"};
    argv.insert(argv.end(), options.begin(), options.end());
    const auto ran = session_->run(argv);
    ASSERT_EQ(ran.status, 0) << ran.err;
  }
  bool is_user() const { return GetParam().starts_with("user_"); }
  std::string runtime() const { return is_user() ? GetParam().substr(5) : GetParam(); }
  std::string log_path() const { return world_->path("user/hook.log"); }
  std::string log() const { return read_file(log_path()).value_or(""); }

  std::vector<std::string> run_words(const std::vector<std::string>& options,
                                     const std::vector<std::string>& command) const {
    auto argv = session_->run_words(options);
    argv.insert(argv.end(), {"--rootfs", world_->rootfs()});
    argv.insert(argv.end(), command.begin(), command.end());
    return argv;
  }
  RunResult podman(const std::vector<std::string>& options, const std::vector<std::string>& command,
                   const std::string& before = "true") const {
    return session_->run(run_words(options, command), before);
  }
  void expect_nothing_left() const {
    EXPECT_TRUE(wait_until(5s, [&] { return world_->daemons().empty(); }));
    EXPECT_EQ(world_->mounts(), 0U);
  }
  /// podman tidies up in the background.
  void TearDown() override {
    if (!world_) return;
    EXPECT_TRUE(wait_until(20s, [&] { return world_->processes().empty(); }));
  }
  std::unique_ptr<ContainerWorld> world_;
  std::unique_ptr<PodmanSession> session_;
};

class PodmanOfAUser : public Podman {};
/// podman 4.3 reads CDI specifications from the system's directories alone.
class PodmanOfRoot : public Podman {};

const std::vector<std::string> kAnnotation{"--annotation", "heddle.mpi=host"};

TEST_P(Podman, runs_on_the_hosts_library_where_annotated) {
  const auto ran = podman(kAnnotation, {"/bin/app"});
  EXPECT_EQ(ran.out, "host\n") << ran.err << log();
  EXPECT_EQ(podman({}, {"/bin/app"}).out, "container\n");
  EXPECT_EQ(podman({"--annotation", "heddle.mpi=off"}, {"/bin/app"}).out, "container\n");
  expect_nothing_left();
}

TEST_P(PodmanOfAUser, keeps_his_id) {
  auto options = kAnnotation;
  options.insert(options.end(), {"--userns=keep-id", "--passwd=false"});
  const auto ran = podman(options, {"/bin/app"});
  EXPECT_EQ(ran.out, "host\n") << ran.err << log();
  expect_nothing_left();
}

/// Root of his own namespace is not root.
TEST_P(PodmanOfAUser, has_his_own_directories_in_podman_unshare_too) {
  auto argv = session_->words();
  argv.insert(argv.end(), {"unshare", world_->hook(), "cdi"});
  const auto spec = session_->run(argv);
  for (const char* file : {"/.cache/heddle/images", "/.local/state/heddle-hook.log"})
    EXPECT_THAT(spec.out, HasSubstr(session_->path("home") + file)) << spec.err;
}

/// `podman unshare` is the user namespace of all his containers: FUSE mounted there is open to
/// them.
TEST_P(PodmanOfAUser, shares_one_mount_among_his_containers) {
  install({"--node", "/mnt/node"});
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
  std::vector<std::string> argv{"sh", "-c", script, "sh"};
  const auto words = run_words(kAnnotation, {"/bin/app", "/dev/heddle"});
  argv.insert(argv.end(), words.begin(), words.end());
  const auto ran = session_->run(argv);
  const auto second = ran.out.rfind("host\n");
  ASSERT_TRUE(ran.out.starts_with("host\n") && second > 0) << ran.out << ran.err << log();
  const auto pid_in = [](const std::string& text) {
    return nlohmann::json::parse(text.substr(text.find('{'))).at("supervisor_pid");
  };
  EXPECT_EQ(pid_in(ran.out.substr(0, second)), pid_in(ran.out.substr(second)));
  EXPECT_THAT(log(), HasSubstr("by the node's mount"));
  EXPECT_THAT(log(), ::testing::Not(HasSubstr("a mount of its own")));
  expect_nothing_left();
}

TEST_P(Podman, is_refused_with_the_reason) {
  auto decision = world_->swap();
  decision["outcome"] = "incompatible";
  decision["reason"] = "the reason";
  world_->answer(decision, 1);
  const auto ran = podman(kAnnotation, {"/bin/app"});
  EXPECT_NE(ran.status, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(log(), HasSubstr("error: the reason"));
  expect_nothing_left();
}

TEST_P(PodmanOfRoot, takes_it_as_a_cdi_device) {
  const auto spec =
      run({world_->hook(), "cdi", "--cache", world_->path("user/cache"), "--log", log_path()});
  write_text_file(world_->path("heddle.json"), spec.out);
  const auto ran = podman({"--device", "heddle/mpi=host"}, {"/bin/app"},
                          "mount -t tmpfs tmpfs /run; mkdir /run/cdi; cp " +
                              world_->path("heddle.json") + " /run/cdi/");
  EXPECT_EQ(ran.out, "host\n") << ran.err << log();
  expect_nothing_left();
}

const auto kName = [](const auto& each) { return each.param; };
INSTANTIATE_TEST_SUITE_P(Oci, Podman, ::testing::Values("runc", "crun", "user_runc", "user_crun"),
                         kName);
INSTANTIATE_TEST_SUITE_P(Oci, PodmanOfAUser, ::testing::Values("user_runc", "user_crun"), kName);
INSTANTIATE_TEST_SUITE_P(Oci, PodmanOfRoot, ::testing::Values("runc", "crun"), kName);

/// Of a user who is not root, by the runtime alone.
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
  nlohmann::json config(const std::string& stage, const std::vector<std::string>& args) const {
    auto config = world_->config(args);
    auto hook = world_->hook_json(stage);
    hook["args"] = {
        "fs-hook", "oci",     "--allow-annotations",      "/",     "--stage",
        stage,     "--cache", world_->path("user/cache"), "--log", world_->path("user/hook.log")};
    config["hooks"] = {{stage, {hook}}};
    config["linux"]["namespaces"].push_back({{"type", "user"}});
    for (const char* map : {"uidMappings", "gidMappings"})
      config["linux"][map] = {{{"containerID", 0}, {"hostID", kUser}, {"size", 1}}};
    return config;
  }
  RunResult start(const nlohmann::json& config, const std::string& fuse = "open") const {
    const auto id = "heddle-user-" + std::to_string(::getpid());
    auto argv = words_of({world_->path("user/home"), world_->path("user/run"), kUser, fuse});
    argv.insert(argv.end(), {GetParam(), "--root", world_->path("user/run/state")});
    if (GetParam() == "crun") argv.insert(argv.end(), {"--cgroup-manager", "disabled"});
    argv.insert(argv.end(), {"run", "--bundle", world_->bundle("bundle", config), id});
    return run(argv);
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

TEST_P(UserContainer, runs_on_the_hosts_library) {
  const auto before = world_->image_state();
  // crun's process is hidden from a user's createRuntime hook.
  const auto ran =
      start(config(GetParam() == "crun" ? "createContainer" : "createRuntime", {"/bin/app"}));
  EXPECT_EQ(ran.out, "host\n") << ran.err << log();
  EXPECT_EQ(world_->image_state(), before);
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Oci, UserContainer, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace heddle::test
