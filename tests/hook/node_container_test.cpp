// SPDX-License-Identifier: MIT
//
// Ranks in containers without a runtime (fs-hook run): fs-launch's backends bare and charliecloud,
// with each Debian's MPICH. Nothing is faked.
#include <sys/mount.h>

#include "tests/hook/real_mpi.hpp"

namespace heddle::test {
namespace {

class NodeContainer : public RealMpiTest,
                      public ::testing::WithParamInterface<std::tuple<const char*, const char*>> {
 protected:
  virtual void make_root() { prepare("runc", std::get<1>(GetParam())); }
  void SetUp() override {
    if (backend() == "charliecloud" && run({"sh", "-c", "command -v ch-run"}).status != 0)
      HEDDLE_SKIP("charliecloud is not installed");
    make_root();
    if (IsSkipped() || HasFatalFailure()) return;
    if (staged_program("fs-launch").empty())
      HEDDLE_SKIP("fs-launch is not installed in $HEDDLE_STAGE");
    fs::permissions(dir_.path(), fs::perms(0755));
    options_ = {.env = {"XDG_CACHE_HOME=" + (dir_ / "cache"), "USER=root", "OF_HOST=1"},
                .cwd = dir_ / "app",
                .deadline = 1min};
  }
  void TearDown() override {
    EXPECT_TRUE(wait_until(10s, [&] { return left().empty(); })) << left();
    if (!rootfs_.empty()) {
      EXPECT_EQ(changed_files(), "") << "something was written into the image";
    }
  }
  std::string backend() const { return std::get<0>(GetParam()); }
  std::string glibc() const { return std::get<1>(GetParam()) == "trixie"s ? "2.41" : "2.36"; }
  /// Processes that serve this case's containers.
  std::string left() const {
    return run({"sh", "-c",
                "grep -lz ^XDG_CACHE_HOME=" + (dir_ / "") +
                    " $(grep -lE '^(heddle-root|fs-mount)' /proc/[0-9]*/comm 2>/dev/null | sed "
                    "s/comm/environ/) /dev/null 2>/dev/null"})
        .out;
  }
  Strings launched(const Strings& ranks, const Strings& options = {}) const {
    return Strings{staged_program("fs-launch"), "--backend", backend(), "--image", rootfs_} +
           options + ranks;
  }
  RunResult launch(const Strings& ranks, const Strings& options = {}) const {
    return run(launched(ranks, options), options_);
  }
  RunOptions options_;
};

Strings ranks(int count, const Strings& command) {
  return Strings{"mpiexec.hydra", "-n", std::to_string(count)} + command;
}

TEST_P(NodeContainer, ranks_of_a_node_share_one_on_the_hosts_mpi) {
  for (const int count : {1, 4}) {
    const auto ran = launch(ranks(count, {"./hello"}));
    EXPECT_EQ(ran.status, 0) << ran.err;
    expect_right_sums(ran, count, glibc());
  }
  // The first is still there when the last enters.
  const auto shared = launch(ranks(
      8,
      {"sh", "-c", "sleep 1; echo $(readlink /proc/self/ns/mnt) $(readlink /proc/self/ns/user)"}));
  auto lines = lines_of(shared.out);
  EXPECT_EQ(lines.size(), 8U) << shared.err;
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 1U) << shared.out;
}

TEST_P(NodeContainer, words_variables_and_statuses_are_exact) {
  write_text_file(dir_ / "app/set up.sh", "export SET=\"by $0\"\n");
  write_text_file(dir_ / "licence", "text");
  options_.env.push_back("XDG_CONFIG_HOME=" + (dir_ / "config"));
  const auto made = run(
      {staged_program("fs-launch"), "profile", "create", "p", "--source", dir_ / "app/set up.sh",
       "--env", "VALUE=a\nb $HOME", "--file", dir_ / "licence:/opt/new/licence"},
      options_);
  ASSERT_EQ(made.status, 0) << made.err;
  const auto ran =
      launch(ranks(1, {"bash", "-c",
                       "printf '%s|' \"$SET\" \"$VALUE\" \"$PMI_RANK\" \"$OF_HOST\" \"$PWD\" "
                       "\"$@\"; cat /opt/new/licence; cat; exit 7",
                       "bash", "a  b", "", "$HOME;id", "*", "a\nb"}),
             {"--profile", "p"});
  EXPECT_EQ(ran.status, 7) << ran.err;
  EXPECT_THAT(ran.out, StartsWith("by " + (dir_ / "app/set up.sh") + "|a\nb $HOME|0||" +
                                  (dir_ / "app") + "|a  b||$HOME;id|*|a\nb|text"));
  EXPECT_EQ(launch(ranks(1, {"sh", "-c", "kill -SEGV $$"})).status,
            run(ranks(1, {"sh", "-c", "kill -SEGV $$"})).status);
  const auto masked = run(Strings{"sh", "-c", "umask 027; exec \"$@\"", "sh"} +
                              launched(ranks(1, {"sh", "-c", "umask"})),
                          options_);
  EXPECT_EQ(masked.out, "0027\n") << masked.err;
}

TEST_P(NodeContainer, user_without_rights_to_the_image_runs_in_it) {
  const auto device = dir_ / "fuse", home = dir_ / "home", image = dir_ / "image";
  fs::create_directory(home);
  fs::create_directory(image);
  run_checked({"chown", "65534:65534", home});
  // The user may not pass through root's home to the image.
  const auto ran = run(
      Strings{"unshare",
              "-m",
              "sh",
              "-ec",
              "mknod -m 666 $0 c 10 229; mount --bind $0 /dev/fuse; mount --bind $1 $2; shift 2; "
              "exec \"$@\"",
              device,
              rootfs_,
              image,
              "setpriv",
              "--reuid",
              "65534",
              "--regid",
              "65534",
              "--clear-groups",
              "env",
              "HOME=" + home,
              "USER=nobody",
              "XDG_CACHE_HOME=" + home + "/cache",
              staged_program("fs-launch"),
              "--backend",
              backend(),
              "--image",
              image} +
          ranks(2, {"sh", "-c",
                    "id -u; touch /x /etc/x 2>/dev/null && echo written; readlink "
                    "/proc/self/ns/user; ./hello"}),
      options_);
  EXPECT_EQ(ran.status, 0) << ran.err;
  auto lines = lines_of(ran.out);
  EXPECT_EQ(std::ranges::count(lines, "65534"), 2) << ran.out << ran.err;
  EXPECT_THAT(ran.out, Not(HasSubstr("written")));
  EXPECT_THAT(ran.out, HasSubstr("0 of 2, sum 3, glibc " + glibc()));
  EXPECT_THAT(ran.out, HasSubstr("4.0.2"));
  std::set<std::string> users;
  for (const auto& line : lines)
    if (line.starts_with("user:")) users.insert(line);
  EXPECT_EQ(users.size(), 1U) << ran.out;
}

TEST_P(NodeContainer, killed_servers_leave_ranks_and_nothing_else) {
  const auto script =
      "kill_one() { for p in $(pgrep -x $1); do grep -qz \"^XDG_CACHE_HOME=" + (dir_ / "cache") +
      "\" /proc/$p/environ 2>/dev/null && kill -KILL $p; done; }\n" +
      to_shell(launched(ranks(2, {"sh", "-c", "sleep 3; echo out"}))) +
      " & launch=$!\nsleep 1; kill_one heddle-root; " + to_shell(launched(ranks(2, {"./hello"}))) +
      "; wait $launch; echo $?";
  const auto ran = run({"bash", "-c", script}, options_);
  EXPECT_THAT(ran.out, HasSubstr("1 of 2, sum 3, glibc " + glibc())) << ran.err;
  const auto lines = lines_of(ran.out);
  EXPECT_EQ(std::ranges::count(lines, "out"), 2) << ran.out << ran.err;
  EXPECT_EQ(lines.back(), "0") << ran.err;
}

TEST_P(NodeContainer, what_cannot_be_one_starts_no_rank_on_the_host) {
  const Strings touch = ranks(1, {"touch", "started"});
  const auto program = Strings{staged_program("fs-launch"), "--backend", backend()};
  const std::pair<Strings, const char*> cases[] = {
      {{"--image", "/none"}, "/none"},
      {{"--image", dir_ / "app/hello"}, "hello: cannot use as the container's root"},
      {{"--image", dir_ / "app"}, "no such program"},
      {{"--image", rootfs_, "--source", "/none"}, "/none: cannot be a volume"}};
  for (const auto& [options, message] : cases) {
    const auto ran = run(program + options + touch, options_);
    EXPECT_NE(ran.status, 0) << message;
    EXPECT_THAT(ran.err, HasSubstr(message));
  }
  EXPECT_FALSE(fs::exists(dir_ / "app/started"));
}

/// Of several MPIs of the host.
TEST_P(NodeContainer, profiles_mpi_is_the_hosts) {
  make_other_mpich(dir_ / "mpi");
  options_.env.push_back("XDG_CONFIG_HOME=" + (dir_ / "config"));
  const auto create = [&](const std::string& name, const std::string& prefix) {
    return run({staged_program("fs-launch"), "profile", "create", name, "--mpi", prefix}, options_);
  };
  ASSERT_EQ(create("other", dir_ / "mpi").status, 0);
  const auto ran = launch(ranks(2, {"./hello"}), {"--profile", "other"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("1 of 2, sum 3, glibc " + glibc() + ", MPICH Version:\t4.0.9"));
  EXPECT_THAT(launch(ranks(1, {"./hello"})).out, HasSubstr("4.0.2"));

  // One of another family starts no rank.
  const auto open_mpi = run({"sh", "-c", "ls -d /usr/lib/*/openmpi"});
  if (open_mpi.status != 0 || create("open", lines_of(open_mpi.out).at(0)).status != 0)
    HEDDLE_SKIP("Open MPI is not installed");
  const auto refused = launch(ranks(1, {"./hello"}), {"--profile", "open"});
  EXPECT_NE(refused.status, 0);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("Wi4MPI"));
}

class OpenMpiContainer : public NodeContainer {
 protected:
  void make_root() override { prepare_open_mpi_5("runc"); }
};

TEST_P(OpenMpiContainer, ranks_run_on_the_hosts_mpi) {
  options_.env.push_back("OMPI_MCA_rmaps_base_oversubscribe=1");
  const auto ran = launch(kMpirun + Strings{"-n", "4", "./hello"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(ran.out,
                HasSubstr(std::to_string(rank) + " of 4, sum 10, glibc 2.41, Open MPI v4."));
}

INSTANTIATE_TEST_SUITE_P(, OpenMpiContainer, ::testing::Values(std::tuple{"bare", "trixie"}),
                         [](const auto& each) { return std::string(std::get<0>(each.param)); });

INSTANTIATE_TEST_SUITE_P(, NodeContainer,
                         ::testing::Combine(::testing::Values("bare", "charliecloud"),
                                            ::testing::Values("bullseye", "trixie")),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param)) + "_" +
                                  std::get<1>(each.param);
                         });

}  // namespace
}  // namespace heddle::test
