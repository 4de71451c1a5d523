// SPDX-License-Identifier: MIT
// Unusual images: without ld.so.cache, with links, with musl, damaged.

#include "tests/policy/decide_fixture.hpp"

namespace heddle::test {
namespace {

using ::testing::Contains;

TEST_F(Decide, map_explains_its_decision) {
  usual();
  const auto built = world_.build("/app/solver");
  EXPECT_EQ(world_.fs_resolve({"explain", "--json", world_.map()}).out, built.out);
  const auto text = world_.fs_resolve({"explain", world_.map()}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("mpich 4.0.2"), HasSubstr("mpich 3.0"),
                          HasSubstr("libmpi.so.12"), HasSubstr("mpi-stack")));
  EXPECT_EQ(world_.build("/app/solver").out, built.out);
  ASSERT_EQ(world_.fs_resolve({"build", "-o", world_.map(), "/bin/true"}).status, 0);
  EXPECT_EQ(world_.fs_resolve({"explain", world_.map()}).status, 1) << "a map for no container";
}

TEST_F(Decide, prints_the_binds_of_a_mounted_map_for_container_engines) {
  usual();
  const auto decision = swap("/app/solver");
  const auto binds = [&](const std::string& engine, const std::string& map) {
    return world_.fs_resolve({"explain", "--binds", engine, map});
  };
  EXPECT_EQ(binds("podman", world_.map()).status, 3) << "it is mounted nowhere";
  const auto mount = world_.prefix() + "/mount";
  fs::create_directories(mount);
  const auto mounted = run({staged_program("fs-mount"), world_.map(), mount});
  if (mounted.status != 0) HEDDLE_SKIP("no FUSE: " + mounted.err);
  std::string podman = "--volume=" + mount + ":/dev/heddle:ro\n";
  for (const auto& bind : decision["binds"])
    podman += "--volume=" + mount + "/" + std::string(bind["source"]) + ":" +
              std::string(bind["target"]) + ":ro\n";
  for (const auto& map : {world_.map(), mount}) EXPECT_EQ(binds("podman", map).out, podman);
  const auto ch_run = binds("ch-run", mount);
  EXPECT_EQ(ch_run.status, 3);
  EXPECT_EQ(ch_run.out, "");
  EXPECT_THAT(ch_run.err, HasSubstr("hint: fs-resolve build --into, with --at /srv"));
  EXPECT_THAT(binds("apptainer", mount).out, HasSubstr("--bind=" + mount + ":/dev/heddle:ro\n"));
  EXPECT_EQ(binds("lxc", mount).status, 2);
  run_checked({staged_program("fs-mount"), "-u", mount});
  swap("/app/solver", {"--at", "/srv"});
  run_checked({staged_program("fs-mount"), world_.map(), mount});
  EXPECT_THAT(binds("ch-run", mount).out,
              AllOf(StartsWith("--bind=" + mount + ":/srv\n"),
                    HasSubstr("--bind=" + mount + "/.heddle/ld.so.cache:/etc/ld.so.cache\n")));
  run_checked({staged_program("fs-mount"), "-u", mount});
}

/// A shell would start the engine with those that were printed before the failure.
TEST_F(Decide, prints_all_binds_or_none) {
  solver(world_.mpich(world_.in("/opt/a,b/libmpich.so.12"), "3.0"), kInit,
         {"-Xlinker", "-rpath", "-Xlinker", "/opt/a,b"});
  ASSERT_NE(bound_over(swap("/app/solver"), "/opt/a,b/libmpich.so.12"), "");
  const auto mount = world_.prefix() + "/mount";
  fs::create_directories(mount);
  const auto mounted = run({staged_program("fs-mount"), world_.map(), mount});
  if (mounted.status != 0) HEDDLE_SKIP("no FUSE: " + mounted.err);
  const auto binds = world_.fs_resolve({"explain", "--binds", "podman", mount});
  EXPECT_EQ(binds.status, 3);
  EXPECT_EQ(binds.out, "");
  run_checked({staged_program("fs-mount"), "-u", mount});
}

TEST_F(Decide, follows_links_inside_the_image) {
  usual();
  fs::rename(world_.in("/etc/ld.so.cache"), world_.in("/app/cache"));
  fs::create_symlink("../../../../../app/cache", world_.in("/etc/ld.so.cache"));
  fs::create_symlink("/app", world_.in("/link"));
  const auto decision = swap("/link/solver");
  EXPECT_EQ(decision["binds"].back()["target"], "/app/cache");
}

/// Minimal and distroless images have no cache, so there is no file to bind over.
TEST_F(Decide, gives_an_image_without_ld_so_cache_a_changed_ld_so) {
  usual();
  fs::remove(world_.in("/etc/ld.so.cache"));
  const auto decision = swap("/app/solver");
  EXPECT_EQ(bound_over(decision, "/lib/x86_64-linux-gnu/ld-real.so"), ".heddle/ld.so");
  EXPECT_THAT(world_.loads(decision), Contains("/dev/heddle/libmpich.so.12"));
  // The new path must fit in the place of /etc/ld.so.cache in ld.so.
  EXPECT_THAT(refusal("/app/solver", {"--at", "/dev/heddle-mpi"}),
              HasSubstr("/dev/heddle-mpi/.ldc"));
  EXPECT_EQ(world_.decide("/app/solver", {"--at", "/srv"})["outcome"], "swap");
  expect_as_real("/app/solver", world_.decide("/app/solver"));
}

/// As Alpine: the loader is the libc and reads no cache.
TEST_F(Decide, refuses_an_image_with_musl) {
  const auto musl = build_library({.output = world_.in("/lib/ld-musl-x86_64.so.1"),
                                   .source = "const char t[]=\"musl libc (x86_64)\";"
                                             "int puts(const char*x){return !x;}",
                                   .flags = {"-nostdlib", "-Wl,-soname,libc.musl-x86_64.so.1"}});
  build_program({.output = world_.in("/app/solver"),
                 .source = "int puts(const char*);void _start(void){puts(\"\");}",
                 .flags = {"-nostdlib", musl, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"}});
  host_mpi("4.0.2");
  EXPECT_THAT(refusal("/app/solver"), HasSubstr("ld-musl-x86_64.so.1"));
}

TEST_F(Decide, reports_a_damaged_image_as_an_error) {
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

}  // namespace
}  // namespace heddle::test
