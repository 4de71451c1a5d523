// SPDX-License-Identifier: MIT
//
// A program compiled with each Debian's MPICH runs in that Debian, as a container, on the MPICH of
// this machine, started by this machine's mpiexec. Nothing here is faked.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "base/child.hpp"
#include "base/fd.hpp"
#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/hook/real_mpi.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct Debian {
  const char* suite;
  const char* glibc;  ///< that its program runs on
};

class RealMpi : public RealMpiTest,
                public ::testing::WithParamInterface<std::tuple<const char*, Debian>> {
 protected:
  void SetUp() override { prepare(runtime(), suite()); }
  std::string runtime() const { return std::get<0>(GetParam()); }
  std::string suite() const { return std::get<1>(GetParam()).suite; }
  std::string glibc() const { return std::get<1>(GetParam()).glibc; }
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
    expect_right_sums(ran, ranks, glibc());
  }
  EXPECT_EQ(changed_files(), "") << "something was written into the image";
  const bool is_newer = suite() == "trixie";
  EXPECT_EQ(
      log().find("MPICH 4.0.2 is older than the container's MPICH 4.2.1") != std::string::npos,
      is_newer)
      << log();
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
  const std::string directory = "/usr/lib/x86_64-linux-gnu";
  compile("rpath", "-Wl,--disable-new-dtags,-rpath," + directory);
  compile("runpath", "-Wl,--enable-new-dtags,-rpath," + directory);
  for (const char* program : {"/mnt/rpath", "/mnt/runpath"}) {
    const auto ran = start(config({program, "maps"}));
    EXPECT_THAT(ran.out, HasSubstr("0 of 1, sum 1, glibc " + glibc())) << ran.err << log();
    EXPECT_THAT(ran.out, HasSubstr("4.0.2"));
  }
}

/// As minimal images come; also one that is read-only, so that none can be made.
TEST_P(RealMpiEverything, an_image_without_an_ld_so_cache_is_swapped_too) {
  auto bare = config({"/mnt/hello"});
  bare["mounts"].push_back({{"destination", "/etc"}, {"type", "tmpfs"}, {"source", "tmpfs"}});
  const auto ran = start(bare, 2);
  EXPECT_EQ(ran.status, 0) << ran.err << log();
  expect_right_sums(ran, 2, glibc());
  bare["process"]["args"] = {"/bin/sh", "-c", "ls /etc; env -i /usr/bin/perl -e 'print 42'"};
  bare["annotations"]["heddle.program"] = "/mnt/hello";
  EXPECT_EQ(start(bare).out, "42") << log();
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

/// Names of the components that ld.so says (LD_DEBUG=files) it has opened, of all ranks together.
std::set<std::string> opened_components(const std::string& loader_talk) {
  static const std::regex kOpened(R"(file=\S*/(mca_[^/ ]+\.so) \[0\];  dynamically loaded by)");
  std::set<std::string> out;
  for (std::sregex_iterator one(loader_talk.begin(), loader_talk.end(), kOpened), end; one != end;
       ++one)
    out.insert((*one)[1]);
  return out;
}

/// In images that have no Open MPI.
TEST_P(RealMpiEverything, open_mpi_runs_two_ranks_with_all_components_of_the_hosts_list) {
  run_checked({"mpicc.openmpi", "-o", dir_ / "app/open", dir_ / "app/hello.c"});
  auto open = config({"/mnt/open"});
  open["process"]["env"].push_back("LD_DEBUG=files");
  // Sessions of Open MPI lie in /tmp, and its ranks look at each other's processes.
  open["mounts"].back() = {
      {"destination", "/tmp"}, {"type", "bind"}, {"source", "/tmp"}, {"options", {"rbind"}}};
  open["linux"]["namespaces"] = Json::array({{{"type", "mount"}}});
  const std::vector<std::string> launcher = {"mpirun.openmpi", "--allow-run-as-root",
                                             "--oversubscribe"};
  const auto ran = start(open, 2, launcher);
  EXPECT_EQ(ran.status, 0) << log();
  EXPECT_THAT(ran.out, HasSubstr("0 of 2, sum 3, glibc " + glibc() + ", Open MPI v4.1.4"));
  EXPECT_THAT(ran.out, HasSubstr("1 of 2, sum 3"));

  auto here = launcher;
  here.insert(here.end(), {"-n", "2", "env", "LD_DEBUG=files", dir_ / "app/open"});
  const auto wanted = opened_components(run_checked(here).err);
  EXPECT_GT(wanted.size(), 20U);
  EXPECT_EQ(opened_components(ran.err), wanted);
  EXPECT_EQ(log().find("the image lacks the directory"), std::string::npos) << log();
}

/// Neither glibc will do: the host's libraries need a newer one than the container's, and a library
/// of the program wants what only the build of the container's has.
TEST_P(RealMpiEverything, a_glibc_that_can_neither_stay_nor_go_is_refused_with_both_versions) {
  if (suite() != "bullseye") return;  // the one whose glibc is replaced
  const auto bound_to_it = dir_ / "app/libbound.so";
  fs::copy_file(rootfs_ + "/lib/x86_64-linux-gnu/libnss_compat.so.2", bound_to_it);
  run_checked({"patchelf", "--set-soname", "libbound.so", bound_to_it});
  compile("bound", "-Wl,--no-as-needed,-rpath,/mnt /mnt/libbound.so");
  const auto ran = start(config({"/mnt/bound"}));
  EXPECT_NE(ran.status, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(log(), AllOf(HasSubstr("/mnt/libbound.so"), HasSubstr("the container's glibc 2.31"),
                           HasSubstr("the host's glibc 2.36")));
  for (const char* words : {"version `GLIBC", "symbol lookup error", "error while loading"})
    EXPECT_EQ(ran.err.find(words), std::string::npos) << ran.err;
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

/// The same by the image's own ld.so, before anything runs; with plugins, which a program loads
/// late.
TEST_P(RealMpiEverything, verify_tells_it_before_the_start_too) {
  compile("rpath", "-Wl,--disable-new-dtags,-rpath,/usr/lib/x86_64-linux-gnu");
  for (const char* program : {"/mnt/hello", "/mnt/rpath"}) {
    auto bundle = config({program});
    bundle["process"]["env"].erase(0);
    write_text_file(dir_ / "config.json", bundle.dump());
    const auto verified = run(
        {staged_program("fs-hook"), "verify", "--cache", dir_ / "cache", "--bundle", dir_.path()});
    EXPECT_EQ(verified.status, 0) << verified.out << verified.err;
    EXPECT_THAT(verified.out, HasSubstr("\nswapped: mpich 4.0.2\n"));
    EXPECT_THAT(verified.out, HasSubstr("/ucx/libuct_cma.so"));
    EXPECT_THAT(verified.out,
                ContainsRegex(suite() == "bullseye" ? "host +/[^\n]*/libc.so.6"
                                                    : "container +/[^\n]*/libc.so.6"));
    const auto ran = start(config({program, "maps"}));
    std::istringstream lines(ran.out);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("/")) {
        // Less what the file's own name has behind the name that led to it.
        const auto path = line.substr(0, line.find(".so.12") + 6);
        EXPECT_THAT(verified.out, HasSubstr("host       " + path)) << "what it really maps";
      }
  }
  EXPECT_EQ(changed_files(), "");
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
