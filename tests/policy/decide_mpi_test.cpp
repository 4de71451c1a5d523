// SPDX-License-Identifier: MIT
// Which MPI of the host stands for the container's, and when none may.
#include <gmock/gmock.h>

#include <filesystem>

#include "resolver/map/map_reader.hpp"
#include "tests/policy/decide_fixture.hpp"
#include "tests/support/fuse_kernel.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Decide, the_hosts_mpi_stands_for_the_containers_under_all_its_names) {
  usual();
  const auto decision = world_.decide("/app/solver");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_EQ(decision["mpi"]["version"], "4.0.2");
  EXPECT_EQ(decision["container_mpi"]["version"], "3.0");
  EXPECT_EQ(decision["glibc"]["taken"], "container");
  EXPECT_EQ(world_.verdict(decision, "libmpi.so.12")["rule"], "mpi-stack");
  const auto reader = value_or_throw(MapReader::open(world_.map()));
  const auto one = value_or_throw(reader.lookup("", "libmpi.so.12"));
  const auto other = value_or_throw(reader.lookup("", "libmpich.so.12"));
  ASSERT_TRUE(one && other);
  EXPECT_EQ(one->path, other->path);
  EXPECT_EQ(value_or_throw(reader.read_all()).objects.size(), 1U);
  expect_as_real("/app/solver", decision);
}

TEST_F(Decide, both_names_in_one_process_are_one_library) {
  usual();
  build_library({.output = world_.in(kImageLib) + "libhelp.so.1",
                 .source = "int MPI_Comm_rank(void);int help(void){return MPI_Comm_rank();}",
                 .flags = {"-Wl,-soname,libhelp.so.1",
                           world_.mpich(world_.in("/app/libmpi.so.12"), "libmpi.so.12", "3.0")}});
  world_.program("/app/both", std::string(kInit) + "extern int help(void); help();", theirs_,
                 {world_.in(kImageLib) + "libhelp.so.1", "-Wl,--allow-shlib-undefined"});
  fs::remove(world_.in("/app/libmpi.so.12"));
  world_.run_ldconfig();
  const auto decision = world_.decide("/app/both");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  const auto count =
      std::count_if(decision["loads"].begin(), decision["loads"].end(), [](const auto& load) {
        return load["path"].template get<std::string>().find("/libmpi") != std::string::npos;
      });
  EXPECT_EQ(count, 1);
  expect_as_real("/app/both", decision);
}

TEST_F(Decide, a_function_that_the_host_lacks_is_refused_by_its_name) {
  const auto theirs = world_.mpich(world_.in(kImageLib) + "libmpi.so.12", "libmpi.so.12", "4.2.1",
                                   "int MPI_Remove_error_class(void){return 0;}");
  world_.program("/app/solver",
                 "extern int MPI_Remove_error_class(void); MPI_Remove_error_class();", theirs);
  world_.program("/app/modest", kInit, theirs);
  host_mpi("4.0.2");
  world_.run_ldconfig();
  EXPECT_THAT(refusal("/app/solver"), AllOf(HasSubstr("MPI_Remove_error_class"),
                                            HasSubstr("MPICH 4.0.2"), HasSubstr("MPICH 4.2.1")));
  // What it does not call it does not miss; that the host's is older is said.
  const auto decision = world_.decide("/app/modest");
  EXPECT_EQ(decision["outcome"], "swap");
  EXPECT_THAT(decision["warnings"].dump(), HasSubstr("is older than the container's MPICH 4.2.1"));
}

TEST_F(Decide, a_weak_symbol_may_be_missing) {
  const auto theirs = world_.mpich(world_.in(kImageLib) + "libmpi.so.12", "libmpi.so.12", "4.2.1",
                                   "int MPI_New(void){return 0;}");
  world_.program("/app/solver",
                 "extern int MPI_New(void) __attribute__((weak)); if (MPI_New) MPI_New();" +
                     std::string(kInit),
                 theirs);
  host_mpi("4.0.2");
  world_.run_ldconfig();
  EXPECT_EQ(world_.decide("/app/solver")["outcome"], "swap");
}

TEST_F(Decide, symbols_that_a_library_between_needs_count_too) {
  const auto theirs = world_.mpich(world_.in(kImageLib) + "libmpi.so.12", "libmpi.so.12", "4.2.1",
                                   "int MPI_New(void){return 0;}");
  const auto hdf = build_library({.output = world_.in(kImageLib) + "libhdf.so.1",
                                  .source = "int MPI_New(void);int hdf(void){return MPI_New();}",
                                  .flags = {"-Wl,-soname,libhdf.so.1", theirs}});
  world_.program("/app/solver", "extern int hdf(void); hdf();", hdf,
                 {"-Wl,--allow-shlib-undefined"});
  host_mpi("4.0.2");
  world_.run_ldconfig();
  EXPECT_THAT(refusal("/app/solver"), AllOf(HasSubstr("libhdf.so.1"), HasSubstr("MPI_New")));
}

TEST_F(Decide, another_family_is_refused_and_both_are_named) {
  const auto theirs =
      build_library({.output = world_.in(kImageLib) + "libmpi.so.40",
                     .source = "int MPI_Init(void){return 0;}int MPI_Comm_rank(void){return 0;}"
                               "int ompi_mpi_comm_world;const char t[]=\"v5.0.3\";",
                     .flags = {"-Wl,-soname,libmpi.so.40"}});
  world_.program("/app/solver", kInit, theirs);
  host_mpi("4.0.2");
  world_.run_ldconfig();
  EXPECT_THAT(refusal("/app/solver"), AllOf(HasSubstr("Open MPI 5.0.3"), HasSubstr("MPICH 4.0.2"),
                                            HasSubstr("openmpi-40"), HasSubstr("mpich-12")));
}

TEST_F(Decide, bindings_go_with_the_library_or_not_at_all) {
  usual();
  const auto fortran =
      build_library({.output = world_.in(kImageLib) + "libmpichfort.so.12",
                     .source = "int MPI_Init(void);int mpi_init_(void){return MPI_Init();}",
                     .flags = {"-Wl,-soname,libmpichfort.so.12", theirs_}});
  world_.program("/app/fortran", "extern int mpi_init_(void); mpi_init_();", fortran,
                 {"-Wl,--allow-shlib-undefined"});
  world_.run_ldconfig();
  EXPECT_THAT(refusal("/app/fortran"), HasSubstr("libmpichfort.so.12"));
  build_library({.output = world_.prefix() + "/lib/libmpifort.so.12",
                 .source = "int MPI_Init(void);int mpi_init_(void){return MPI_Init();}",
                 .flags = {"-Wl,-soname,libmpifort.so.12", world_.prefix() + "/lib/libmpi.so.12"}});
  const auto decision = world_.decide("/app/fortran");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_EQ(world_.verdict(decision, "libmpifort.so.12")["taken"], "host");
  expect_as_real("/app/fortran", decision);
}

TEST_F(Decide, a_program_whose_mpi_the_image_lacks_gets_the_hosts) {
  const auto theirs = world_.mpich(world_.in("/gone/libmpi.so.12"), "libmpi.so.12", "3.0");
  world_.program("/app/solver", kInit, theirs);
  fs::remove(theirs);
  host_mpi("4.0.2");
  world_.run_ldconfig();
  const auto decision = world_.decide("/app/solver");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_TRUE(decision["container_mpi"].is_null());
  expect_as_real("/app/solver", decision);
}

/// A wheel that was built on a Cray names the library of one compiler.
TEST_F(Decide, a_name_of_crays_gets_the_hosts_mpich) {
  const auto theirs =
      world_.mpich(world_.in("/gone/libmpi_gnu_112.so.12"), "libmpi_gnu_112.so.12", "3.0");
  world_.program("/app/solver", kInit, theirs);
  fs::remove(theirs);
  host_mpi("4.0.2");
  world_.run_ldconfig();
  const auto decision = world_.decide("/app/solver");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_THAT(world_.loads(decision), Contains("/dev/heddle/libmpi_gnu_112.so.12"));
  expect_as_real("/app/solver", decision);
}

TEST_F(Decide, a_script_gets_what_the_image_has) {
  usual();
  fs::copy_file("/bin/true", world_.in("/bin-true"));
  write_text_file(world_.in("/app/run.sh"), "#!/bin-true -x\nexec /app/solver\n", 0755);
  const auto decision = world_.decide("/app/run.sh");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_EQ(decision["container_mpi"]["version"], "3.0");
}

TEST_F(Decide, an_image_with_two_mpis_is_told_which_is_left_as_it_is) {
  HEDDLE_NEEDS_OPENAT2();  // the other is found by a walk through the image
  usual();
  build_library({.output = world_.in(kImageLib) + "libmpi.so.40",
                 .source = "int MPI_Init(void){return 0;}int MPI_Comm_rank(void){return 0;}"
                           "int ompi_mpi_comm_world;const char t[]=\"v5.0.3\";",
                 .flags = {"-Wl,-soname,libmpi.so.40"}});
  world_.run_ldconfig();
  build_program({.output = world_.in("/app/plain"), .source = "int main(void){return 0;}"});
  const auto decision = world_.decide("/app/plain");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_EQ(decision["container_mpi"]["family"], "mpich");
  EXPECT_THAT(decision["warnings"].dump(), HasSubstr("Open MPI 5.0.3"));
  EXPECT_THAT(world_.decide("/app/solver")["warnings"], IsEmpty());
}

TEST_F(Decide, nothing_to_swap_is_said_and_an_older_map_stands) {
  usual();
  ASSERT_EQ(world_.decide("/app/solver")["outcome"], "swap");
  const auto before = fs::last_write_time(world_.map());
  build_program({.output = world_.in("/app/static"),
                 .source = "int main(void){return 0;}",
                 .flags = {"-static"}});
  const auto result = world_.build("/app/static");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("static program: nothing to swap"));
  EXPECT_EQ(fs::last_write_time(world_.map()), before);
  fs::remove(theirs_);
  world_.run_ldconfig();
  build_program({.output = world_.in("/app/plain"), .source = "int main(void){return 0;}"});
  EXPECT_EQ(world_.decide("/app/plain")["outcome"], "nothing");
  EXPECT_EQ(world_.decide("/app/solver", {"--mpi", "none"})["outcome"], "nothing");
}

TEST_F(Decide, any_library_can_be_the_hosts) {
  usual();
  build_library({.output = world_.in(kImageLib) + "libfab.so.1",
                 .source = "int fab(void){return 1;}int more(void){return 1;}",
                 .flags = {"-Wl,-soname,libfab.so.1"}});
  const auto mine = build_library({.output = world_.prefix() + "/lib/libfab.so.1",
                                   .source = "int fab(void){return 2;}",
                                   .flags = {"-Wl,-soname,libfab.so.1"}});
  world_.program("/app/fab", "extern int fab(void); fab();", world_.in(kImageLib) + "libfab.so.1");
  world_.run_ldconfig();
  const auto decision = world_.decide("/app/fab", {"--mpi", "none", "--root", mine});
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_TRUE(decision["mpi"].is_null());
  expect_as_real("/app/fab", decision);
}

}  // namespace
}  // namespace heddle::test
