// SPDX-License-Identifier: MIT
// Versions and symbols decide whether the host's or the container's system libraries and glibc are
// taken.

#include "tests/policy/decide_fixture.hpp"

namespace heddle::test {
namespace {

TEST_F(Decide, takes_the_system_library_with_more_versions) {
  const auto make = [&](const std::string& output, const std::string& versions) {
    return versioned(output, "int sys(void){return 0;}", versions);
  };
  theirs_ = world_.mpich(world_.in(kImageLib) + "libmpi.so.12", "3.0");
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
  // A library that the container lacks comes from the host.
  fs::remove(world_.in(kImageLib) + "libsys.so.1");
  world_.run_ldconfig();
  const auto decision = world_.decide("/app/solver");
  EXPECT_EQ(world_.verdict(decision, "libsys.so.1")["rule"], "only-host");
  expect_as_real("/app/solver", decision);
}

TEST_F(Decide, compares_unversioned_libraries_by_symbols) {
  const std::string one = "int u1(void){return 0;}";
  const std::string two = one + "int u2(void){return 0;}";
  theirs_ = world_.mpich(world_.in(kImageLib) + "libmpi.so.12", "3.0");
  const auto host_with = [&](const std::string& source) {
    const auto lib = library(world_.prefix() + "/lib/libu.so.1", source);
    host_mpi("4.0.2", "int u1(void);int uses(void){return u1();}",
             {lib, "-Wl,-rpath," + world_.prefix() + "/lib"});
  };
  const auto container = world_.in(kImageLib) + "libu.so.1";
  library(container, one);
  world_.program("/app/solver", kInit, theirs_);
  host_with(two);
  world_.run_ldconfig();
  EXPECT_EQ(world_.verdict(world_.decide("/app/solver"), "libu.so.1")["taken"], "host");
  library(container, two);
  host_with(one);
  EXPECT_EQ(world_.verdict(world_.decide("/app/solver"), "libu.so.1")["taken"], "container");
  // Neither contains the other, and the program needs what the host's lacks.
  library(container, "int u3(void){return 0;}");
  host_with(one);
  world_.program("/app/greedy", "extern int u3(void); u3();" + std::string(kInit), theirs_,
                 {container});
  EXPECT_THAT(refusal("/app/greedy"), AllOf(HasSubstr("u1"), HasSubstr("u3")));
}

/// The image's fake libc is older than the host's libraries need and has a version that the host's
/// lacks, so neither can replace the other.
TEST_F(Decide, refuses_incomparable_glibcs_with_both_versions) {
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
  EXPECT_THAT(reason, AllOf(HasSubstr("2.31"), HasSubstr("libc.so.6")));
  EXPECT_THAT(reason, HasSubstr("2." + std::to_string(__GLIBC_MINOR__)));
}

}  // namespace
}  // namespace heddle::test
