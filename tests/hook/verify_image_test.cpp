// SPDX-License-Identifier: MIT
//
// fs-hook verify of an image that is not running: what the image's ld.so lists, and that the
// sandbox confines it.

#include "container-hooks/verify/verify.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/oci_config.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using hook::parse_loader_list;

constexpr const char* kLoader = "/lib64/ld-linux-x86-64.so.2";

class VerifyImage : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("only root can become another user");
    if (staged_program("fs-hook").empty()) HEDDLE_SKIP("fs-hook is not installed");
    if (!open_file("/dev/fuse", O_RDWR)) HEDDLE_SKIP("/dev/fuse cannot be opened");
    world_ = std::make_unique<ContainerWorld>();
    fs::create_directory(world_->path("user"));
    ASSERT_EQ(::chown(world_->path("user").c_str(), GetParam(), GetParam()), 0);
    write_text_file(world_->path("stage/bin/questions"), "");
    ::chmod(world_->path("stage/bin/questions").c_str(), 0666);
    world_->answer(decision());
  }
  Json decision() const {
    auto out = world_->swap();
    out["interpreter"] = {{"path", kLoader}, {"real_path", kLoader}, {"taken", "container"}};
    return out;
  }
  void answer_for(const std::string& program) const {
    auto out = decision();
    out["program"] = {program};
    world_->answer(out);
  }
  RunResult verify(const Strings& words) const {
    return run(Strings{HEDDLE_IN_WORLD, "--uid", std::to_string(GetParam()), "--", "env",
                       "HOME=" + world_->path("user"), world_->hook(), "verify", "--cache",
                       world_->path("user/cache")} +
               words);
  }
  RunResult verify_bundle(const Json& config, const Strings& options = {}) const {
    return verify(options + Strings{"--bundle", world_->bundle("bundle", config)});
  }
  RunResult verify_app(const Strings& options = {}) const {
    return verify_bundle(world_->config({"/bin/app"}), options);
  }
  void expect_verified(const Json& config) const {
    const auto ran = verify_bundle(config);
    EXPECT_EQ(ran.status, 0) << ran.out << ran.err;
  }
  /// Replaces the image's ld.so by a static program.
  void replace_loader(const std::string& source, const std::string& flag = "-O1") const {
    const auto loader = world_->rootfs() + kLoader;
    fs::remove(loader);
    build_program({.output = loader, .source = source, .flags = {"-static", flag}});
  }
  void expect_nothing_left() const {
    EXPECT_TRUE(wait_until(5s, [&] { return world_->processes().empty(); }));
    EXPECT_TRUE(wait_until(5s, [&] { return world_->mounts() == 0; }));
  }

  std::unique_ptr<ContainerWorld> world_;
};

TEST_P(VerifyImage, verify_lists_the_libraries_of_a_bundles_program) {
  const auto before = world_->image_state();
  const auto ran = verify_app();
  EXPECT_EQ(ran.status, 0) << ran.out << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("host       /usr/lib/libmpi.so.12\n"),
                             HasSubstr("container  /lib64/ld-linux-x86-64.so.2\n"),
                             HasSubstr("\nswapped: mpich 4.0.2\n")));
  const auto json = Json::parse(verify_app({"--json"}).out);
  EXPECT_EQ(json.at("swapped"), true);
  EXPECT_EQ(json.at("program"), "/bin/app");
  EXPECT_EQ(world_->image_state(), before);
  // What the command line does not say is taken from the bundle's hook.
  auto own = world_->config({"/bin/app"});
  own["hooks"]["createRuntime"] = {
      {{"path", world_->hook()}, {"args", {"fs-hook", "oci", "--mpi", "/its/mpi"}}}};
  (void)verify_bundle(own);
  EXPECT_THAT(value_or_throw(read_file(world_->path("stage/bin/questions"))),
              HasSubstr("--mpi /its/mpi"));
  expect_nothing_left();
}

TEST_P(VerifyImage, verify_finds_programs_in_a_root_file_system_or_a_volume) {
  EXPECT_EQ(verify({"--rootfs", world_->rootfs(), "--program", "/bin/app"}).status, 0);
  fs::create_directories(world_->path("volume"));
  fs::copy_file(world_->rootfs() + "/bin/app", world_->path("volume/solver"));
  auto config = world_->config({"/data/solver"});
  config["mounts"].push_back(oci_bind(world_->path("volume"), "/data"));
  answer_for("/data/solver");
  expect_verified(config);
  expect_nothing_left();
}

/// A runtime makes the mount point in the image; verify must not.
TEST_P(VerifyImage, volume_without_a_mount_point_in_the_image_is_mounted) {
  fs::create_directories(world_->path("volume"));
  fs::rename(world_->rootfs() + "/bin/app", world_->path("volume/solver"));
  const auto program = world_->path("volume/solver");
  auto config = world_->config({});
  config["mounts"].push_back(oci_bind(world_->path("volume"), "/new/directory"));
  config["mounts"].push_back(oci_bind(program, "/new/file"));
  config["mounts"].push_back(oci_bind(program, "/new/directory/in-the-volume"));
  const auto before = world_->image_state();
  for (const char* word : {"/new/directory/solver", "/new/file"}) {
    config["process"]["args"] = {word};
    answer_for(word);
    expect_verified(config);
  }
  EXPECT_EQ(world_->image_state(), before);
  EXPECT_FALSE(fs::exists(world_->path("volume/in-the-volume")));
  expect_nothing_left();
}

/// As podman mounts resolv.conf in an image made with systemd.
TEST_P(VerifyImage, volume_follows_a_dangling_link_of_the_image) {
  const auto link = [&](const std::string& target, const std::string& name) {
    fs::create_symlink(target, world_->rootfs() + name);
  };
  link("../run/systemd/resolve/stub-resolv.conf", "/etc/resolv.conf");
  link("round", "/etc/round");
  const auto before = world_->image_state();
  auto config = world_->config({"/bin/app"});
  config["mounts"].push_back(oci_bind("/etc/hostname", "/etc/resolv.conf"));
  config["mounts"].push_back(oci_bind("/etc/hostname", "/srv/none/file"));
  expect_verified(config);
  config["mounts"].push_back(oci_bind("/etc/hostname", "/etc/round"));
  const auto round = verify_bundle(config);
  EXPECT_EQ(round.status, 3);
  EXPECT_THAT(round.err, HasSubstr("/etc/round: "));
  EXPECT_EQ(world_->image_state(), before);
  expect_nothing_left();
}

TEST_P(VerifyImage, verify_examines_the_interpreter_of_a_script) {
  write_text_file(world_->rootfs() + "/bin/script", "#! /bin/other -x\n", 0755);
  write_text_file(world_->rootfs() + "/bin/other", "#!/bin/app\n", 0755);
  answer_for("/bin/script");
  const auto ran = verify_bundle(world_->config({"/bin/script"}));
  EXPECT_EQ(ran.status, 0) << ran.out << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("host       /usr/lib/libmpi.so.12\n"));
  write_text_file(world_->rootfs() + "/bin/other", "#!/bin/script\n", 0755);
  EXPECT_EQ(verify_bundle(world_->config({"/bin/script"})).status, 1) << "round and round";
}

TEST_P(VerifyImage, library_found_elsewhere_or_missing_is_not_swapped) {
  auto unbound = decision();
  unbound["binds"] = Json::array();
  world_->answer(unbound);
  const auto elsewhere = verify_app();
  EXPECT_EQ(elsewhere.status, 1) << elsewhere.err;
  EXPECT_THAT(elsewhere.out, AllOf(HasSubstr("container  /usr/lib/libmpi.so.12  NOT swapped"),
                                   HasSubstr("\nNOT swapped\n")));
  fs::remove(world_->rootfs() + ContainerWorld::kLibrary);
  const auto nowhere = verify_app();
  EXPECT_EQ(nowhere.status, 1) << nowhere.err;
  EXPECT_THAT(nowhere.out, HasSubstr("libmpi.so.12: not found\n"));
}

TEST_P(VerifyImage, static_and_incompatible_programs_are_reported) {
  world_->answer_nothing();
  const auto nothing = verify_app();
  EXPECT_EQ(nothing.status, 1);
  EXPECT_EQ(nothing.out, "nothing to swap: /bin/app is static\nNOT swapped\n");
  world_->answer_incompatible();
  const auto ran = verify({"--rootfs", world_->rootfs(), "--program", "/bin/true"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.out, "must not start: the reason\nNOT swapped\n");
  for (const Strings& words : {Strings{}, {"1", "--bundle", "x"}, {"--rootfs", "/"}})
    EXPECT_EQ(verify(words).status, 2);
  EXPECT_EQ(verify({"--bundle", world_->path("none")}).status, 3);
}

/// An ld.so of a hostile image. It lists what it has achieved as missing libraries.
constexpr const char* kHostileLoader = R"(
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#define TRY(what, good) if (good) printf("\tbad-%s => not found\n", what)
int main(void) {
  TRY("write", open("/etc/evil", O_CREAT | O_WRONLY, 0600) >= 0);
  TRY("write-data", open("/data/evil", O_CREAT | O_WRONLY, 0600) >= 0);
  TRY("unlink", unlink("/bin/app") == 0);
  TRY("chmod", chmod("/bin/app", 0777) == 0);
  TRY("mount", mount("none", "/tmp", "tmpfs", 0, "") == 0);
  TRY("remount", mount(0, "/", 0, MS_REMOUNT | MS_BIND, "") == 0);
  TRY("device", mknod("/dev/null", S_IFCHR | 0666, 259) == 0);
  TRY("chroot", chroot("/tmp") == 0);
  TRY("proc", access("/proc/1/root", F_OK) == 0);
  TRY("parent", getppid() != 1);
  kill(1, SIGKILL);  // the sandbox's init: its death would end this process too
  TRY("rights", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(9)};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  TRY("fork", fork() >= 0);
  TRY("unshare", unshare(CLONE_NEWUSER) == 0);
  TRY("root", geteuid() == 0 && HOST_ROOT);
  struct rlimit limit = {1 << 20, 1 << 20};
  TRY("limit", setrlimit(RLIMIT_NPROC, &limit) == 0 || setrlimit(RLIMIT_FSIZE, &limit) == 0);
  TRY("ptrace", ptrace(PTRACE_ATTACH, 1, 0, 0) == 0);
  int net = socket(AF_INET, SOCK_DGRAM, 0);
  TRY("net", net >= 0 && connect(net, (struct sockaddr*)&at, sizeof at) == 0);
  for (int fd = 3; fd < 64; ++fd) TRY("descriptor", fcntl(fd, F_GETFD) >= 0);
  printf("\tlibmpi.so.12 => /usr/lib/libmpi.so.12 (0x1)\n\tall-tried => not found\n");
  return 0;
})";

TEST_P(VerifyImage, hostile_loader_reaches_nothing) {
  // A user's sandbox has a root of its own.
  replace_loader(kHostileLoader, GetParam() == 0 ? "-DHOST_ROOT=1" : "-DHOST_ROOT=0");
  const auto before = world_->image_state();
  const auto ran = verify_app();
  EXPECT_EQ(ran.status, 1) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("all-tried: not found\n"), Not(HasSubstr("bad-"))));
  EXPECT_EQ(world_->image_state(), before);
  expect_nothing_left();
}

TEST_P(VerifyImage, hostile_output_is_bounded_and_escaped) {
  replace_loader(
      "#include <stdio.h>\nint main(void){puts(\"\\t/\\033[31mred (0x1)\");"
      "fflush(stdout);for(;;)puts(\"\\t/x (0x1)\");}");
  const auto flood = verify_app();
  EXPECT_EQ(flood.status, 3);
  EXPECT_THAT(flood.err, HasSubstr("it prints too much"));
  expect_nothing_left();
}

TEST_P(VerifyImage, endless_loader_is_killed) {
  replace_loader("#include <unistd.h>\nint main(void){if(!fork())setsid();for(;;);}");
  const auto ran = verify_app({"--timeout", "1"});
  EXPECT_EQ(ran.status, 3);
  EXPECT_THAT(ran.err, HasSubstr("it takes longer than 1 s"));
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(User, VerifyImage, ::testing::Values(0U, 1500U), [](const auto& each) {
  return each.param == 0 ? std::string("root") : std::string("user");
});

}  // namespace
}  // namespace heddle::test
