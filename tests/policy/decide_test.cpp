// SPDX-License-Identifier: MIT
// What a container's program gets of the host: images, MPIs and programs made here, the prediction
// held against the image's own ld.so.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/fd.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/policy/image_world.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kImageLib = "/usr/lib/";
constexpr const char* kInit = "extern int MPI_Init(void); MPI_Init();";

class Decide : public ::testing::Test {
 protected:
  void SetUp() override {
    if (staged_program("fs-resolve").empty())
      HEDDLE_SKIP("fs-resolve is not installed in $HEDDLE_STAGE");
    if (::geteuid() != 0) HEDDLE_SKIP("only root may chroot into an image");
  }
  /// MPICH 3.0 in the image under Debian's name, MPICH 4.0.2 on the host under upstream's.
  void usual() {
    theirs_ = world_.mpich(world_.in(kImageLib) + "libmpich.so.12", "libmpich.so.12", "3.0");
    world_.program("/app/solver", kInit, theirs_);
    host_mpi("4.0.2");
    world_.run_ldconfig();
  }
  void host_mpi(const std::string& version, const std::string& more = "",
                const std::vector<std::string>& flags = {}) {
    world_.mpich(world_.prefix() + "/lib/libmpi.so.12", "libmpi.so.12", version, more, flags);
  }
  std::string refusal(const std::string& program, std::vector<std::string> more = {}) {
    fs::remove(world_.map());
    const auto result = world_.build(program, std::move(more));
    EXPECT_EQ(result.status, 1) << result.out << result.err;
    EXPECT_FALSE(fs::exists(world_.map()));
    const auto value = nlohmann::json::parse(result.out, nullptr, false);
    if (!value.is_object()) return "no JSON: " + result.err;
    EXPECT_EQ(value["outcome"], "incompatible");
    return value["reason"];
  }
  /// What goes over the container's file `target`; empty: nothing.
  static std::string bound_over(const nlohmann::json& decision, const std::string& target) {
    for (const auto& bind : decision["binds"])
      if (bind["target"] == target) return bind["source"];
    return {};
  }
  void expect_as_real(const std::string& program, const nlohmann::json& decision) {
    world_.place(decision);
    EXPECT_EQ(world_.loads(decision), world_.real_loads(program));
  }

  ImageWorld world_;
  std::string theirs_;
};

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

TEST_F(Decide, what_an_rpath_finds_gets_the_hosts_file_bound_over_it) {
  for (const char* tags : {"-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"}) {
    const auto theirs = world_.mpich(world_.in("/opt/a b/libmpi.so.12"), "libmpi.so.12", "3.0");
    world_.program("/app/solver", kInit, theirs, {tags, "-Wl,-rpath,/opt/a b"});
    host_mpi("4.0.2");
    world_.run_ldconfig();
    const auto decision = world_.decide("/app/solver");
    ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
    EXPECT_EQ(bound_over(decision, "/opt/a b/libmpi.so.12"), "libmpi.so.12");
  }
  expect_as_real("/app/solver", world_.decide("/app/solver"));
}

TEST_F(Decide, programs_that_nobody_asked_about_get_the_hosts_too) {
  usual();
  world_.program("/app/other", kInit, theirs_,
                 {"-Wl,--disable-new-dtags", std::string("-Wl,-rpath,") + kImageLib});
  const auto decision = world_.decide("/app/solver");
  EXPECT_EQ(bound_over(decision, std::string(kImageLib) + "libmpich.so.12"), "libmpi.so.12");
  world_.place(decision);
  struct stat mine {
  }, theirs{};
  ASSERT_EQ(::stat(world_.in("/dev/heddle/libmpi.so.12").c_str(), &mine), 0);
  ASSERT_EQ(::stat(world_.in(world_.real_loads("/app/other").at(0)).c_str(), &theirs), 0);
  EXPECT_EQ(mine.st_ino, theirs.st_ino);
}

TEST_F(Decide, what_ld_library_path_finds_is_bound_over_when_it_is_said) {
  usual();
  fs::create_directories(world_.in("/srv"));
  fs::copy_file(theirs_, world_.in("/srv/libmpich.so.12"));
  const auto decision = world_.decide("/app/solver", {"--library-path", "/srv"});
  EXPECT_EQ(bound_over(decision, "/srv/libmpich.so.12"), "libmpi.so.12");
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

TEST_F(Decide, a_system_library_is_the_one_that_contains_the_other) {
  const auto make = [&](const std::string& output, const std::string& versions) {
    const auto script = world_.prefix() + "/v.map";
    write_text_file(script, versions);
    return build_library({.output = output,
                          .source = "int sys(void){return 0;}",
                          .flags = {"-Wl,-soname,libsys.so.1", "-Wl,--version-script=" + script}});
  };
  theirs_ = world_.mpich(world_.in(kImageLib) + "libmpi.so.12", "libmpi.so.12", "3.0");
  world_.program("/app/solver", kInit, theirs_);
  const std::string one = "S_1 { global: sys; local: *; };";
  const std::string two = one + " S_2 { } S_1;";
  const std::string other = one + " S_OTHER { } S_1;";
  const auto host_with = [&](const std::string& versions) {
    const auto sys = make(world_.prefix() + "/lib/libsys.so.1", versions);
    host_mpi("4.0.2", "int sys(void);int uses(void){return sys();}",
             {sys, "-Wl,-rpath," + world_.prefix() + "/lib"});
  };
  struct Row {
    std::string host, container;
    const char *taken, *rule;
  };
  for (const auto& row :
       {Row{two, one, "host", "versions"}, Row{one, two, "container", "versions"},
        Row{one, one, "container", "versions"}, Row{two, other, "container", "needs"}}) {
    host_with(row.host);
    make(world_.in(kImageLib) + "libsys.so.1", row.container);
    world_.run_ldconfig();
    const auto verdict = world_.verdict(world_.decide("/app/solver"), "libsys.so.1");
    EXPECT_EQ(verdict["taken"], row.taken) << row.host << " against " << row.container;
    EXPECT_EQ(verdict["rule"], row.rule) << row.host << " against " << row.container;
  }
  // The container has none: the host's comes along.
  fs::remove(world_.in(kImageLib) + "libsys.so.1");
  world_.run_ldconfig();
  const auto decision = world_.decide("/app/solver");
  EXPECT_EQ(world_.verdict(decision, "libsys.so.1")["rule"], "only-host");
  expect_as_real("/app/solver", decision);
}

TEST_F(Decide, without_versions_symbols_decide) {
  const auto make = [&](const std::string& output, const std::string& source) {
    return build_library({.output = output, .source = source, .flags = {"-Wl,-soname,libu.so.1"}});
  };
  const std::string one = "int u1(void){return 0;}";
  const std::string two = one + "int u2(void){return 0;}";
  theirs_ = world_.mpich(world_.in(kImageLib) + "libmpi.so.12", "libmpi.so.12", "3.0");
  const auto host_with = [&](const std::string& source) {
    const auto lib = make(world_.prefix() + "/lib/libu.so.1", source);
    host_mpi("4.0.2", "int u1(void);int uses(void){return u1();}",
             {lib, "-Wl,-rpath," + world_.prefix() + "/lib"});
  };
  make(world_.in(kImageLib) + "libu.so.1", one);
  world_.program("/app/solver", kInit, theirs_);
  host_with(two);
  world_.run_ldconfig();
  EXPECT_EQ(world_.verdict(world_.decide("/app/solver"), "libu.so.1")["taken"], "host");
  make(world_.in(kImageLib) + "libu.so.1", two);
  host_with(one);
  EXPECT_EQ(world_.verdict(world_.decide("/app/solver"), "libu.so.1")["taken"], "container");
  // Neither contains the other, and the program needs what the host's lacks.
  const auto container = make(world_.in(kImageLib) + "libu.so.1", "int u3(void){return 0;}");
  host_with(one);
  world_.program("/app/greedy", "extern int u3(void); u3();" + std::string(kInit), theirs_,
                 {container});
  EXPECT_THAT(refusal("/app/greedy"), AllOf(HasSubstr("u1"), HasSubstr("u3")));
}

TEST_F(Decide, a_map_for_a_container_explains_itself) {
  usual();
  const auto built = world_.build("/app/solver");
  EXPECT_EQ(world_.fs_resolve({"explain", "--json", world_.map()}).out, built.out);
  const auto text = world_.fs_resolve({"explain", world_.map()}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("mpich 4.0.2"), HasSubstr("mpich 3.0"),
                          HasSubstr("libmpi.so.12"), HasSubstr("mpi-stack")));
  EXPECT_EQ(world_.build("/app/solver").out, built.out);
  ASSERT_EQ(world_.fs_resolve({"build", "-o", world_.map(), "/bin/true"}).status, 0);
  const auto plain = world_.fs_resolve({"explain", world_.map()});
  EXPECT_EQ(plain.status, 1);
  EXPECT_THAT(plain.err, HasSubstr("was made for no container"));
}

TEST_F(Decide, links_of_the_image_are_followed_inside_it) {
  usual();
  fs::rename(world_.in("/etc/ld.so.cache"), world_.in("/app/cache"));
  fs::create_symlink("../../../../../app/cache", world_.in("/etc/ld.so.cache"));
  fs::create_symlink("/app", world_.in("/link"));
  const auto decision = world_.decide("/link/solver");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_EQ(decision["binds"].back()["target"], "/app/cache");
}

/// Minimal and distroless images have none; there is no file to bind over, and none can be made.
TEST_F(Decide, an_image_without_a_cache_gets_an_ld_so_that_reads_the_mounts) {
  usual();
  fs::remove(world_.in("/etc/ld.so.cache"));
  const auto decision = world_.decide("/app/solver");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_EQ(bound_over(decision, "/lib/x86_64-linux-gnu/ld-real.so"), ".heddle/ld.so");
  EXPECT_THAT(world_.loads(decision), Contains("/dev/heddle/libmpich.so.12"));
  // The path of the mount's must fit where that of /etc/ld.so.cache stands in ld.so.
  EXPECT_THAT(refusal("/app/solver", {"--at", "/dev/heddle-mpi"}),
              AllOf(HasSubstr("no ld.so.cache"), HasSubstr("/dev/heddle-mpi/.ldc")));
  EXPECT_EQ(world_.decide("/app/solver", {"--at", "/srv"})["outcome"], "swap");
  expect_as_real("/app/solver", world_.decide("/app/solver"));
}

/// Alpine's. Its loader is the libc, and reads no cache.
TEST_F(Decide, an_image_of_musl_is_refused_as_such) {
  const auto musl = build_library({.output = world_.in("/lib/ld-musl-x86_64.so.1"),
                                   .source = "const char t[]=\"musl libc (x86_64)\";"
                                             "int puts(const char*x){return !x;}",
                                   .flags = {"-nostdlib", "-Wl,-soname,libc.musl-x86_64.so.1"}});
  build_program({.output = world_.in("/app/solver"),
                 .source = "int puts(const char*);void _start(void){puts(\"\");}",
                 .flags = {"-nostdlib", musl, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"}});
  host_mpi("4.0.2");
  EXPECT_THAT(refusal("/app/solver"),
              AllOf(HasSubstr("ld-musl-x86_64.so.1"), HasSubstr("musl"), HasSubstr("needs glibc")));
}

/// Whatever libucs is, by name: the host's has UCX's modules beside it.
TEST_F(Decide, a_library_with_plugins_beside_it_is_hidden_from_an_rpath_without_place_for_them) {
  const auto uct = [&](const std::string& output, const std::string& more = "") {
    return build_library({.output = output,
                          .source = "int uct_a(void){return 0;}int uct_b(void){return 0;}"
                                    "int uct_c(void){return 0;}" +
                                    more,
                          .flags = {"-Wl,-soname,libucs.so.0"}});
  };
  const auto theirs = world_.mpich(world_.in("/opt/spack/lib/libmpi.so.12"), "libmpi.so.12", "3.0",
                                   "", {uct(world_.in("/opt/spack/lib/libucs.so.0"))});
  build_library({.output = world_.in("/opt/spack/lib/libother.so.1"),
                 .source = "int other(void){return 0;}",
                 .flags = {"-Wl,-soname,libother.so.1"}});
  const auto host_uct = uct(world_.prefix() + "/lib/libucs.so.0", "int uct_d(void){return 0;}");
  build_library({.output = world_.prefix() + "/lib/ucx/libuct_x.so.0",
                 .source = "int x(void){return 0;}",
                 .flags = {"-Wl,--no-as-needed", host_uct}});
  host_mpi("4.0.2", "int uct_d(void);int uses(void){return uct_d();}",
           {host_uct, "-Wl,-rpath," + world_.prefix() + "/lib"});
  for (const char* tags : {"-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"}) {
    world_.program(
        "/app/solver", std::string(kInit) + "extern int other(void); other();", theirs,
        {tags, "-Wl,-rpath,/opt/spack/lib", "-Wl,--no-as-needed",
         world_.in("/opt/spack/lib/libother.so.1"), world_.in("/opt/spack/lib/libucs.so.0")});
    world_.run_ldconfig();
    const auto decision = world_.decide("/app/solver");
    ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
    EXPECT_EQ(bound_over(decision, "/opt/spack/lib/libucs.so.0"), ".heddle/other-class");
    EXPECT_EQ(bound_over(decision, "/opt/spack/lib/libmpi.so.12"), "libmpi.so.12");
    EXPECT_THAT(world_.loads(decision), Contains("/dev/heddle/libucs.so.0"));
    EXPECT_THAT(world_.loads(decision), Contains("/opt/spack/lib/libother.so.1"));
    EXPECT_EQ(decision["directories"].size(), 0U) << decision["directories"];
  }
  // Where the image has the folder, it is bound over and nothing is hidden.
  fs::create_directories(world_.in("/opt/spack/lib/ucx"));
  const auto decision = world_.decide("/app/solver");
  EXPECT_EQ(bound_over(decision, "/opt/spack/lib/libucs.so.0"), "libucs.so.0");
  fs::remove(world_.in("/opt/spack/lib/ucx"));
  expect_as_real("/app/solver", world_.decide("/app/solver"));
}

TEST_F(Decide, what_a_plugin_finds_in_the_programs_rpath_gets_the_hosts_bound_over_it) {
  const auto dep = [&](const std::string& output, const std::string& more) {
    return build_library({.output = output,
                          .source = "int dep(void){return 0;}" + more,
                          .flags = {"-Wl,-soname,libdep.so.1"}});
  };
  const auto theirs = world_.mpich(world_.in("/opt/conda/lib/libmpi.so.12"), "libmpi.so.12", "3.0");
  dep(world_.in("/opt/conda/lib/libdep.so.1"), "");
  world_.program("/app/solver", kInit, theirs,
                 {"-Wl,--disable-new-dtags", "-Wl,-rpath,/opt/conda/lib"});
  world_.program("/app/runpath", kInit, theirs,
                 {"-Wl,--enable-new-dtags", "-Wl,-rpath,/opt/conda/lib"});
  const auto host_uct = build_library({.output = world_.prefix() + "/lib/libucs.so.0",
                                       .source = "int uct_a;int uct_b;int uct_c;",
                                       .flags = {"-Wl,-soname,libucs.so.0"}});
  build_library(
      {.output = world_.prefix() + "/lib/ucx/libuct_x.so.0",
       .source = "int dep2(void);int x(void){return dep2();}",
       .flags = {dep(world_.prefix() + "/lib/libdep.so.1", "int dep2(void){return 0;}")}});
  host_mpi("4.0.2", "", {"-Wl,--no-as-needed", host_uct, "-Wl,-rpath," + world_.prefix() + "/lib"});
  world_.run_ldconfig();
  const auto decision = world_.decide("/app/solver");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_EQ(bound_over(decision, "/opt/conda/lib/libdep.so.1"), "libdep.so.1") << decision.dump(2);
  // A RUNPATH is for the program's own libraries: the plugin's are found by the cache.
  EXPECT_EQ(bound_over(world_.decide("/app/runpath"), "/opt/conda/lib/libdep.so.1"), "");
  world_.decide("/app/solver");
  world_.place(decision);
  EXPECT_THAT(world_.real_loads("/app/solver", "/dev/heddle/ucx/libuct_x.so.0"),
              Contains("/opt/conda/lib/libdep.so.1"));
}

/// python of a conda environment needs no MPI; mpi4py loads the one beside it.
TEST_F(Decide, an_mpi_that_modules_of_an_interpreter_load_late_is_found_by_its_tags) {
  const auto theirs = world_.mpich(world_.in("/opt/conda/lib/libmpi.so.12"), "libmpi.so.12", "3.0");
  host_mpi("4.0.2");
  world_.run_ldconfig();
  for (const char* folder : {"/opt/conda/lib", "$ORIGIN/../lib", "${ORIGIN}/../lib"}) {
    build_program({.output = world_.in("/opt/conda/bin/python"),
                   .source = "int main(void){return 0;}",
                   .flags = {std::string("-Wl,-rpath,") + folder}});
    const auto decision = world_.decide("/opt/conda/bin/python");
    ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
    EXPECT_EQ(decision["container_mpi"]["version"], "3.0");
    EXPECT_EQ(bound_over(decision, "/opt/conda/lib/libmpi.so.12"), "libmpi.so.12");
  }
  // Elsewhere, as Spack has it: the module itself is named.
  const auto module =
      build_library({.output = world_.in("/opt/mpi4py/MPI.so"),
                     .source = "int MPI_Init(void);int go(void){return MPI_Init();}",
                     .flags = {theirs, "-Wl,-rpath,/opt/conda/lib"}});
  const auto decision = world_.decide("/opt/mpi4py/MPI.so");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_EQ(bound_over(decision, "/opt/conda/lib/libmpi.so.12"), "libmpi.so.12");
  expect_as_real("/opt/mpi4py/MPI.so", decision);
}

/// Each of a program's libraries with a prefix of its own, one name and the other: still one MPI.
TEST_F(Decide, several_copies_that_tags_lead_to_are_one_file_afterwards) {
  const auto first = world_.mpich(world_.in("/opt/a/libmpi.so.12"), "libmpi.so.12", "3.0");
  const auto second = world_.mpich(world_.in("/opt/b/libmpich.so.12"), "libmpich.so.12", "3.0");
  const auto helper =
      build_library({.output = world_.in("/opt/c/libhelp.so.1"),
                     .source = "int MPI_Comm_rank(void);int help(void){return MPI_Comm_rank();}",
                     .flags = {"-Wl,-soname,libhelp.so.1", second, "-Wl,-rpath,$ORIGIN/../b"}});
  world_.program("/app/solver", std::string(kInit) + "extern int help(void); help();", first,
                 {helper, "-Wl,-rpath,$ORIGIN/../opt/a:/opt/c", "-Wl,--allow-shlib-undefined"});
  host_mpi("4.0.2");
  world_.run_ldconfig();
  ASSERT_EQ(world_.real_loads("/app/solver").size(), 5U) << "two MPIs in one process, as it is";
  const auto decision = world_.decide("/app/solver");
  ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
  EXPECT_EQ(bound_over(decision, "/opt/a/libmpi.so.12"), "libmpi.so.12");
  EXPECT_EQ(bound_over(decision, "/opt/b/libmpich.so.12"), "libmpi.so.12");
  expect_as_real("/app/solver", decision);
  EXPECT_EQ(world_.loads(decision).size(), 4U);
}

/// The image's libc is made up: older than the host's libraries need, with a version of its own
/// that the host's lacks. Neither can be the only one.
TEST_F(Decide, a_glibc_that_can_neither_stay_nor_go_is_refused_with_both_versions) {
  usual();
  host_mpi("4.0.2", "void*dlopen(const char*,int);void*load(void){return dlopen(\"x\",2);}");
  const auto script = world_.prefix() + "/libc.map";
  write_text_file(script,
                  "GLIBC_2.2.5 { global: puts; local: *; }; GLIBC_2.31 { } GLIBC_2.2.5;"
                  "GLIBC_2.31_VENDOR { } GLIBC_2.31;");
  const auto libc = world_.in("/lib/x86_64-linux-gnu/libc.so.6");
  fs::remove(libc);
  build_library(
      {.output = libc,
       .source = "int puts(const char*x){return !x;}",
       .flags = {"-nostdlib", "-Wl,-soname,libc.so.6", "-Wl,--version-script=" + script}});
  const auto ld_so = world_.in("/lib/x86_64-linux-gnu/ld-real.so");
  auto bytes = value_or_throw(read_file(ld_so));
  const std::string version = " release version 2.";
  const auto at = bytes.find(version);
  ASSERT_NE(at, bytes.npos);
  bytes.replace(at + version.size(), 2, "31");
  write_text_file(ld_so, bytes, 0755);
  const auto reason = refusal("/app/solver");
  EXPECT_THAT(reason, AllOf(HasSubstr("the container's glibc is 2.31"), HasSubstr("libc.so.6")));
  EXPECT_THAT(reason, HasSubstr("the host's glibc 2." + std::to_string(__GLIBC_MINOR__)));
}

TEST_F(Decide, a_damaged_image_is_an_error_and_no_crash) {
  usual();
  std::ofstream(world_.in("/etc/ld.so.cache"), std::ios::in).seekp(20) << "\xff\xff\xff\x7f";
  EXPECT_LT(world_.build("/app/solver").status, 4);
  world_.run_ldconfig();
  fs::resize_file(theirs_, 700);
  EXPECT_LT(world_.build("/app/solver").status, 4);
  fs::remove(world_.in("/lib64/ld-linux-x86-64.so.2"));
  const auto result = world_.build("/app/solver");
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.err, HasSubstr("ld-linux"));
  EXPECT_EQ(world_.build("/no/such").status, 3);
  EXPECT_EQ(world_.fs_resolve({"build", "--into", "/no/such", "--program", "/a", "-o", "m"}).status,
            3);
}

TEST_F(Decide, odd_names_are_kept) {
  usual();
  const std::string name = "/app/a \n\"\xC3\xA4";
  fs::copy_file(world_.in("/app/solver"), world_.in(name));
  const auto decision = world_.decide(name);
  EXPECT_EQ(decision["outcome"], "swap");
  EXPECT_EQ(decision["program"][0], name);
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
