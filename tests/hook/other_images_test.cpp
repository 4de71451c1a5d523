// SPDX-License-Identifier: MIT
//
// Images that are no distribution's: with nothing in them but a program and its libraries, or with
// each library in a directory of its own, as Nix has it. The host's MPI and what decides are real.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.hpp"
#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr const char* kContainersMpi = R"(
#include <string.h>
int MPI_Init(void) { return 0; }
int MPI_Finalize(void) { return 0; }
int MPI_Comm_rank(void) { return 0; }
int MPIR_Err(void) { return 0; }
const char text[] = "MPICH Version:\0" "3.4.1";
int MPI_Get_library_version(char* version, int* length) {
  strcpy(version, "the container's");
  return *length = 0;
}
)";
constexpr const char* kProgram = R"(
#include <stdio.h>
int MPI_Init(void*, void*);
int MPI_Finalize(void);
int MPI_Get_library_version(char*, int*);
int main(void) {
  char version[9999];
  int length;
  MPI_Init(0, 0);
  MPI_Get_library_version(version, &length);
  printf("%.20s\n", version);
  return MPI_Finalize();
}
)";
constexpr const char* kLib = "/lib/x86_64-linux-gnu/";
constexpr const char* kLoader = "/lib64/ld-linux-x86-64.so.2";

void replace(std::string& bytes, const std::string& from, const std::string& to) {
  const auto whole = '\0' + from + '\0';
  const auto at = bytes.find(whole);
  ASSERT_NE(at, bytes.npos) << from;
  ASSERT_EQ(from.size(), to.size());
  bytes.replace(at, whole.size(), '\0' + to + '\0');
}

class OtherImage : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto reason = why_not(GetParam()); !reason.empty()) HEDDLE_SKIP(reason);
    if (!fs::exists(kLib + std::string("libmpich.so.12"))) HEDDLE_SKIP("this machine has no MPICH");
    mpi_ = build_library({.output = dir_ / "libmpich.so.12",
                          .source = kContainersMpi,
                          .flags = {"-Wl,-soname,libmpich.so.12"}});
  }
  std::string root() const { return dir_ / "root"; }
  void copy(const std::string& from, const std::string& to) const {
    fs::create_directories(fs::path(root() + to).parent_path());
    fs::copy_file(fs::canonical(from), root() + to);
  }
  void program(const std::string& path, std::vector<std::string> flags = {}) const {
    flags.push_back(mpi_);
    fs::create_directories(fs::path(root() + path).parent_path());
    build_program({.output = root() + path, .source = kProgram, .flags = flags});
  }
  RunResult start(const std::string& program) {
    auto config = oci_config(root(), {program});
    for (const char* path : {"/dev/null", "/dev/urandom", "/dev/shm", "/sys"})
      config["mounts"].push_back(oci_bind(path, path, "rw"));
    config["hooks"]["createRuntime"] = nlohmann::json::array({oci_hook_entry(
        staged_program("fs-hook"), {"--cache", dir_ / "cache", "--log", dir_ / "log"})});
    write_text_file(dir_ / "bundle/config.json", config.dump());
    return Runtime(GetParam(), dir_ / "state")
        .run(dir_ / "bundle", "heddle-other-" + std::to_string(::getpid()));
  }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }
  int verify(const std::string& program) const {
    return run({staged_program("fs-hook"), "verify", "--cache", dir_ / "cache", "--rootfs", root(),
                "--program", program})
        .status;
  }
  TestDir dir_;
  std::string mpi_;
};

/// No shell, no ldconfig and so no ld.so.cache, no /etc, no /dev: a distroless or FROM scratch
/// image.
TEST_P(OtherImage, of_nothing_but_a_program_and_its_libraries) {
  for (const char* name : {"libc.so.6", "libm.so.6"})
    copy(kLib + std::string(name), kLib + std::string(name));
  copy(kLoader, kLoader);
  copy(mpi_, "/usr/lib/libmpich.so.12");
  program("/solver");
  EXPECT_EQ(verify("/solver"), 0) << "before any runtime has made directories in it";
  EXPECT_FALSE(fs::exists(root() + "/dev"));
  const auto ran = start("/solver");
  EXPECT_THAT(ran.out, HasSubstr("MPICH Version:")) << ran.err << log();
}

/// Its own MPI needed no libm: the host's does, and no libm goes with another build's libc.
TEST_P(OtherImage, that_lacks_a_part_of_glibc_gets_the_hosts_as_a_whole) {
  copy(kLib + std::string("libc.so.6"), kLib + std::string("libc.so.6"));
  copy(kLoader, kLoader);
  copy(mpi_, "/usr/lib/libmpich.so.12");
  program("/solver");
  const auto ran = start("/solver");
  EXPECT_THAT(ran.out, HasSubstr("MPICH Version:")) << ran.err << log();
}

/// ld.so, its own cache's path and directory, and each library in a store, found by RUNPATH.
TEST_P(OtherImage, with_a_store_of_libraries) {
  const std::string glibc = "/nix/glibc-2.36-1/lib/";
  const std::string store = "/nix/store/2c3d-mpich-3.4.1/lib/";
  for (const char* name : {"libc.so.6", "libm.so.6"}) copy(kLib + std::string(name), glibc + name);
  copy(mpi_, store + "libmpich.so.12");
  auto loader = value_or_throw(read_file(kLoader));
  replace(loader, "/etc/ld.so.cache", "/n/g/ld.so.cache");
  replace(loader, kLib, glibc);
  const auto interpreter = glibc + "ld-linux-x86-64.so.2";
  write_text_file(root() + interpreter, loader, 0755);
  const std::string solver = "/nix/store/4e5f-solver/bin/solver";
  program(solver, {"-Wl,--dynamic-linker=" + interpreter, "-Wl,--enable-new-dtags",
                   "-Wl,-rpath," + glibc + ":" + store});
  EXPECT_EQ(verify(solver), 0);
  const auto ran = start(solver);
  EXPECT_THAT(ran.out, HasSubstr("MPICH Version:")) << ran.err << log();
  // Another image with the same program, whose RUNPATH leads to one more MPI first.
  copy(mpi_, glibc + "libmpich.so.12");
  EXPECT_THAT(start(solver).out, HasSubstr("MPICH Version:")) << log();
}

INSTANTIATE_TEST_SUITE_P(Oci, OtherImage, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace heddle::test
