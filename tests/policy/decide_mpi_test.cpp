// SPDX-License-Identifier: MIT
// Which MPI of the host replaces the container's, and when none may.

#include "resolver/map/map_reader.hpp"
#include "tests/policy/decide_fixture.hpp"
#include "tests/support/fuse_kernel.hpp"

namespace heddle::test {
namespace {

using ::testing::Contains;

TEST_F(Decide, replaces_the_mpi_under_all_its_sonames) {
  usual();
  const auto decision = swap("/app/solver");
  EXPECT_EQ(decision["mpi"]["version"], "4.0.2");
  EXPECT_EQ(decision["container_mpi"]["version"], "3.0");
  EXPECT_EQ(decision["glibc"]["taken"], "container");
  EXPECT_EQ(world_.verdict(decision, "libmpi.so.12")["rule"], "mpi-stack");
  const auto content = value_or_throw(value_or_throw(MapReader::open(world_.map())).read_all());
  const auto* name = find_name(content.views[0].names, "libmpich.so.12");
  ASSERT_TRUE(name != nullptr && find_name(content.views[0].names, "libmpi.so.12") != nullptr);
  EXPECT_EQ(content.objects.size(), 1U);
  expect_as_real("/app/solver", decision);
}

TEST_F(Decide, names_a_function_that_the_host_lacks) {
  const auto theirs = world_.mpich(world_.in(kImageLib) + "libmpi.so.12", "4.2.1",
                                   "int MPI_Remove_error_class(void){return 0;}");
  world_.program("/app/modest", kInit, theirs);
  solver(theirs, "extern int MPI_Remove_error_class(void); MPI_Remove_error_class();");
  EXPECT_THAT(refusal("/app/solver"), AllOf(HasSubstr("MPI_Remove_error_class"),
                                            HasSubstr("MPICH 4.0.2"), HasSubstr("MPICH 4.2.1")));
  // A program that does not call it is swapped, with a warning.
  const auto decision = swap("/app/modest");
  EXPECT_THAT(decision["warnings"].dump(), HasSubstr("MPICH 4.2.1"));
}

TEST_F(Decide, accepts_a_missing_weak_symbol) {
  const auto theirs =
      world_.mpich(world_.in(kImageLib) + "libmpi.so.12", "4.2.1", "int MPI_New(void){return 0;}");
  solver(theirs, "extern int MPI_New(void) __attribute__((weak)); if (MPI_New) MPI_New();" +
                     std::string(kInit));
  swap("/app/solver");
}

TEST_F(Decide, checks_symbols_of_libraries_between_program_and_mpi) {
  const auto theirs =
      world_.mpich(world_.in(kImageLib) + "libmpi.so.12", "4.2.1", "int MPI_New(void){return 0;}");
  const auto hdf = library(world_.in(kImageLib) + "libhdf.so.1",
                           "int MPI_New(void);int hdf(void){return MPI_New();}", {theirs});
  solver(hdf, "extern int hdf(void); hdf();", {"-Wl,--allow-shlib-undefined"});
  EXPECT_THAT(refusal("/app/solver"), AllOf(HasSubstr("libhdf.so.1"), HasSubstr("MPI_New")));
}

TEST_F(Decide, refuses_another_mpi_family) {
  solver(open_mpi(world_.in(kImageLib), "5.0.3"));
  EXPECT_THAT(refusal("/app/solver"), AllOf(HasSubstr("Open MPI 5.0.3"), HasSubstr("MPICH 4.0.2"),
                                            HasSubstr("openmpi-40"), HasSubstr("mpich-12")));
  const auto decision = nlohmann::json::parse(world_.build("/app/solver", {}).out);
  EXPECT_THAT(decision["hint"].get<std::string>(), HasSubstr("Wi4MPI"));
}

TEST_F(Decide, replaces_bindings_with_the_library_or_refuses) {
  usual();
  const auto fortran =
      library(world_.in(kImageLib) + "libmpichfort.so.12",
              "int MPI_Init(void);int mpi_init_(void){return MPI_Init();}", {theirs_});
  world_.program("/app/fortran", "extern int mpi_init_(void); mpi_init_();", fortran,
                 {"-Wl,--allow-shlib-undefined"});
  world_.run_ldconfig();
  EXPECT_THAT(refusal("/app/fortran"), HasSubstr("libmpichfort.so.12"));
  library(world_.prefix() + "/lib/libmpifort.so.12",
          "int MPI_Init(void);int mpi_init_(void){return MPI_Init();}",
          {world_.prefix() + "/lib/libmpi.so.12"});
  const auto decision = swap("/app/fortran");
  EXPECT_EQ(world_.verdict(decision, "libmpifort.so.12")["taken"], "host");
  expect_as_real("/app/fortran", decision);
}

TEST_F(Decide, gives_the_hosts_mpi_to_a_program_without_one) {
  // A wheel built on a Cray needs the soname of one compiler's library.
  for (const std::string soname : {"libmpi.so.12", "libmpi_gnu_112.so.12"}) {
    const auto theirs = world_.mpich(world_.in("/gone/" + soname), "3.0");
    solver(theirs);
    fs::remove(theirs);
    const auto decision = swap("/app/solver");
    EXPECT_TRUE(decision["container_mpi"].is_null());
    EXPECT_THAT(world_.loads(decision), Contains("/dev/heddle/" + soname));
    expect_as_real("/app/solver", decision);
    fs::remove_all(world_.in("/dev/heddle"));
  }
}

TEST_F(Decide, follows_a_script_to_its_interpreter) {
  usual();
  fs::copy_file("/bin/true", world_.in("/bin-true"));
  write_text_file(world_.in("/app/run.sh"), "#!/bin-true -x\nexec /app/solver\n", 0755);
  const auto decision = swap("/app/run.sh");
  EXPECT_EQ(decision["container_mpi"]["version"], "3.0");
}

TEST_F(Decide, reports_the_mpi_that_is_left_of_two) {
  HEDDLE_NEEDS_OPENAT2();  // fs-resolve searches the image for the other MPI
  usual();
  open_mpi(world_.in(kImageLib), "5.0.3");
  world_.run_ldconfig();
  build_program({.output = world_.in("/app/plain"), .source = "int main(void){return 0;}"});
  const auto decision = swap("/app/plain");
  EXPECT_EQ(decision["container_mpi"]["family"], "mpich");
  EXPECT_THAT(decision["warnings"].dump(), HasSubstr("Open MPI 5.0.3"));
  EXPECT_THAT(world_.decide("/app/solver")["warnings"], IsEmpty());
}

TEST_F(Decide, keeps_the_old_map_when_there_is_nothing_to_swap) {
  usual();
  ASSERT_EQ(world_.decide("/app/solver")["outcome"], "swap");
  const auto before = fs::last_write_time(world_.map());
  build_program({.output = world_.in("/app/static"),
                 .source = "int main(void){return 0;}",
                 .flags = {"-static"}});
  const auto result = world_.build("/app/static");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["outcome"], "nothing");
  EXPECT_EQ(fs::last_write_time(world_.map()), before);
  fs::remove(theirs_);
  world_.run_ldconfig();
  build_program({.output = world_.in("/app/plain"), .source = "int main(void){return 0;}"});
  EXPECT_EQ(world_.decide("/app/plain")["outcome"], "nothing");
  EXPECT_EQ(world_.decide("/app/solver", {"--mpi", "none"})["outcome"], "nothing");
}

TEST_F(Decide, replaces_any_library_named_by_root) {
  usual();
  library(world_.in(kImageLib) + "libfab.so.1",
          "int fab(void){return 1;}int more(void){return 1;}");
  const auto mine = library(world_.prefix() + "/lib/libfab.so.1", "int fab(void){return 2;}");
  world_.program("/app/fab", "extern int fab(void); fab();", world_.in(kImageLib) + "libfab.so.1");
  world_.run_ldconfig();
  const auto decision = swap("/app/fab", {"--mpi", "none", "--root", mine});
  EXPECT_TRUE(decision["mpi"].is_null());
  expect_as_real("/app/fab", decision);
}

}  // namespace
}  // namespace heddle::test
