// SPDX-License-Identifier: MIT
//
// As real_mpi_test.cpp with podman: each rank of this machine's mpiexec is a `podman run` with the
// hook file that fs-hook writes. Also with a user's podman.

#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/hook/podman_session.hpp"
#include "tests/hook/real_mpi.hpp"

namespace heddle::test {
namespace {

/// podman's options for machines with mixed cgroups, where root cannot raise limits.
constexpr const char* kPodmanRank = R"sh(#!/bin/bash
# rank DIRECTORY PROGRAM: podman's files are below DIRECTORY, the image's overlay on DIRECTORY/root
pass=
if [ -n "$PMI_FD" ]; then
  exec 3<&"$PMI_FD"
  export PMI_FD=3
  pass="--preserve-fds 1"
fi
exec podman --root "$1/storage" --runroot /mnt/c --storage-driver vfs --cgroup-manager cgroupfs \
  --events-backend none --runtime runc --hooks-dir "$1/hooks.d" run --rm $pass --network host \
  --ipc host --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 --env 'PMI*' --env 'MPI*' \
  --annotation heddle.mpi=host $3 -v "$1/app:/mnt" --rootfs "$1/root" "$2"
)sh";

/// podman stores images on an overlay, and writes /etc/mtab and the like into it.
constexpr const char* kSession = R"sh(
umount /sys/fs/cgroup/unified 2>/dev/null
mount -t tmpfs tmpfs "$1/over" && mkdir "$1/over/up" "$1/over/work" "$1/over/run" &&
  mount -t overlay -o "lowerdir=$2,upperdir=$1/over/up,workdir=$1/over/work" none "$1/root" &&
  mount --bind "$1/over/run" /mnt || exit 125  # podman wants a short path
if [ -d "$1/into" ]; then cp -r "$1/into/." "$1/root/" || exit 125; fi
directory=$1
shift 2
"$@" || exit
umount "$directory/root"  # fails if a daemon holds the mount
)sh";

class RealPodman : public RealMpiTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (run({"sh", "-c", "command -v podman"}).status != 0) HEDDLE_SKIP("podman is not installed");
    prepare("runc", GetParam());
    if (IsSkipped() || HasFatalFailure()) return;
    write_text_file(dir_ / "rank", kPodmanRank, 0755);
    for (const char* directory : {"over", "root", "storage"})
      fs::create_directory(dir_ / directory);
    run_checked({staged_program("fs-hook"), "install", "--allow-annotations", "/", "--dir",
                 dir_ / "hooks.d", "--cache", dir_ / "cache", "--log", dir_ / "log"});
  }
  RunResult ranks(int count) {
    return run({"unshare", "-m", "sh", "-c", kSession, "sh", dir_.path(), rootfs_, "mpiexec.hydra",
                "-n", std::to_string(count), dir_ / "rank", dir_.path(), "/mnt/hello", ""},
               {.deadline = 2min});
  }
};

TEST_P(RealPodman, ranks_print_the_hosts_version_and_the_right_sum) {
  const std::string glibc = GetParam() == "trixie"s ? "2.41" : "2.36";
  for (const int count : {1, 2, 4}) {
    const auto ran = ranks(count);
    EXPECT_EQ(ran.status, 0) << ran.err << log();
    expect_right_sums(ran, count, glibc);
  }
  EXPECT_EQ(changed_files(), "") << "something was written into the image";
}

/// The same started by fs-launch, whose launcher's program is the path in the image, too.
class LaunchedRealPodman : public RealPodman {
 protected:
  void SetUp() override {
    RealPodman::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    fs_launch_ = staged_program("fs-launch");
    if (fs_launch_.empty()) HEDDLE_SKIP("fs-launch is not installed in $HEDDLE_STAGE");
    write_text_file(dir_ / "containers.conf",
                    "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n"
                    "events_logger = \"none\"\n[containers]\n"
                    "default_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n");
    write_text_file(dir_ / "storage.conf", "[storage]\ndriver = \"vfs\"\ngraphroot = \"" +
                                               (dir_ / "storage") + "\"\nrunroot = \"/mnt/c\"\n");
  }
  RunResult launch(const Strings& options, const Strings& command) const {
    // The hook's log and decisions.
    const auto session =
        "mount -t tmpfs -o mode=755 t /var/log && mkdir -p /var/cache && "
        "mount -t tmpfs -o mode=755 t /var/cache || exit 125" +
        std::string(kSession);
    return run(Strings{"unshare", "-m", "sh", "-c", session, "sh", dir_.path(), rootfs_, fs_launch_,
                       "-q"} +
                   options + command,
               {.env = {"CONTAINERS_CONF=" + (dir_ / "containers.conf"),
                        "CONTAINERS_STORAGE_CONF=" + (dir_ / "storage.conf"),
                        "XDG_CACHE_HOME=" + (dir_ / "launch"),
                        "XDG_CONFIG_HOME=" + (dir_ / "config"), "PATH_OF_HOST=1"},
                .cwd = dir_ / "app",
                .deadline = 2min});
  }
  std::string fs_launch_;
};

TEST_P(LaunchedRealPodman, ranks_print_the_hosts_version_and_the_right_sum) {
  const auto ran = launch({"--image", dir_ / "root"}, {"mpiexec.hydra", "-n", "2", "./hello"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  expect_right_sums(ran, 2, GetParam() == "trixie"s ? "2.41" : "2.36");
  EXPECT_EQ(changed_files(), "") << "something was written into the image";
}

TEST_P(LaunchedRealPodman, a_profile_s_and_the_users_words_are_exact) {
  write_text_file(dir_ / "app/set up.sh", "export SET=\"by $0\"\n");
  write_text_file(dir_ / "licence", "text");
  const auto made = launch({}, {"profile", "create", "p", "--image", dir_ / "root", "--backend",
                                "podman", "--source", dir_ / "app/set up.sh", "--env",
                                "VALUE=a\nb $HOME", "--file", dir_ / "licence:/opt/licence"});
  ASSERT_EQ(made.status, 0) << made.err;
  const auto ran =
      launch({"--profile", "p"},
             {"mpiexec.hydra", "-n", "1", "bash", "-c",
              "printf '%s|' \"$SET\" \"$VALUE\" \"$PMI_RANK\" \"$PATH_OF_HOST\" \"$PWD\" "
              "\"$@\"; cat /opt/licence; grep PRETTY /etc/os-release; exit 7",
              "bash", "a  b", "", "$HOME;id", "*", "a\nb"});
  EXPECT_EQ(ran.status, 7) << ran.err;
  EXPECT_THAT(ran.out,
              StartsWith("by " + (dir_ / "app/set up.sh") + "|a\nb $HOME|0||" + (dir_ / "app") +
                         "|a  b||$HOME;id|*|a\nb|textPRETTY_NAME=\"Debian"));
  EXPECT_THAT(ran.out, HasSubstr(GetParam()));
}

TEST_P(LaunchedRealPodman, profiles_mpi_is_the_hosts) {
  make_other_mpich(dir_ / "mpi");
  const auto made = launch({}, {"profile", "create", "other", "--mpi", dir_ / "mpi"});
  ASSERT_EQ(made.status, 0) << made.err;
  const auto ran = launch({"--profile", "other", "--backend", "podman", "--image", dir_ / "root"},
                          {"mpiexec.hydra", "-n", "2", "./hello"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("1 of 2, sum 3, glibc "));
  EXPECT_THAT(ran.out, HasSubstr("MPICH Version:\t4.0.9"));
}

TEST_P(LaunchedRealPodman, what_cannot_be_a_container_starts_no_rank_on_the_host) {
  const Strings touch = {"mpiexec.hydra", "-n", "1", "touch", "started"};
  const std::pair<Strings, const char*> cases[] = {
      {{"--image", "localhost/none:1"}, "localhost/none:1"},
      {{"--image", dir_ / "app", "--backend", "podman"}, "touch"},
      {{"--image", dir_ / "root", "--backend", "docker"}, "docker: untested"},
      {{"--image", dir_ / "root", "--source", "/none"}, "/none"}};
  for (const auto& [options, message] : cases) {
    const auto ran = launch(options, touch);
    EXPECT_NE(ran.status, 0) << message;
    EXPECT_THAT(ran.err, HasSubstr(message));
  }
  const auto comma = launch({"--image", dir_ / "root", "--source", dir_ / "app/x,y/s"}, touch);
  EXPECT_NE(comma.status, 0);
  EXPECT_THAT(comma.err, HasSubstr("cannot be mounted in a container"));
  EXPECT_FALSE(fs::exists(dir_ / "app/started"));
}

INSTANTIATE_TEST_SUITE_P(Debian, LaunchedRealPodman, ::testing::Values("bookworm", "trixie"),
                         kParameterName);

/// A user's podman with the user's id in the container (keep-id). The user owns only the
/// directories that podman writes to.
class RealPodmanOfAUser : public RealMpiTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (run({"sh", "-c", "command -v podman"}).status != 0) HEDDLE_SKIP("podman is not installed");
    prepare(GetParam(), "bullseye");
    if (IsSkipped() || HasFatalFailure()) return;
    ::chmod(dir_.path().c_str(), 0755);
    for (const char* directory : {"over", "root"}) fs::create_directory(dir_ / directory);
    copy_mpi("into/opt/mpi");
    compile("solver", "-Wl,-rpath,/opt/mpi");
    fs::rename(dir_ / "app/solver", dir_ / "into/opt/solver");
    session_ = std::make_unique<PodmanSession>(dir_ / "user", GetParam(), kUser);
    const auto installed =
        session_->run({staged_program("fs-hook"), "install", "--allow-annotations", "/", "--dir",
                       session_->path("hooks.d")});
    ASSERT_EQ(installed.status, 0) << installed.err;
  }
  RunResult start() const {
    return session_->run(
        session_->run_words({"--userns=keep-id", "--passwd=false", "--annotation",
                             "heddle.mpi=host", "--rootfs", dir_ / "root", "/opt/solver", "maps"}),
        "cd '" + dir_.path() +
            "'; mount -t tmpfs tmpfs over; mkdir over/up over/work; mount -t overlay -o "
            "lowerdir='" +
            rootfs_ +
            "',upperdir=over/up,workdir=over/work none root; cp -r into/. root; "
            "for f in . dev etc proc run sys; do chown 1500:1500 root/$f; done; cd user/home");
  }
  std::string log() const {
    return read_file(session_->path("home/.local/state/heddle-hook.log")).value_or("");
  }
  std::unique_ptr<PodmanSession> session_;
};

TEST_P(RealPodmanOfAUser, host_mpi_replaces_the_images) {
  const auto ran = start();
  EXPECT_EQ(ran.status, 0) << ran.err << log();
  EXPECT_THAT(ran.out, AllOf(HasSubstr("0 of 1, sum 1, glibc 2.36, MPICH Version:\t4.0.2\n"),
                             ::testing::EndsWith("/opt/mpi/libmpich.so.12\n")))
      << ran.err << log();
  EXPECT_THAT(log(), HasSubstr("swapped: mpich 4.0.2"));
  EXPECT_EQ(changed_files(), "") << "something was written into the image";
}

INSTANTIATE_TEST_SUITE_P(Oci, RealPodmanOfAUser, ::testing::Values("runc", "crun"), kParameterName);

INSTANTIATE_TEST_SUITE_P(Debian, RealPodman, ::testing::Values("bullseye", "bookworm", "trixie"),
                         kParameterName);

}  // namespace
}  // namespace heddle::test
