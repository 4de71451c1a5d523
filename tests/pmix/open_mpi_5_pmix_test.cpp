// SPDX-License-Identifier: MIT
// fs-launch, and fs-launch pmix, with the launchers of Debian 13: prterun of PRRTE 3, mpirun of
// Open MPI 5, PMIx 5.

#include <nlohmann/json.hpp>

#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

/// $1 the root file system, $2 the stage, $3 a work directory, $4 the commands, run in the tree in
/// new mount and PID namespaces. libpmix and the C library are the tree's; {fmt} and what
/// elf-worker needs beside the C library are this machine's.
constexpr const char* kSession = R"sh(set -e
root=$1 stage=$2 work=$3
mount -t proc none "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs none "$root/tmp"
mount -t tmpfs -o mode=0755 none "$root/mnt"
mount -t tmpfs none "$root/dev"
mkdir -p "$root/dev/shm" "$root/mnt/stage" "$root/mnt/libs" "$root/mnt/work"
for device in null urandom; do
  : >"$root/dev/$device"
  mount --bind /dev/$device "$root/dev/$device"
done
mount --bind "$stage" "$root/mnt/stage"
mount --bind "$work" "$root/mnt/work"
for library in $(ldd "$stage/libexec/heddle/heddle-pmix" "$stage/libexec/heddle/elf-worker" |
                 awk '$1 ~ /^lib(fmt|LIEF|seccomp|mbed)/ { print $3 }'); do
  cp "$library" "$root/mnt/libs/"
done
exec chroot "$root" sh -c "cd /mnt/work
export LD_LIBRARY_PATH=/mnt/libs PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self,sm
export XDG_CACHE_HOME=/mnt/cache
pmix='/mnt/stage/bin/fs-launch pmix'
$4"
)sh";

class OpenMpi5Pmix : public ::testing::Test {
 protected:
  void SetUp() override {
    if (staged_program("heddle-pmix").empty()) HEDDLE_SKIP("heddle is built without libpmix");
    if (::geteuid() != 0) HEDDLE_SKIP("only root can make root file systems");
    const auto made =
        run({HEDDLE_ROOTFS, "trixie-openmpi"}, {.deadline = std::chrono::minutes(15)});
    if (made.status != 0) HEDDLE_SKIP("no image: " + made.err);
    root_ = made.out.substr(0, made.out.find('\n'));
    std::ofstream(dir_ / "sum.c") << R"(#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char** argv) {
  int rank, sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  while (argc > 1 && access(argv[1], F_OK) != 0) usleep(10000);
  if (rank == 0) printf("%d\n", sum);
  return MPI_Finalize();
})";
  }
  RunResult inside(const std::string& commands) const {
    const auto stage = fs::path(staged_program("fs-launch")).parent_path().parent_path();
    return run({"unshare", "-m", "-p", "-f", "sh", "-c", kSession, "sh", root_, stage.string(),
                dir_.path(), commands},
               {.deadline = std::chrono::minutes(2)});
  }
  std::string text(const std::string& name) const { return read_file(dir_ / name).value_or(""); }
  Strings event_names() const {
    Strings out;
    for (const auto& line : lines_of(text("events"))) out.push_back(Json::parse(line)["event"]);
    return out;
  }

  TestDir dir_;
  std::string root_;
};

TEST_F(OpenMpi5Pmix, prterun_waits_and_gives_the_ranks_environment_input_and_output) {
  const auto result = inside(
      "export X_TOOL=old; echo input | $pmix run --prepend X_TOOL=staged --events events "
      "--before 'ls started; echo content > file' "
      "prterun -n 2 sh -c 'touch started; cat file; echo $X_TOOL; echo error >&2; cat'");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(lines_of(result.out),
              UnorderedElementsAre("content", "content", "staged:old", "staged:old", "input"));
  EXPECT_THAT(result.err, HasSubstr("cannot access 'started'"));
  EXPECT_THAT(result.err, HasSubstr("error\n"));
  EXPECT_THAT(event_names(),
              ElementsAre("launcher-waits", "job-start", "launch-complete", "job-end"));
  ASSERT_FALSE(lines_of(text("events")).empty());
  EXPECT_EQ(inside("$pmix run --events events prterun -n 1 sh -c 'exit 7'").status, 7);
  EXPECT_EQ(Json::parse(lines_of(text("events")).back())["status"], 7);
}

TEST_F(OpenMpi5Pmix, ranks_are_stopped_listed_and_continued) {
  for (const std::string stop : {"exec", "init", "app"}) {
    SCOPED_TRACE(stop);
    fs::remove(dir_ / "states");
    const auto result =
        inside("mpicc.openmpi -o /mnt/sum sum.c; $pmix run --events events --stop " + stop +
               " --stopped 'cat $HEDDLE_PMIX_RANKS > table; export XDG_CACHE_HOME=/mnt/cache; "
               "s=\"/mnt/stage/bin/fs-launch session\"; id=$($s create --pmix $HEDDLE_PMIX_RANKS); "
               "$s ranks $id > ranks; $s destroy $id; "
               "for p in $(sed -n \"s/.*.pid.: \\([0-9]*\\).*/\\1/p\" table); do "
               "echo $(readlink /proc/$p/exe) $(sed -n \"s/State:.//p\" /proc/$p/status) "
               "$(grep -c libmpi /proc/$p/maps) >> states; done' mpirun.openmpi -n 3 /mnt/sum");
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, "3\n");
    const auto table = Json::parse(text("table"), nullptr, false);
    const auto ranks = lines_of(text("ranks"));
    ASSERT_EQ(ranks.size(), table.size());
    for (std::size_t i = 0; i < ranks.size(); ++i)
      EXPECT_THAT(ranks[i], StartsWith(table[i]["rank"].dump() + " " + table[i]["pid"].dump() +
                                       " " + table[i]["host"].get<std::string>() + " "));
    const auto states = lines_of(text("states"));
    ASSERT_EQ(states.size(), 3U) << text("table");
    for (const auto& each : states) {
      EXPECT_THAT(each, StartsWith("/mnt/sum "));
      const bool is_early = each == "/mnt/sum T (stopped) 0";  // no library is mapped yet
      EXPECT_EQ(is_early, stop == "exec") << each;
    }
    EXPECT_THAT(event_names(), ::testing::Contains("ready-for-debug"));
    ASSERT_FALSE(event_names().empty());
    EXPECT_EQ(event_names().back(), "job-end");
  }
}

TEST_F(OpenMpi5Pmix, query_lists_the_ranks_of_a_running_job) {
  const auto result = inside(
      "mpicc.openmpi -o /mnt/sum sum.c; prterun --report-uri uri -n 2 /mnt/sum go & "
      "until $pmix query --json file:uri > table 2> error; do sleep 0.1; done; "
      "pidof /mnt/sum > pids; touch go; wait");
  EXPECT_EQ(result.status, 0) << result.err;
  const auto jobs = Json::parse(text("table"), nullptr, false);
  ASSERT_EQ(jobs.size(), 1U) << text("table") << text("error");
  for (const auto& rank : jobs[0]["ranks"]) {
    EXPECT_THAT(" " + text("pids"), HasSubstr(" " + std::to_string(rank["pid"].get<int>())));
    EXPECT_EQ(rank["program"], "/mnt/sum");
  }
}

/// What it prints about its options is its own.
TEST_F(OpenMpi5Pmix, launchers_own_error_is_the_launchers) {
  const auto plain = inside("mpirun.openmpi --nonsense -n 1 true");
  const auto tool = inside("$pmix run mpirun.openmpi --nonsense -n 1 true");
  EXPECT_EQ(tool.status, plain.status);
  EXPECT_EQ(tool.out, plain.out);
  EXPECT_EQ(tool.err, plain.err);
}

TEST_F(OpenMpi5Pmix, programs_run_under_the_launcher_of_this_program) {
  const auto result = inside(
      "mpicc.openmpi -o /mnt/sum sum.c; $pmix launch -n 3 /mnt/sum && "
      "$pmix run --stop exec $pmix launch -n 3 /mnt/sum");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "3\n3\n");
}

TEST_F(OpenMpi5Pmix, fs_launch_guides_and_counts_ranks_by_prrtes_exec_agent) {
  for (const std::string launcher : {"prterun", "mpirun.openmpi"}) {
    SCOPED_TRACE(launcher);
    const auto result =
        inside("mpicc.openmpi -o /mnt/sum sum.c; /mnt/stage/bin/fs-launch --report " + launcher +
               " -n 3 /mnt/sum");
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, "3\n");
    EXPECT_THAT(result.err, HasSubstr("fs-launch: 3 of 3 ranks guided on 1 node"));
    // Into a static program only the exec agent leads.
    const auto fixed = inside(
        "echo 'int main(void) { return 7; }' >fixed.c; gcc -static -o /mnt/fixed fixed.c; "
        "/mnt/stage/bin/fs-launch --report " +
        launcher + " -n 2 /mnt/fixed");
    EXPECT_EQ(fixed.status, 7) << fixed.err;
    EXPECT_THAT(fixed.err, HasSubstr("fs-launch: 0 of 2 ranks guided on 1 node"));
    EXPECT_THAT(fixed.err, HasSubstr("static"));
  }
}

}  // namespace
}  // namespace heddle::test
