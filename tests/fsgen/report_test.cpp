// SPDX-License-Identifier: MIT
// fs-gen's report: counters, reasons, hints and refused options.

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

class Report : public FsGenFixture {};

TEST_F(Report, probes_at_start_and_later_are_separate) {
  for (const bool opens : {false, true}) {
    const auto farm = ElfFarm::build(dir_ / (opens ? "opens" : "needs"),
                                     {.libraries = 12, .dlopen_roots = opens});
    const auto ours = gen({"--json", dir_ / "report.json", farm.program});
    EXPECT_EQ(ours.out, farm.output);
    EXPECT_EQ(report()["probes_with_start"], 0);
    EXPECT_EQ(report()["probes_with"] > 12, opens);
    EXPECT_EQ(ours.err.find("  later ") != ours.err.npos, opens) << ours.err;
  }
}

TEST_F(Report, processes_of_unmapped_programs_are_counted) {
  const auto ours = sh("$FS_GEN --json report.json /bin/sh -c '/bin/ls -d /; exec /bin/true'");
  EXPECT_EQ(ours.out, "/\n");
  EXPECT_EQ(report()["unguided_processes"], 2);
}

TEST_F(Report, unusable_staging_directory_is_named) {
  const auto ours = sh("$FS_GEN --stage /proc/none /bin/sh -c 'exit 4'");
  EXPECT_EQ(ours.status, 4);
  EXPECT_THAT(ours.err,
              HasSubstr("/proc/none: cannot use for staging: No such file or directory\n"));
  const auto second = sh("SLURM_PROCID=1 $FS_GEN --stage /proc/none /bin/sh -c 'exit 4'");
  EXPECT_EQ(second.status, 4);
  EXPECT_EQ(second.err, "") << "the first rank warns for all";
}

TEST_F(Report, slow_or_fast_directory_that_is_not_there_is_named) {
  EXPECT_EQ(sh("$FS_GEN -q --slow /no/such --slow tmp --fast=tmp/typo /bin/true").err,
            "fs-gen: warning: --slow /no/such: has no effect: No such file or directory\n"
            "fs-gen: warning: --fast tmp/typo: has no effect: No such file or directory\n");
  for (const char* elsewhere :
       {"HEDDLE_SLOW=/no/such $FS_GEN -q", "HEDDLE_FAST=/no/such $FS_GEN -q",
        "PMI_RANK=1 $FS_GEN -q --slow /no/such"})
    EXPECT_EQ(sh(std::string(elsewhere) + " /bin/true").err, "") << elsewhere;
}

TEST_F(Report, missing_staging_directory_is_made) {
  // A group may write to what is made with this umask, so that it could not be used.
  const auto ours = sh("umask 002; $FS_GEN -q --stage job/node /bin/sh -c 'exit 4'");
  EXPECT_EQ(ours.status, 4);
  EXPECT_EQ(ours.err, "");
  EXPECT_TRUE(fs::is_directory(dir_ / "job/node"));
}

/// A program that prints the answer of a plugin, which its library opens from a directory beside
/// itself.
void build_plugin_host(const std::string& directory) {
  build_library({.output = directory + "/lib/plugins/plug.so",
                 .source = "int answer(void){return 42;}",
                 .flags = {}});
  const auto host = build_library(
      {.output = directory + "/lib/libhost.so",
       .source =
           "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n#include <string.h>\n"
           "int host(void){Dl_info i; char p[4096]; dladdr((void*)host,&i);"
           "snprintf(p,sizeof p,\"%s\",i.dli_fname); *strrchr(p,'/')=0;"
           "strcat(p,\"/plugins/plug.so\"); void* h=dlopen(p,RTLD_NOW);"
           "return h?((int(*)(void))dlsym(h,\"answer\"))():0;}",
       .flags = {"-Wl,-soname,libhost.so"}});
  build_program({.output = directory + "/app",
                 .source = "#include <stdio.h>\nint host(void);"
                           "int main(void){printf(\"%d\\n\",host());return 0;}",
                 .flags = {host, "-Wl,-rpath," + directory + "/lib"}});
}

TEST_F(Report, library_that_looks_for_plugins_beside_itself_finds_them_or_needs_an_option) {
  build_plugin_host(dir_.path());
  const auto audited = sh("$FS_GEN --via private ./app");
  EXPECT_EQ(audited.out, "42\n");
  EXPECT_THAT(audited.err, Not(HasSubstr("beside itself")));
  EXPECT_THAT(sh("$FS_GEN --loader env ./app").err, HasSubstr("beside itself"));
  const auto helped = sh("$FS_GEN --loader env --plugins lib/plugins ./app");
  EXPECT_EQ(helped.out, "42\n");
  EXPECT_THAT(helped.err, Not(HasSubstr("beside itself")));
  const auto resolve = staged_program("fs-resolve");
  EXPECT_THAT(sh(resolve + " build -o map ./app").err, HasSubstr("imports dladdr"));
  EXPECT_THAT(sh(resolve + " build -o map --plugins lib/plugins ./app").err,
              Not(HasSubstr("imports dladdr")));
}

TEST_F(Report, only_the_first_rank_reports) {
  for (const char* variable :
       {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK",
        "JSM_NAMESPACE_RANK", "ALPS_APP_PE", "SLURM_PROCID"}) {
    const std::string set = std::string(variable) + "=";
    EXPECT_THAT(sh(set + "0 $FS_GEN /bin/true").err, HasSubstr("libraries")) << variable;
    const auto second = sh(set + "1 $FS_GEN --json report.json /bin/true; " + set +
                           "7 $FS_GEN --json 'j-%r%%' /bin/true");
    EXPECT_EQ(second.err, "") << variable;
    EXPECT_FALSE(fs::exists(dir_ / "report.json")) << variable;
    EXPECT_TRUE(fs::remove(dir_ / "j-7%")) << variable;
  }
}

TEST_F(Report, unguided_run_has_a_reason) {
  build_program({.output = dir_ / "static",
                 .source = "#include <stdio.h>\nint main(){puts(\"hi\");return 5;}",
                 .flags = {"-static-pie"}});
  const auto ours = sh("$FS_GEN --json report.json ./static");
  EXPECT_EQ(ours.out, "hi\n");
  EXPECT_EQ(ours.status, 5);
  EXPECT_EQ(report()["unguided_reason"], "static program");
  (void)sh("$FS_GEN --json report.json /lib64/ld-linux-x86-64.so.2 /bin/true");
  EXPECT_EQ(report()["unguided_reason"], "a library, not a program");
}

TEST_F(Report, conflicting_options_are_refused_before_app_runs) {
  ASSERT_EQ(sh(staged_program("fs-resolve") + " build -o map /bin/true").status, 0);
  for (const char* options :
       {"--map map --out other", "--map map --plugins tmp", "--via userns", "--serve some",
        "--loader ld", "--print-env --shell csh map tmp", "--loader env --via direct",
        "--budget 1G", "--stage tmp --budget much", "--stage tmp --via direct", "--compare 0",
        "--no-such-option"}) {
    const auto ours = sh(std::string("$FS_GEN ") + options + " /bin/echo ran");
    EXPECT_EQ(ours.status, 2) << options;
    EXPECT_EQ(ours.out, "") << options;
    EXPECT_THAT(ours.err, HasSubstr("hint: see fs-gen --help")) << options;
  }
  EXPECT_EQ(gen({}).status, 2);
  const auto plugins = sh("$FS_GEN --plugins no/such /bin/echo ran");
  EXPECT_EQ(plugins.status, 3);
  EXPECT_EQ(plugins.out, "");
}

TEST_F(Report, app_runs_with_an_unusable_tmpdir) {
  EXPECT_EQ(sh("TMPDIR=/no/such $FS_GEN --json report.json /bin/echo ran").out, "ran\n");
  EXPECT_EQ(report()["guided"], true);
  // By a bind mount: the programs themselves may be below /tmp.
  const auto ours =
      sh("cd / && unshare -m sh -c 'mount --bind $(dirname $(dirname $FS_GEN)) /mnt && "
         "mount -t tmpfs -o ro none /tmp && cd / && TMPDIR=/no/such "
         "XDG_CACHE_HOME=/no/such /mnt/bin/fs-gen /bin/echo ran'");
  EXPECT_EQ(ours.out, "ran\n") << ours.err;
  EXPECT_THAT(ours.err, HasSubstr("continuing without heddle"));
}

}  // namespace
}  // namespace heddle::test
