// SPDX-License-Identifier: MIT
//
// A program compiled with each Debian's MPICH runs in that Debian, as a container, on the MPICH of
// this machine, started by this machine's mpiexec. Nothing here is faked.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "base/fd.hpp"
#include "base/process.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kHello = R"(
#include <gnu/libc-version.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef ODD
extern int MPI_Not_on_any_host(void);
#endif
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
#ifdef ODD
  MPI_Not_on_any_host();
#endif
  if (argc > 1) print_maps();
  fflush(stdout);
  if (argc > 2) pause();
  MPI_Finalize();
  return 0;
}
)";

/// A rank of mpiexec's as a container of its own: PMI's descriptor and variables are passed on.
constexpr const char* kRank = R"sh(#!/bin/bash
# dash knows no descriptor above 9.
# rank TEMPLATE FOLDER ID COMMAND... : COMMAND is a runtime's "run", without its last arguments
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

struct Debian {
  const char* suite;
  const char* glibc;  ///< that its program runs on
};

class RealMpi : public ::testing::TestWithParam<std::tuple<const char*, Debian>> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("only root can make root file systems");
    if (const auto reason = why_not(runtime()); !reason.empty()) HEDDLE_SKIP(reason);
    const auto source = std::getenv("HEDDLE_SOURCE") ? std::getenv("HEDDLE_SOURCE") : ".";
    RunOptions options;
    options.deadline = 9min;
    const auto made = run({source + "/tests/support/rootfs"s, suite() + "-mpich"}, options);
    if (made.status == 77) HEDDLE_SKIP(made.err);
    ASSERT_EQ(made.status, 0) << made.err;
    rootfs_ = made.out.substr(0, made.out.size() - 1);
    fs::create_directory(dir_ / "app");
    write_text_file(dir_ / "app/hello.c", kHello);
    write_text_file(dir_ / "rank", kRank, 0755);
    compile("hello");
  }
  std::string runtime() const { return std::get<0>(GetParam()); }
  std::string suite() const { return std::get<1>(GetParam()).suite; }
  std::string glibc() const { return std::get<1>(GetParam()).glibc; }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }

  /// With the container's own compiler and MPI; the tree stays as it is.
  void compile(const std::string& name, const std::string& flags = "",
               const std::string& source = "hello.c") {
    run_checked({"unshare", "-m", "sh", "-ec",
                 "mount --bind \"$1\" \"$2/mnt\"; mount -t tmpfs tmpfs \"$2/tmp\"; exec chroot "
                 "\"$2\" sh -c \"mpicc.mpich -O1 " +
                     flags + " -o /mnt/" + name + " /mnt/" + source + "\"",
                 "sh", dir_ / "app", rootfs_});
  }

  Json config(const std::vector<std::string>& args) const {
    const auto bind = [](const std::string& from, const std::string& to) {
      return Json{{"destination", to}, {"type", "bind"}, {"source", from}, {"options", {"rbind"}}};
    };
    const auto program = staged_program("fs-hook");
    const Json hook = {
        {"path", program},
        {"args", {"fs-hook", "oci", "--cache", dir_ / "cache", "--log", dir_ / "log"}},
        {"env", {"PATH=/usr/bin:/bin"}},
        {"timeout", 60}};
    return {{"ociVersion", "1.0.2"},
            {"process",
             {{"terminal", false},
              {"user", {{"uid", 0}, {"gid", 0}}},
              {"cwd", "/"},
              {"args", args},
              {"env", {"@ENV@", "PATH=/usr/bin:/bin"}},
              {"noNewPrivileges", true}}},
            {"root", {{"path", rootfs_}, {"readonly", true}}},
            {"annotations", {{"heddle.mpi", "host"}}},
            {"mounts",
             Json::array({{{"destination", "/proc"}, {"type", "proc"}, {"source", "proc"}},
                          {{"destination", "/dev"},
                           {"type", "tmpfs"},
                           {"source", "tmpfs"},
                           {"options", {"nosuid", "mode=755", "size=65536k"}}},
                          bind("/dev/null", "/dev/null"),
                          bind("/dev/urandom", "/dev/urandom"),
                          bind("/dev/shm", "/dev/shm"),
                          bind("/sys", "/sys"),
                          bind(dir_ / "app", "/mnt"),
                          {{"destination", "/tmp"}, {"type", "tmpfs"}, {"source", "tmpfs"}}})},
            {"linux", {{"namespaces", Json::array({{{"type", "mount"}}, {{"type", "pid"}}})}}},
            {"hooks", {{"createRuntime", {hook}}}}};
  }

  RunResult start(const Json& config, int ranks = 0,
                  std::vector<std::string> launcher = {"mpiexec.hydra"}) {
    write_text_file(dir_ / "template", config.dump());
    std::vector<std::string> argv;
    if (ranks > 0) {
      argv = std::move(launcher);
      argv.insert(argv.end(), {"-n", std::to_string(ranks)});
    }
    const auto id = "heddle-mpi-" + std::to_string(::getpid()) + "-" + std::to_string(++count_);
    argv.insert(argv.end(),
                {dir_ / "rank", dir_ / "template", dir_ / ("run" + std::to_string(count_)), id});
    fs::create_directory(dir_ / ("run" + std::to_string(count_)));
    const auto command = Runtime(runtime(), dir_ / "state").command({"run"});
    argv.insert(argv.end(), command.begin(), command.end());
    RunOptions options;
    options.deadline = 1min;
    return run(argv, options);
  }
  RunResult shell(const std::string& script, bool hooked) {
    auto shell = config({"/bin/sh", "-c", script});
    shell["annotations"]["heddle.program"] = "/mnt/hello";
    if (!hooked) shell.erase("hooks");
    return start(shell);
  }

  TestDir dir_;
  std::string rootfs_;
  int count_ = 0;
};

/// What does not depend on the runtime.
class RealMpiEverything : public RealMpi {};

TEST_P(RealMpi, prints_the_hosts_version_and_sums_right) {
  auto plain = config({"/mnt/hello"});
  plain.erase("hooks");
  const auto before = start(plain);
  ASSERT_EQ(before.status, 0) << before.err;
  for (const int ranks : {0, 1, 2, 4}) {
    const auto ran = start(config({"/mnt/hello"}), ranks);
    EXPECT_EQ(ran.status, 0) << ran.err << log();
    const int size = std::max(ranks, 1);
    std::istringstream lines(ran.out);
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      EXPECT_THAT(line, HasSubstr("of " + std::to_string(size) + ", sum " +
                                  std::to_string(size * (size + 1) / 2) + ", glibc " + glibc()));
      EXPECT_THAT(line, HasSubstr("4.0.2"));
    }
    EXPECT_EQ(count, size) << ran.out << ran.err;
  }
}

TEST_P(RealMpi, the_containers_other_programs_work_as_before) {
  for (const char* script : {"sh -c 'echo a'", "perl -e 'print \"a\\n\"'", "getent passwd root",
                             "env -i /bin/ls /", "id", "cat /etc/debian_version"}) {
    const auto hooked = shell(script, true);
    const auto plain = shell(script, false);
    EXPECT_EQ(hooked.out, plain.out) << script << hooked.err << log();
    EXPECT_EQ(hooked.err, plain.err) << script;
    EXPECT_EQ(hooked.status, plain.status) << script;
  }
}

TEST_P(RealMpiEverything, everything_in_its_usr_bin_still_loads) {
  const std::string script =
      "for f in /usr/bin/*; do ldd -r \"$f\" 2>&1 | grep -E 'not found|undefined' | "
      "sed \"s|^|$f: |;s|(.*||\"; done";
  EXPECT_EQ(shell(script, true).out, shell(script, false).out);
}

TEST_P(RealMpiEverything, programs_with_rpath_or_runpath_are_swapped_too) {
  const std::string folder = "/usr/lib/x86_64-linux-gnu";
  compile("rpath", "-Wl,--disable-new-dtags,-rpath," + folder);
  compile("runpath", "-Wl,--enable-new-dtags,-rpath," + folder);
  for (const char* program : {"/mnt/rpath", "/mnt/runpath"}) {
    const auto ran = start(config({program, "maps"}));
    EXPECT_THAT(ran.out, HasSubstr("0 of 1, sum 1, glibc " + glibc())) << ran.err << log();
    EXPECT_THAT(ran.out, HasSubstr("4.0.2"));
  }
}

TEST_P(RealMpiEverything, both_names_in_one_process_are_one_file) {
  write_text_file(dir_ / "app/other.c",
                  "#include <mpi.h>\nint other(void) { int f; return MPI_Initialized(&f); }\n");
  compile("libother.so", "-shared -fPIC -Wl,-soname,libother.so", "other.c");
  run_checked(
      {"patchelf", "--replace-needed", "libmpich.so.12", "libmpi.so.12", dir_ / "app/libother.so"});
  compile("both", "-Wl,-rpath,/mnt -Wl,--unresolved-symbols=ignore-all");
  run_checked({"patchelf", "--add-needed", "libother.so", dir_ / "app/both"});
  const auto ran = start(config({"/mnt/both", "maps"}));
  EXPECT_EQ(ran.status, 0) << ran.err << log();
  std::set<std::string> files;
  std::istringstream lines(ran.out);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("/")) files.insert(line);
  EXPECT_EQ(files.size(), 1U) << ran.out;
}

TEST_P(RealMpiEverything, a_function_that_the_host_lacks_is_named_before_the_start) {
  // An MPI that has one function more, to link with.
  write_text_file(dir_ / "app/more.c", "int MPI_Not_on_any_host(void) { return 0; }\n");
  compile("libmore.so", "-shared -fPIC -Wl,-soname,libmore.so", "more.c");
  compile("odd", "-DODD -Wl,--no-as-needed /mnt/libmore.so");
  run_checked({"patchelf", "--remove-needed", "libmore.so", dir_ / "app/odd"});
  const auto ran = start(config({"/mnt/odd"}));
  EXPECT_NE(ran.status, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(log(), HasSubstr("MPI_Not_on_any_host"));
}

/// In images that have no Open MPI: its libraries come by the hook, its folders by the environment
/// that the log names.
TEST_P(RealMpiEverything, open_mpi_runs_two_ranks_with_its_own_components) {
  if (suite() == "bullseye") return;  // the program is this machine's: its glibc is too new
  run_checked({"mpicc.openmpi", "-o", dir_ / "app/open", dir_ / "app/hello.c"});
  auto open = config({"/mnt/open"});
  EXPECT_EQ(start(open).out, "");
  static const std::regex kRemedy(R"(start the container with ([^)]*)\))");
  std::smatch remedy;
  const auto text = log();
  ASSERT_TRUE(std::regex_search(text, remedy, kRemedy)) << text;
  std::istringstream words(remedy[1]);
  for (std::string word; words >> word;) open["process"]["env"].push_back(word);
  // Sessions of Open MPI lie in /tmp, and its ranks look at each other's processes.
  open["mounts"].back() = {
      {"destination", "/tmp"}, {"type", "bind"}, {"source", "/tmp"}, {"options", {"rbind"}}};
  open["linux"]["namespaces"] = Json::array({{{"type", "mount"}}});
  const auto ran = start(open, 2, {"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"});
  EXPECT_EQ(ran.status, 0) << ran.err << log();
  EXPECT_THAT(ran.out, HasSubstr("0 of 2, sum 3, glibc " + glibc() + ", Open MPI v4.1.4"));
  EXPECT_THAT(ran.out, HasSubstr("1 of 2, sum 3"));
}

TEST_P(RealMpiEverything, a_static_program_has_nothing_to_swap) {
  write_text_file(dir_ / "app/plain.c",
                  "#include <stdio.h>\nint main(void) { puts(\"static\"); }\n");
  run_checked({"gcc", "-static", "-o", dir_ / "app/static", dir_ / "app/plain.c"});
  EXPECT_EQ(start(config({"/mnt/static"})).out, "static\n");
  EXPECT_THAT(log(), HasSubstr("nothing to swap: "));
}

TEST_P(RealMpiEverything, verify_tells_swapped_from_not_swapped) {
  for (const bool hooked : {true, false}) {
    auto waiting = config({"/mnt/hello", "maps", "wait"});
    if (!hooked) waiting.erase("hooks");
    waiting["process"]["env"].erase(0);
    fs::create_directories(dir_ / "waits");
    write_text_file(dir_ / "waits/config.json", waiting.dump());
    const Runtime runtime("runc", dir_ / "state");
    const auto id = "heddle-verify-" + std::to_string(::getpid());
    const auto out = value_or_throw(open_file(dir_ / "out", O_RDWR | O_CREAT | O_TRUNC));
    auto argv = runtime.run_command(dir_ / "waits", id);
    argv.insert(argv.begin(), "env");
    auto child = value_or_throw(spawn("/usr/bin/env", argv, {{{out.get(), STDOUT_FILENO}}}));
    ASSERT_TRUE(wait_until(20s, [&] {
      return value_or_throw(read_file(dir_ / "out")).find("/libmpi") != std::string::npos;
    })) << log();
    const int init = Json::parse(run(runtime.command({"state", id})).out).at("pid");
    const auto verified = run({staged_program("fs-hook"), "verify", std::to_string(init)});
    EXPECT_EQ(verified.status, hooked ? 0 : 1) << verified.out << verified.err;
    EXPECT_THAT(verified.out, HasSubstr(hooked ? "\nswapped: mpich 4.0.2" : "\nNOT swapped"));
    const auto json =
        Json::parse(run({staged_program("fs-hook"), "verify", "--json", std::to_string(init)}).out);
    EXPECT_EQ(json.at("swapped"), hooked);
    ::kill(init, SIGKILL);
    EXPECT_TRUE(value_or_throw(child.wait_for(5s)).has_value());
    (void)run(runtime.command({"delete", "--force", id}));
  }
}

const auto kDebians = ::testing::Values(Debian{"bullseye", "2.36"}, Debian{"bookworm", "2.36"},
                                        Debian{"trixie", "2.41"});
const auto kName = [](const auto& each) {
  return std::string(std::get<0>(each.param)) + "_" + std::get<1>(each.param).suite;
};
INSTANTIATE_TEST_SUITE_P(Debian, RealMpi,
                         ::testing::Combine(::testing::Values("runc", "crun"), kDebians), kName);
INSTANTIATE_TEST_SUITE_P(Debian, RealMpiEverything,
                         ::testing::Combine(::testing::Values("runc"), kDebians), kName);

}  // namespace
}  // namespace heddle::test
