// SPDX-License-Identifier: MIT
// Programs and libraries whose RPATH or RUNPATH leads to the image's MPI, served with another: the
// prediction held against the image's own ld.so, which is given the bytes that a mount would give.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/fd.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/policy/decide_fixture.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kMine = "/opt/mpi/lib/libmpi.so.12";
constexpr const char* kHosts = "/dev/heddle/libmpi.so.12";

class Neutralise : public ImageTest {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    if (IsSkipped()) return;
    theirs_ = world_.mpich(world_.in(kMine), "libmpi.so.12", "3.0");
    host_mpi("4.0.2");
    world_.run_ldconfig();
  }
  std::string library(const std::string& path, const std::string& soname, const std::string& source,
                      std::vector<std::string> flags = {}) {
    flags.push_back("-Wl,-soname," + soname);
    return build_library({.output = world_.in(path), .source = source, .flags = flags});
  }
  nlohmann::json decide(const std::string& program) {
    auto decision = world_.decide(program, {"--rpath", "neutralise"});
    EXPECT_EQ(decision["outcome"], "swap") << decision.dump(2);
    return decision;
  }
  static std::vector<std::string> served(const nlohmann::json& decision) {
    std::vector<std::string> out;
    for (const auto& file : decision["served"]) out.push_back(file["target"]);
    return out;
  }

  std::string theirs_;
};

TEST_F(Neutralise, the_program_finds_the_hosts_mpi_and_all_else_as_before) {
  library("/opt/mpi/lib/libother.so.1", "libother.so.1", "int other(void){return 0;}");
  for (const char* tags : {"-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"})
    for (const char* path : {"/opt/mpi/lib", "$ORIGIN/../opt/mpi/lib"}) {
      for (const char* program : {"/app/solver", "/app/unnamed"})
        world_.program(
            program, std::string(kInit) + "extern int other(void); other();", theirs_,
            {tags, std::string("-Wl,-rpath,") + path, world_.in("/opt/mpi/lib/libother.so.1")});
      const auto solver = value_or_throw(read_file(world_.in("/app/solver")));
      const auto decision = decide("/app/solver");
      EXPECT_EQ(decision["rpath"], "neutralise");
      EXPECT_EQ(served(decision), std::vector<std::string>{"/app/solver"});
      EXPECT_EQ(bound_over(decision, "/app/solver"), ".image/app/solver");
      EXPECT_EQ(bound_over(decision, kMine), "") << "the image's stays";
      EXPECT_EQ(decision["served"][0]["tags"], path);
      EXPECT_EQ(decision["served"][0]["now"], std::string("/dev/heddle:") + path);
      EXPECT_THAT(world_.loads(decision),
                  AllOf(Contains(kHosts), Contains(HasSubstr("opt/mpi/lib/libother.so.1"))));
      EXPECT_THAT(decision["warnings"].dump(), HasSubstr(kMine));
      EXPECT_EQ(value_or_throw(read_file(world_.in("/app/solver"))), solver);
      world_.place(decision);
      EXPECT_EQ(world_.loads(decision), world_.real_loads("/app/solver"));
      // As it ran before: on the image's, all of it.
      EXPECT_THAT(world_.real_loads("/app/unnamed"), Contains(HasSubstr("opt/mpi/lib/libmpi.so")));
      // Without /proc ld.so knows no $ORIGIN of a program.
      if (*path == '/') {
        EXPECT_EQ(run({"chroot", world_.root(), "/app/solver"}).status, 0);
      }
      fs::remove_all(world_.in("/dev/heddle"));
    }
}

TEST_F(Neutralise, libraries_with_a_search_path_of_their_own_are_served_too) {
  const auto second = world_.mpich(world_.in("/opt/b/libmpich.so.12"), "libmpich.so.12", "3.0");
  const auto helper = library("/opt/c/libhelp.so.1", "libhelp.so.1",
                              "int MPI_Comm_rank(void);int help(void){return MPI_Comm_rank();}",
                              {second, "-Wl,-rpath,$ORIGIN/../b"});
  world_.program("/app/solver", std::string(kInit) + "extern int help(void); help();", theirs_,
                 {helper, "-Wl,-rpath,/opt/mpi/lib:/opt/c", "-Wl,--allow-shlib-undefined"});
  const auto decision = decide("/app/solver");
  EXPECT_EQ(served(decision), (std::vector<std::string>{"/app/solver", "/opt/c/libhelp.so.1"}));
  EXPECT_THAT(decision["warnings"].dump(), AllOf(HasSubstr("/opt/c/libhelp.so.1: leads all"),
                                                 Not(HasSubstr("/app/solver: leads"))));
  EXPECT_EQ(bound_over(decision, "/opt/b/libmpich.so.12"), "");
  expect_as_real("/app/solver", decision);
  EXPECT_EQ(world_.loads(decision).size(), 4U) << "one MPI";
}

/// Fortran: the program needs the bindings alone, whose own search path leads to their libmpi.
TEST_F(Neutralise, an_image_library_that_is_replaced_is_not_served_besides) {
  const auto fortran = [&](const std::string& output, const std::string& library) {
    return build_library(
        {.output = output,
         .source = "int MPI_Init(void);int mpi_init_(void){return MPI_Init();}",
         .flags = {"-Wl,-soname,libmpifort.so.12", library, "-Wl,-rpath,$ORIGIN"}});
  };
  const auto theirs = fortran(world_.in("/opt/mpi/lib/libmpifort.so.12"), theirs_);
  fortran(world_.prefix() + "/lib/libmpifort.so.12", world_.prefix() + "/lib/libmpi.so.12");
  fs::create_symlink("libmpi.so.12", world_.in("/opt/mpi/lib/libmpi.so"));
  for (const char* program : {"/app/solver", "/app/unnamed"})
    world_.program(program, "extern int mpi_init_(void); mpi_init_();", theirs,
                   {"-Wl,-rpath,/opt/mpi/lib", "-Wl,--allow-shlib-undefined"});
  const auto decision = decide("/app/solver");
  EXPECT_EQ(served(decision), std::vector<std::string>{"/app/solver"});
  EXPECT_THAT(world_.loads(decision),
              AllOf(Contains(kHosts), Contains("/dev/heddle/libmpifort.so.12")));
  expect_as_real("/app/solver", decision);
  EXPECT_THAT(world_.real_loads("/app/solver", "libmpi.so"), Not(Contains(HasSubstr("/opt/mpi"))));
  const auto unnamed = world_.real_loads("/app/unnamed");
  EXPECT_THAT(unnamed, AllOf(Contains(HasSubstr("/opt/mpi/lib/libmpifort.so")), Contains(kMine),
                             Not(Contains(HasSubstr("/dev/heddle")))));
}

/// A program may load it late by the name that compilers use.
TEST_F(Neutralise, other_names_of_the_images_mpi_are_the_hosts_for_the_program_alone) {
  fs::create_symlink("libmpi.so.12", world_.in("/opt/mpi/lib/libmpi.so"));
  world_.program("/app/solver", kInit, theirs_, {"-Wl,-rpath,/opt/mpi/lib"});
  const auto decision = decide("/app/solver");
  world_.place(decision);
  const auto loads = world_.real_loads("/app/solver", "libmpi.so");
  EXPECT_THAT(loads,
              AllOf(Contains("/dev/heddle/libmpi.so"), Not(Contains(HasSubstr("/opt/mpi")))));
  EXPECT_THAT(decision["asked"], Contains("/opt/mpi/lib/")) << "another name may be added";
  const auto cache = value_or_throw(read_file(world_.in("/etc/ld.so.cache")));
  EXPECT_EQ(cache.find(std::string("libmpi.so") + '\0'), std::string::npos);
}

TEST_F(Neutralise, nothing_is_hidden_where_a_library_has_plugins_beside_it) {
  const auto image_ucs = ucs(world_.in("/opt/mpi/lib/libucs.so.0"));
  const auto host_ucs = ucs(world_.prefix() + "/lib/libucs.so.0", "int uct_d(void){return 0;}");
  build_library({.output = world_.prefix() + "/lib/ucx/libuct_x.so.0",
                 .source = "int x(void){return 0;}",
                 .flags = {"-Wl,--no-as-needed", host_ucs}});
  world_.mpich(world_.prefix() + "/lib/libmpi.so.12", "libmpi.so.12", "4.0.2",
               "int uct_d(void);int uses(void){return uct_d();}",
               {host_ucs, "-Wl,-rpath," + world_.prefix() + "/lib"});
  world_.program("/app/solver", kInit, theirs_,
                 {"-Wl,-rpath,/opt/mpi/lib", "-Wl,--no-as-needed", image_ucs});
  EXPECT_EQ(bound_over(world_.decide("/app/solver"), "/opt/mpi/lib/libucs.so.0"),
            ".heddle/other-class")
      << "without it, it would be";
  const auto decision = decide("/app/solver");
  EXPECT_EQ(bound_over(decision, "/opt/mpi/lib/libucs.so.0"), "");
  EXPECT_THAT(world_.loads(decision), Contains("/dev/heddle/libucs.so.0"));
  expect_as_real("/app/solver", decision);
}

/// Segments that follow one another without a gap, as older linkers make them.
TEST_F(Neutralise, without_room_for_a_longer_path_the_tag_goes_where_nothing_is_lost_by_it) {
  const std::vector<std::string> flags = {"-Wl,-rpath,/opt/mpi/lib", "-Wl,-z,noseparate-code"};
  world_.program("/app/solver", kInit, theirs_, flags);
  const auto decision = decide("/app/solver");
  EXPECT_EQ(served(decision), std::vector<std::string>{"/app/solver"});
  EXPECT_EQ(decision["served"][0]["now"], "");
  EXPECT_THAT(decision["asked"], Contains("/opt/mpi/lib/")) << "what is added would be lost";
  expect_as_real("/app/solver", decision);
  fs::remove_all(world_.in("/dev/heddle"));
  // Another library there would not be found any more, who ever asks for it.
  world_.program("/app/second", kInit, theirs_, flags);
  library("/opt/mpi/lib/libother.so.1", "libother.so.1", "int other(void){return 0;}");
  const auto bound = decide("/app/second");
  EXPECT_EQ(bound["rpath"], "bind");
  EXPECT_THAT(served(bound), IsEmpty());
  EXPECT_EQ(bound_over(bound, kMine), "libmpi.so.12");
  EXPECT_THAT(bound["warnings"].dump(),
              AllOf(HasSubstr("/app/second has no room"), HasSubstr("libother.so.1")));
  expect_as_real("/app/second", bound);
}

TEST_F(Neutralise, without_room_a_tag_stays_where_it_cannot_be_told_what_is_lost) {
  const std::string relative = "folders that are relative";
  const std::string levels = "/opt/mpi/lib/x86_64/ would not be looked into";
  for (const auto& [path, reason] :
       std::vector<std::pair<std::string, std::string>>{{"/opt/mpi/lib:", relative},
                                                        {"/opt/mpi/lib:$ORIGINx", relative},
                                                        {"/opt/mpi/$LIB", ""},
                                                        {"/opt/mpi/lib", levels}}) {
    if (reason == levels)
      library("/opt/mpi/lib/x86_64/libother.so.1", "libother.so.1", "int other(void){return 0;}");
    if (reason.empty()) {
      fs::create_directories(world_.in("/opt/mpi/lib/x86_64-linux-gnu"));
      fs::copy_file(world_.in(kMine), world_.in("/opt/mpi/lib/x86_64-linux-gnu/libmpi.so.12"));
    }
    world_.program("/app/solver", kInit, theirs_, {"-Wl,-rpath," + path, "-Wl,-z,noseparate-code"});
    const auto decision = decide("/app/solver");
    EXPECT_EQ(decision["rpath"], reason.empty() ? "neutralise" : "bind") << path;
    if (!reason.empty()) {
      EXPECT_THAT(decision["warnings"].dump(), HasSubstr(reason)) << path;
    }
    fs::remove(world_.in("/app/solver"));
  }
}

/// $ORIGIN of a library is the folder that it was found in, not that of the file a link leads to.
TEST_F(Neutralise, without_room_what_lies_beside_the_link_to_a_library_counts) {
  const auto mine = world_.mpich(world_.in("/opt/c/libmpich.so.12"), "libmpich.so.12", "3.0");
  library("/opt/c/libother.so.1", "libother.so.1", "int other(void){return 0;}");
  const auto helper = library("/opt/d/libhelp.so.1", "libhelp.so.1",
                              "int MPI_Comm_rank(void);int help(void){return MPI_Comm_rank();}",
                              {mine, "-Wl,-rpath,$ORIGIN", "-Wl,-z,noseparate-code"});
  fs::create_symlink("../d/libhelp.so.1", world_.in("/opt/c/libhelp.so.1"));
  world_.program("/app/solver", "extern int help(void); help();", helper,
                 {"-Wl,-rpath,/opt/c", "-Wl,--allow-shlib-undefined"});
  const auto decision = decide("/app/solver");
  EXPECT_EQ(decision["rpath"], "bind");
  EXPECT_THAT(decision["warnings"].dump(), HasSubstr("without its own /opt/c/"));
}

TEST_F(Neutralise, a_program_with_rights_of_its_own_is_not_served) {
  // A version 2 capability set (capabilities(7)): cap_net_raw, permitted and effective.
  vfs_cap_data rights{};
  rights.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE;
  rights.data[0].permitted = 1U << CAP_NET_RAW;
  for (const bool capability : {false, true}) {
    world_.program("/app/solver", kInit, theirs_, {"-Wl,-rpath,/opt/mpi/lib"});
    const auto program = world_.in("/app/solver");
    if (capability)
      ASSERT_EQ(::setxattr(program.c_str(), "security.capability", &rights, XATTR_CAPS_SZ_2, 0), 0)
          << std::strerror(errno);
    else
      ASSERT_EQ(::chmod(program.c_str(), 04755), 0);
    const auto decision = decide("/app/solver");
    EXPECT_EQ(decision["rpath"], "bind");
    EXPECT_EQ(bound_over(decision, kMine), "libmpi.so.12");
    EXPECT_THAT(decision["warnings"].dump(),
                HasSubstr(capability ? "has file capabilities" : "is set-user-ID"));
    fs::remove(program);
  }
}

TEST_F(Neutralise, the_map_has_the_images_file_with_its_own_hash_and_a_few_bytes) {
  world_.program("/app/solver", kInit, theirs_, {"-Wl,-rpath,/opt/mpi/lib"});
  ASSERT_EQ(::chown(world_.in("/app/solver").c_str(), 12, 34), 0);
  decide("/app/solver");
  const auto content = value_or_throw(value_or_throw(MapReader::open(world_.map())).read_all());
  const auto& object = content.objects.back();
  EXPECT_EQ(object.path, "/app/solver");
  EXPECT_TRUE(object.in_image);
  EXPECT_EQ(object.owner, 12U);
  EXPECT_EQ(object.group, 34U);
  EXPECT_EQ(object.hash, hash_bytes(value_or_throw(read_file(world_.in("/app/solver")))));
  ASSERT_EQ(object.patches.size(), 2U);
  EXPECT_EQ(world_.fs_resolve({"verify", world_.map()}).status, 0);
  const auto text = world_.fs_resolve({"explain", world_.map()}).out;
  EXPECT_THAT(text, HasSubstr("served with /dev/heddle:/opt/mpi/lib"));
}

}  // namespace
}  // namespace heddle::test
