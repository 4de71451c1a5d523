// SPDX-License-Identifier: MIT
// Files that search paths find before ld.so.cache does.

#include "tests/policy/decide_fixture.hpp"

namespace heddle::test {
namespace {

using ::testing::Contains;

TEST_F(Decide, binds_the_hosts_file_over_what_an_rpath_finds) {
  const auto theirs = world_.mpich(world_.in("/opt/a b/libmpi.so.12"), "3.0");
  host_mpi("4.0.2");
  world_.run_ldconfig();
  std::map<std::string, nlohmann::json> decided;
  // Spack writes absolute paths, conda $ORIGIN.
  for (const char* directory : {"/opt/a b", "$ORIGIN/../opt/a b"})
    for (const char* tags : {"-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"}) {
      const auto program = "/app/solver" + std::to_string(decided.size());
      world_.program(program, kInit, theirs, {tags, std::string("-Wl,-rpath,") + directory});
      auto& decision = decided[program] = world_.decide(program);
      ASSERT_EQ(decision["outcome"], "swap") << decision.dump(2);
      EXPECT_EQ(bound_over(decision, "/opt/a b/libmpi.so.12"), "libmpi.so.12");
    }
  world_.place(decided.rbegin()->second);
  for (const auto& [program, decision] : decided)
    EXPECT_EQ(world_.loads(decision), world_.real_loads(program)) << program;
}

TEST_F(Decide, binds_over_what_the_given_ld_library_path_finds) {
  usual();
  fs::create_directories(world_.in("/srv"));
  fs::copy_file(theirs_, world_.in("/srv/libmpich.so.12"));
  const auto decision = world_.decide("/app/solver", {"--library-path", "/srv"});
  EXPECT_EQ(bound_over(decision, "/srv/libmpich.so.12"), "libmpi.so.12");
}

/// As behind a shell, whose programs are not known.
TEST_F(Decide, binds_over_what_unknown_programs_find_by_ld_library_path_or_without_ld_so_cache) {
  usual();
  // A copy with a function that the host lacks would be left alone.
  world_.mpich(world_.in("/srv/libmpich.so.12"), "3.0", "int MPI_New(void){return 0;}");
  build_program({.output = world_.in("/app/plain"), .source = "int main(void){return 0;}"});
  const auto decision = world_.decide("/app/plain", {"--library-path", "/srv"});
  EXPECT_EQ(bound_over(decision, "/srv/libmpich.so.12"), "libmpi.so.12") << decision.dump(1);
  fs::remove_all(world_.in("/srv"));
  fs::remove(world_.in("/etc/ld.so.cache"));
  EXPECT_EQ(swap("/app/plain")["container_mpi"]["version"], "3.0");
}

/// The host's libucs, recognised by its name, has UCX's modules beside it.
TEST_F(Decide, hides_a_library_with_plugins_from_an_rpath_without_their_directory) {
  const auto theirs = world_.mpich(world_.in("/opt/spack/lib/libmpi.so.12"), "3.0", "",
                                   {ucs(world_.in("/opt/spack/lib/libucs.so.0"))});
  library(world_.in("/opt/spack/lib/libother.so.1"), "int other(void){return 0;}");
  const auto host_uct = ucs(world_.prefix() + "/lib/libucs.so.0", "int uct_d(void){return 0;}");
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
    const auto decision = swap("/app/solver");
    EXPECT_EQ(bound_over(decision, "/opt/spack/lib/libucs.so.0"), ".heddle/other-class");
    EXPECT_EQ(bound_over(decision, "/opt/spack/lib/libmpi.so.12"), "libmpi.so.12");
    EXPECT_THAT(world_.loads(decision), Contains("/dev/heddle/libucs.so.0"));
    EXPECT_THAT(world_.loads(decision), Contains("/opt/spack/lib/libother.so.1"));
    EXPECT_EQ(decision["directories"].size(), 0U) << decision["directories"];
  }
  // If the image has the directory, the host's is bound over it and nothing is hidden.
  fs::create_directories(world_.in("/opt/spack/lib/ucx"));
  const auto decision = world_.decide("/app/solver");
  EXPECT_EQ(bound_over(decision, "/opt/spack/lib/libucs.so.0"), "libucs.so.0");
  fs::remove(world_.in("/opt/spack/lib/ucx"));
  expect_as_real("/app/solver", world_.decide("/app/solver"));
}

/// They would connect to X displays, and where "localhost" has no address ask DNS, in MPI_Init().
TEST_F(Decide, leaves_out_gl_and_opencl_components_of_hwloc) {
  usual();
  const auto hwloc = library(world_.prefix() + "/lib/libhwloc.so.15", "int hwloc(void){return 0;}");
  for (const char* name : {"gl", "opencl", "pci"})
    build_library(
        {.output = world_.prefix() + "/lib/hwloc/hwloc_" + name + ".so", .source = "int plugin;"});
  host_mpi("4.0.2", "int hwloc(void);int uses(void){return hwloc();}",
           {hwloc, "-Wl,-rpath," + world_.prefix() + "/lib"});
  swap("/app/solver");
  const auto shown = world_.fs_resolve({"show", world_.map()}).out;
  EXPECT_THAT(shown, ::testing::HasSubstr("hwloc/hwloc_pci.so"));
  EXPECT_THAT(shown, ::testing::Not(::testing::ContainsRegex("hwloc_gl|hwloc_opencl")));
}

TEST_F(Decide, binds_over_what_a_plugin_finds_by_the_programs_rpath) {
  const auto dep = [&](const std::string& output, const std::string& more) {
    return library(output, "int dep(void){return 0;}" + more);
  };
  const auto theirs = world_.mpich(world_.in("/opt/conda/lib/libmpi.so.12"), "3.0");
  dep(world_.in("/opt/conda/lib/libdep.so.1"), "");
  world_.program("/app/solver", kInit, theirs,
                 {"-Wl,--disable-new-dtags", "-Wl,-rpath,/opt/conda/lib"});
  world_.program("/app/runpath", kInit, theirs,
                 {"-Wl,--enable-new-dtags", "-Wl,-rpath,/opt/conda/lib"});
  const auto host_uct =
      library(world_.prefix() + "/lib/libucs.so.0", "int uct_a;int uct_b;int uct_c;");
  build_library(
      {.output = world_.prefix() + "/lib/ucx/libuct_x.so.0",
       .source = "int dep2(void);int x(void){return dep2();}",
       .flags = {dep(world_.prefix() + "/lib/libdep.so.1", "int dep2(void){return 0;}")}});
  host_mpi("4.0.2", "", {"-Wl,--no-as-needed", host_uct, "-Wl,-rpath," + world_.prefix() + "/lib"});
  world_.run_ldconfig();
  const auto decision = swap("/app/solver");
  EXPECT_EQ(bound_over(decision, "/opt/conda/lib/libdep.so.1"), "libdep.so.1") << decision.dump(2);
  // A RUNPATH does not apply to the plugin's dependencies: the cache finds them.
  EXPECT_EQ(bound_over(world_.decide("/app/runpath"), "/opt/conda/lib/libdep.so.1"), "");
  world_.decide("/app/solver");
  world_.place(decision);
  EXPECT_THAT(world_.real_loads("/app/solver", "/dev/heddle/ucx/libuct_x.so.0"),
              Contains("/opt/conda/lib/libdep.so.1"));
}

/// conda's python does not need MPI itself; mpi4py loads the MPI of the environment.
TEST_F(Decide, finds_an_mpi_of_interpreter_modules_by_search_paths) {
  const auto theirs = world_.mpich(world_.in("/opt/conda/lib/libmpi.so.12"), "3.0");
  host_mpi("4.0.2");
  world_.run_ldconfig();
  for (const char* directory : {"/opt/conda/lib", "$ORIGIN/../lib", "${ORIGIN}/../lib"}) {
    build_program({.output = world_.in("/opt/conda/bin/python"),
                   .source = "int main(void){return 0;}",
                   .flags = {std::string("-Wl,-rpath,") + directory}});
    const auto decision = swap("/opt/conda/bin/python");
    EXPECT_EQ(decision["container_mpi"]["version"], "3.0");
    EXPECT_EQ(bound_over(decision, "/opt/conda/lib/libmpi.so.12"), "libmpi.so.12");
  }
  // Spack installs the module elsewhere: it is named as the program.
  const auto module =
      build_library({.output = world_.in("/opt/mpi4py/MPI.so"),
                     .source = "int MPI_Init(void);int go(void){return MPI_Init();}",
                     .flags = {theirs, "-Wl,-rpath,/opt/conda/lib"}});
  const auto decision = swap("/opt/mpi4py/MPI.so");
  EXPECT_EQ(bound_over(decision, "/opt/conda/lib/libmpi.so.12"), "libmpi.so.12");
  expect_as_real("/opt/mpi4py/MPI.so", decision);
}

/// Two copies of MPI with different sonames in different prefixes become one file.
TEST_F(Decide, unifies_several_copies_found_by_search_paths) {
  const auto first = world_.mpich(world_.in("/opt/a/libmpi.so.12"), "3.0");
  const auto second = world_.mpich(world_.in("/opt/b/libmpich.so.12"), "3.0");
  const auto helper = library(world_.in("/opt/c/libhelp.so.1"),
                              "int MPI_Comm_rank(void);int help(void){return MPI_Comm_rank();}",
                              {second, "-Wl,-rpath,$ORIGIN/../b"});
  solver(first, std::string(kInit) + "extern int help(void); help();",
         {helper, "-Wl,-rpath,$ORIGIN/../opt/a:/opt/c", "-Wl,--allow-shlib-undefined"});
  ASSERT_EQ(world_.real_loads("/app/solver").size(), 5U)
      << "without heddle, two MPIs in one process";
  const auto decision = swap("/app/solver");
  EXPECT_EQ(bound_over(decision, "/opt/a/libmpi.so.12"), "libmpi.so.12");
  EXPECT_EQ(bound_over(decision, "/opt/b/libmpich.so.12"), "libmpi.so.12");
  expect_as_real("/app/solver", decision);
  EXPECT_EQ(world_.loads(decision).size(), 4U);
}

/// Open MPI's path of its components, in an image without that directory.
TEST_F(Decide, rewrites_a_built_in_path_to_the_mount) {
  const auto theirs = open_mpi(world_.in(kImageLib), "4.1.4");
  world_.program("/app/solver", kInit, theirs);
  world_.run_ldconfig();
  const auto lib = world_.prefix() + "/lib";
  const auto pal = library(lib + "/libopen-pal.so.40",
                           "int opal_a,opal_b,opal_c;"
                           "const char t[]=\"\\0${libdir}/openmpi\\0end\";");
  build_library({.output = lib + "/openmpi/mca_x.so", .source = "int x;"});
  open_mpi(lib, "4.1.4", "", {"-Wl,--no-as-needed", pal, "-Wl,-rpath," + lib});
  const auto longer = world_.decide("/app/solver", {"--at", "/srv/heddle-of-this"});
  EXPECT_EQ(longer["changed"].size(), 0U) << "the path is too long for its place";
  EXPECT_TRUE(longer["environment"].contains("OPAL_PKGLIBDIR"));
  fs::create_directories(world_.in(lib + "/openmpi"));
  EXPECT_EQ(world_.decide("/app/solver")["changed"].size(), 0U)
      << "the host's is bound over the image's";
  fs::remove(world_.in(lib + "/openmpi"));

  const auto decision = world_.decide("/app/solver");
  ASSERT_EQ(decision["changed"].size(), 1U) << decision.dump(2);
  EXPECT_EQ(decision["changed"][0]["was"], "${libdir}/openmpi");
  EXPECT_EQ(decision["changed"][0]["now"], "/dev/heddle/ompi");
  EXPECT_FALSE(decision["environment"].contains("OPAL_PKGLIBDIR"));
  expect_as_real("/app/solver", decision);
  const auto served = value_or_throw(read_file(world_.in("/dev/heddle/libopen-pal.so.40")));
  EXPECT_NE(served.find(std::string("\0/dev/heddle/ompi\0\0end", 22)), served.npos);
}

/// ld.so does not bind data symbols lazily: it would end the program before main.
TEST_F(Decide, refuses_a_missing_data_symbol_of_another_open_mpi) {
  const auto theirs = open_mpi(world_.in("/tmp"), "4.1.4", "int ompi_mpi_instance_null;");
  world_.program("/app/solver", "extern int ompi_mpi_instance_null; return ompi_mpi_instance_null;",
                 theirs);
  fs::remove(theirs);
  world_.run_ldconfig();
  open_mpi(world_.prefix() + "/lib", "4.1.4");
  EXPECT_THAT(refusal("/app/solver"), ::testing::HasSubstr("ompi_mpi_instance_null"));
}

TEST_F(Decide, reports_a_program_that_the_image_lacks) {
  usual();
  const auto result = world_.build("/app/slover");
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.err, ::testing::HasSubstr("/app/slover: "));
}

/// Paths as in Open MPI and PMIx of Debian and of installations in a prefix.
TEST_F(Decide, serves_the_sites_parameters_and_keeps_the_images_directory) {
  const auto theirs = open_mpi(world_.in(kImageLib), "4.1.4");
  world_.program("/app/solver", kInit, theirs);
  world_.run_ldconfig();
  const auto lib = world_.prefix() + "/lib";
  const auto share = world_.prefix() + "/share";
  const auto pmix =
      library(lib + "/libpmix.so.2", "int PMIx_Init(void){return 0;}const char t[]=\"\\0" + share +
                                         "\\0${datadir}/pmix\\0" + share + "/other\\0\";");
  const auto pal =
      library(lib + "/libopen-pal.so.40",
              "int opal_a,opal_b,opal_c;const char t[]=\"\\0${prefix}/etc\\0${datadir}/openmpi\";");
  for (const char* file :
       {"/etc/openmpi-mca-params.conf", "/etc/openmpi-mca-params-override.conf", "/etc/secret",
        "/share/pmix-mca-params.conf", "/share/pmix/help-x.txt", "/share/openmpi/help-x.txt"})
    write_text_file(world_.prefix() + file, "the host's\n");
  open_mpi(lib, "4.1.4", "", {"-Wl,--no-as-needed", pal, pmix, "-Wl,-rpath," + lib});
  fs::create_directories(world_.in(world_.prefix() + "/etc"));

  const auto decision = world_.decide("/app/solver");
  std::map<std::string, std::string> changed;
  for (const auto& file : decision["changed"]) changed[file["was"]] = file["now"];
  EXPECT_EQ(changed,
            (std::map<std::string, std::string>{{"${prefix}/etc", "/dev/heddle"},
                                                {"${datadir}/openmpi", "/dev/heddle/share"},
                                                {share, "/dev/heddle"},
                                                {"${datadir}/pmix", "/dev/heddle/hlp"}}));
  EXPECT_EQ(decision["directories"].size(), 0U) << decision["directories"];
  EXPECT_EQ(decision["environment"].size(), 0U) << decision["environment"];
  expect_as_real("/app/solver", decision);
  for (const char* file : {"openmpi-mca-params.conf", "openmpi-mca-params-override.conf",
                           "pmix-mca-params.conf", "hlp/help-x.txt", "share/help-x.txt"})
    EXPECT_TRUE(fs::exists(world_.in("/dev/heddle/") + file)) << file;
  for (const char* file : {"secret", "etc"})
    EXPECT_FALSE(fs::exists(world_.in("/dev/heddle/") + file)) << file;
}

}  // namespace
}  // namespace heddle::test
