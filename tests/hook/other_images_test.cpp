// SPDX-License-Identifier: MIT
//
// Images that are not a distribution: with only a program and its libraries, or with each library
// in a directory of its own, as in Nix. The host's MPI and fs-resolve are real.

#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/oci_config.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

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
  void program(const std::string& path, Strings flags = {}) const {
    flags.push_back(mpi_);
    fs::create_directories(fs::path(root() + path).parent_path());
    build_program({.output = root() + path, .source = kProgram, .flags = flags});
  }
  RunResult start(const std::string& program) {
    auto config = oci_config(root(), {program});
    bind_host_devices(config);
    config["hooks"]["createRuntime"] = Json::array({oci_hook_entry(
        staged_program("fs-hook"), {"--cache", dir_ / "cache", "--log", dir_ / "log"})});
    write_text_file(dir_ / "bundle/config.json", config.dump());
    return Runtime(GetParam(), dir_ / "state")
        .run(dir_ / "bundle", "heddle-other-" + std::to_string(::getpid()));
  }
  void expect_swapped(const std::string& program) {
    const auto ran = start(program);
    EXPECT_THAT(ran.out, HasSubstr("MPICH Version:"))
        << ran.err << read_file(dir_ / "log").value_or("");
  }
  int verify(const std::string& program) const {
    return run({staged_program("fs-hook"), "verify", "--cache", dir_ / "cache", "--rootfs", root(),
                "--program", program})
        .status;
  }
  TestDir dir_;
  std::string mpi_;
};

/// A distroless or FROM scratch image: no shell, no ld.so.cache, no /etc and no /dev.
TEST_P(OtherImage, image_of_a_program_and_its_libraries_is_swapped) {
  for (const char* name : {"libc.so.6", "libm.so.6"})
    copy(kLib + std::string(name), kLib + std::string(name));
  copy(kLoader, kLoader);
  copy(mpi_, "/usr/lib/libmpich.so.12");
  program("/solver");
  EXPECT_EQ(verify("/solver"), 0) << "no runtime has made directories yet";
  EXPECT_FALSE(fs::exists(root() + "/dev"));
  expect_swapped("/solver");
}

/// The host's MPI needs libm, which the image lacks; the host's libm needs the host's libc.
TEST_P(OtherImage, image_without_part_of_glibc_gets_all_of_the_hosts) {
  copy(kLib + std::string("libc.so.6"), kLib + std::string("libc.so.6"));
  copy(kLoader, kLoader);
  copy(mpi_, "/usr/lib/libmpich.so.12");
  program("/solver");
  expect_swapped("/solver");
}

/// ld.so with its own cache path and directory, and each library in a store, found by RUNPATH.
TEST_P(OtherImage, image_with_a_library_store_is_swapped) {
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
  expect_swapped(solver);
  // Another image with the same program, whose RUNPATH leads to another MPI first.
  copy(mpi_, glibc + "libmpich.so.12");
  expect_swapped(solver);
}

INSTANTIATE_TEST_SUITE_P(Oci, OtherImage, ::testing::Values("crun"), kParameterName);

}  // namespace
}  // namespace heddle::test
