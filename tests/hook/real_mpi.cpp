// SPDX-License-Identifier: MIT
#include "tests/hook/real_mpi.hpp"

#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/oci_config.hpp"
#include "tests/support/source_file.hpp"

namespace heddle::test {

namespace {

constexpr const char* kHello = R"(
#include <gnu/libc-version.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void print_maps(void) {
  char line[4096];
  FILE* maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if (strstr(line, "/libmpi") && strstr(line, " 00000000 ")) fputs(strchr(line, '/'), stdout);
}
int main(int argc, char** argv) {
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int rank, size, length, sum, mine;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Get_library_version(version, &length);
  version[strcspn(version, "\n")] = 0;
  mine = rank + 1;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("%d of %d, sum %d, glibc %s, %s\n", rank, size, sum, gnu_get_libc_version(), version);
  if (argc > 1) print_maps();
  fflush(stdout);
  if (argc > 2) pause();
  MPI_Finalize();
  return 0;
}
)";

/// A rank of mpiexec as a container of its own, with PMI's descriptor and variables passed on.
constexpr const char* kRank = R"sh(#!/bin/bash
# dash knows no descriptor above 9.
# rank TEMPLATE DIRECTORY ID COMMAND... : COMMAND is a runtime's "run", without its last arguments
rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}
template=$1 bundle=$2/rank$rank id=$3-$rank
shift 3
mkdir -p "$bundle"
pass=
if [ -n "$PMI_FD" ]; then
  exec 3<&"$PMI_FD"
  PMI_FD=3
  export PMI_FD
  pass="--preserve-fds 1"
fi
variables=$(env | sed -n 's/^\(\(PMI\|MPI\|PMIX\|OMPI\|OPAL\|ORTE\)_[A-Za-z0-9_]*=[^"\\|&]*\)$/"\1",/p' |
  tr -d '\n')
sed "s|\"@ENV@\",*|$variables|" "$template" >"$bundle/config.json"
exec "$@" $pass --bundle "$bundle" "$id"
)sh";

}  // namespace

void RealMpiTest::prepare(const std::string& runtime, const std::string& suite,
                          const std::string& mpi) {
  if (::geteuid() != 0) HEDDLE_SKIP("only root can make root file systems");
  if (const auto reason = why_not(runtime); !reason.empty()) HEDDLE_SKIP(reason);
  runtime_ = runtime;
  mpi_ = mpi;
  RunOptions options;
  options.deadline = 9min;
  const auto made = run({source_file("tests/support/rootfs"), suite + "-" + mpi}, options);
  if (made.status == 77) HEDDLE_SKIP(made.err);
  ASSERT_EQ(made.status, 0) << made.err;
  rootfs_ = made.out.substr(0, made.out.size() - 1);
  fs::create_directory(dir_ / "app");
  write_text_file(dir_ / "app/hello.c", kHello);
  write_text_file(dir_ / "rank", kRank, 0755);
  compile("hello");
  write_text_file(dir_ / "stamp", "");
}

void RealMpiTest::prepare_open_mpi_5(const std::string& runtime) {
  if (test::run({"ompi_info", "--version"}).out.find("Open MPI v4.") == std::string::npos)
    HEDDLE_SKIP("this machine's Open MPI is not of version 4");
  prepare(runtime, "trixie", "openmpi");
}

std::string RealMpiTest::log() const { return read_file(dir_ / "log").value_or(""); }

std::string RealMpiTest::changed_files() const {
  const auto stamp = dir_ / "stamp";
  return run_checked({"find", rootfs_, "-newer", stamp, "-o", "-cnewer", stamp}).out;
}

void RealMpiTest::expect_right_sums(const RunResult& ran, int ranks, const std::string& glibc) {
  const int size = std::max(ranks, 1);
  std::istringstream lines(ran.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_THAT(line, HasSubstr("of " + std::to_string(size) + ", sum " +
                                std::to_string(size * (size + 1) / 2) + ", glibc " + glibc));
    EXPECT_THAT(line, HasSubstr("4.0.2"));
  }
  EXPECT_EQ(count, size) << ran.out << ran.err;
}

void RealMpiTest::compile(const std::string& name, const std::string& flags,
                          const std::string& source) {
  run_checked({"unshare", "-m", "sh", "-ec",
               "mount --bind \"$1\" \"$2/mnt\"; mount -t tmpfs tmpfs \"$2/tmp\"; exec chroot "
               "\"$2\" sh -c \"mpicc." +
                   mpi_ + " -O1 " + flags + " -o /mnt/" + name + " /mnt/" + source + "\"",
               "sh", dir_ / "app", rootfs_});
}

void RealMpiTest::make_other_mpich(const std::string& prefix) {
  const auto library = run_checked({"sh", "-c", "realpath /usr/lib/*/libmpich.so.12"}).out;
  auto bytes = read_file(lines_of(library).at(0)).value_or("");
  ASSERT_NE(bytes.find("4.0.2"), bytes.npos);
  for (auto at = bytes.find("4.0.2"); at != bytes.npos; at = bytes.find("4.0.2", at))
    bytes.replace(at, 5, "4.0.9");
  write_text_file(prefix + "/lib/libmpich.so.12", bytes);
}

void RealMpiTest::copy_mpi(const std::string& directory) const {
  fs::create_directories(dir_ / directory);
  auto theirs = run_checked({"sh", "-c", "realpath \"$0\"/usr/lib/*/libmpich.so.12", rootfs_}).out;
  theirs.pop_back();
  fs::copy_file(theirs, dir_ / (directory + "/libmpich.so.12"));
}

Json RealMpiTest::config(const Strings& args) const {
  auto out = oci_config(rootfs_, args);
  out["process"]["env"].insert(out["process"]["env"].begin(), "@ENV@");
  bind_host_devices(out);
  out["mounts"].push_back(oci_bind(dir_ / "app", "/mnt", "rw"));
  out["mounts"].push_back(oci_tmpfs("/tmp"));
  out["hooks"]["createRuntime"] = Json::array({oci_hook_entry(
      staged_program("fs-hook"), {"--cache", dir_ / "cache", "--log", dir_ / "log"})});
  return out;
}

Json RealMpiTest::open_mpi_config(const Strings& args) const {
  auto out = config(args);
  out["mounts"].back() = oci_bind("/tmp", "/tmp", "rw");
  out["linux"]["namespaces"] = Json::array({{{"type", "mount"}}});
  return out;
}

RunResult RealMpiTest::start(const Json& config, int ranks, const Strings& launcher) {
  write_text_file(dir_ / "template", config.dump());
  const auto number = std::to_string(++count_);
  fs::create_directory(dir_ / ("run" + number));
  const auto command = Strings{dir_ / "rank", dir_ / "template", dir_ / ("run" + number),
                               "heddle-mpi-" + std::to_string(::getpid()) + "-" + number} +
                       Runtime(runtime_, dir_ / "state").command({"run"});
  const auto launched = launcher + Strings{"-n", std::to_string(ranks)};
  return run((ranks > 0 ? launched : Strings()) + command, {.deadline = 1min});
}

RunResult RealMpiTest::shell(const std::string& script, bool hooked) {
  auto shell = config({"/bin/sh", "-c", script});
  shell["annotations"]["heddle.program"] = "/mnt/hello";
  if (!hooked) shell.erase("hooks");
  return start(shell);
}

}  // namespace heddle::test
