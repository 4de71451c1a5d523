// SPDX-License-Identifier: MIT
// fs-launch before the launchers of one machine: what their ranks, their users and the machine see.
#include <sys/wait.h>

#include "tests/launch/launch_fixture.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

struct Launcher {
  const char* name;
  Strings two;  ///< starts two ranks
};

class Launched : public LaunchFixture, public ::testing::WithParamInterface<Launcher> {
 protected:
  void SetUp() override {
    if (run({"sh", "-c", "command -v " + GetParam().two[0]}).status != 0)
      HEDDLE_SKIP(GetParam().two[0] + " is not installed");
    LaunchFixture::SetUp();
  }
  Strings two(const Strings& app) const { return GetParam().two + app; }
  /// One rank: of two, mpirun mixes the lines, and parts of them.
  Strings one(const Strings& app) const { return Strings{GetParam().two[0], "-n", "1"} + app; }
  /// Runs `app` without and with fs-launch and expects the same bytes.
  void expect_same(const Strings& app) const {
    const auto bare = run(one(app), options_), ours = launch(one(app));
    EXPECT_EQ(ours.status, bare.status);
    EXPECT_EQ(ours.out, bare.out);
    EXPECT_EQ(ours.err.size(), bare.err.size()) << ours.err << bare.err;
  }
};

TEST_P(Launched, ranks_are_guided_by_one_mount) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 30});
  const auto ours = launch(two({farm.program}), {"--report"});
  EXPECT_EQ(ours.status, 0) << ours.err;
  EXPECT_EQ(ours.out, farm.output + farm.output);
  EXPECT_THAT(ours.err, HasSubstr("fs-launch: 2 of 2 ranks guided on 1 node"));
  // While both are there the daemons of this TMPDIR are counted: a worker each, whose parent is
  // one.
  std::ofstream(dir_ / "rank.sh") << "echo $HEDDLE_INDEX; grep -c /.m/ /proc/$$/maps; >up.$$\n"
                                     "while [ ! -e go ]; do sleep 0.05; done\n";
  std::ofstream(dir_ / "count.sh")
      << "while [ $(ls | grep -c ^up) -lt 2 ]; do sleep 0.05; done\n"
         "for pid in $(pgrep -x fs-mount); do\n"
         "  grep -qz ^TMPDIR=$PWD/tmp$ /proc/$pid/environ || continue\n"
         "  cat /proc/$(ps -o ppid= $pid | tr -d ' ')/comm\n"
         "done | grep -cx fs-mount >daemons; >go\n";
  const auto maps =
      sh("sh count.sh & " + to_shell(launched(two({"sh", dir_ / "rank.sh"}))) + "; wait");
  const auto lines = lines_of(maps.out);
  ASSERT_EQ(lines.size(), 4U) << maps.out << maps.err;
  EXPECT_EQ(read_file(dir_ / "daemons").value_or(""), "1\n");
  std::map<std::string, int> count;
  for (const auto& line : lines) ++count[line];
  EXPECT_EQ(count.size(), 2U) << maps.out;  // the same index and number of mappings in each
  EXPECT_THAT(maps.out, HasSubstr(dir_ / "tmp/hd-"));
}

TEST_P(Launched, ranks_libraries_are_staged_or_the_report_says_why_not) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 3});
  const auto copies = dir_ / ("job/node/heddle-" + std::to_string(::geteuid()) + "/objects");
  // Until all are copied.
  std::ofstream(dir_ / "rank.sh") << "while [ $(ls \"$1\" | wc -l) -lt 4 ]; do sleep 0.05; done\n"
                                     "exec \"$2\"\n";
  const auto ours = launch(one({"timeout", "60", "sh", dir_ / "rank.sh", copies, farm.program}),
                           {"--report", "--stage", "job/node"});
  EXPECT_EQ(ours.out, farm.output) << ours.err;
  EXPECT_THAT(ours.err, HasSubstr("1 of 1 ranks guided"));
  EXPECT_THAT(ours.err, Not(HasSubstr("staging")));
  const auto nowhere = launch(one({farm.program}), {"--report", "--stage", "/proc/none/a"});
  EXPECT_EQ(nowhere.out, farm.output);
  EXPECT_THAT(nowhere.err, HasSubstr("1 of 1 ranks guided"));
  EXPECT_THAT(nowhere.err, HasSubstr("/proc/none/a: cannot use for staging"));
  const auto refused = launch(one({"true"}), {"--stage", "job/node", "--via=direct"});
  EXPECT_EQ(refused.status, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("fs-launch: --stage: not allowed with"));
}

TEST_P(Launched, options_that_an_image_would_ignore_are_refused) {
  for (const char* option : {"--map=m", "--stage=d", "--via=best", "--python=off", "--slow=/",
                             "--fast=/", "--tree=/usr", "--ship=no"}) {
    const auto refused = launch(one({"true"}), {option, "--image=none"});
    EXPECT_EQ(refused.status, 2) << refused.err;
    const std::string name(option, std::strchr(option, '=') - option);
    EXPECT_THAT(refused.err, HasSubstr(name + ": not allowed with --image,"));
  }
}

TEST_P(Launched, ranks_see_their_own_arguments_environment_and_input) {
  const auto show = compile("show", R"(#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int n, char** v) {
  for (int i = 0; i < n; ++i) printf("%d[", i), fwrite(v[i], 1, strlen(v[i]), stdout), puts("]");
  return 0;
})");
  expect_same({show, "a b", "", "line\nbreak", "*", "$HOME", "'\"\\", "--report", "\xff"});
  const Strings sum = {"sh", "-c", "\"$@\" | cksum", "sh", show};
  expect_same(sum + Strings{std::string(65536, 'x')});
  Strings many;
  while (many.size() < 8192) many.push_back("\t" + std::to_string(many.size()) + " \n");
  expect_same(sum + many);
  for (int i = 0; i < 10000; ++i)
    options_.env.push_back("VARIABLE_" + std::to_string(i) + "=" + std::to_string(i) + "\n=\t ");
  // What differs between two runs of a launcher is left out.
  std::ofstream(dir_ / "env.sh") << "env -0 | tr '\\0\\n' '\\n\\1' | grep -a ^VARIABLE_ | cksum\n";
  expect_same({"sh", dir_ / "env.sh"});
  const auto names = launch(two({"env"}));
  for (const auto& line : lines_of(names.out)) {
    EXPECT_FALSE(line.starts_with("HEDDLE_LAUNCH=") || line.starts_with("PRTE_MCA_") ||
                 line.starts_with("OMPI_MCA_orte_fork_agent="))
        << line;
  }
  options_.input = "some input\n";
  const auto reader = "[ ${PMI_RANK:-$OMPI_COMM_WORLD_RANK} != 0 ] || cat"s;
  EXPECT_EQ(launch(two({"sh", "-c", reader})).out, "some input\n");
}

TEST_P(Launched, exit_statuses_and_signals_are_the_launchers) {
  for (const std::string script : {"exit 0", "exit 7", "kill -SEGV $$", "exec /nonexistent"})
    EXPECT_EQ(launch(one({"sh", "-c", script})).status,
              run(one({"sh", "-c", script}), options_).status)
        << script;
  const auto missing = two({"./nonexistent"});
  EXPECT_EQ(launch(missing).status, run(missing, options_).status);
  for (const auto& words : {Strings{GetParam().two[0], "--foo-unknown", "true"}}) {
    const auto bare = run(words, options_), ours = launch(words);
    EXPECT_EQ(ours.status, bare.status);
    EXPECT_EQ(ours.out, bare.out);
    EXPECT_EQ(ours.err, bare.err);
  }
}

TEST_P(Launched, static_programs_run_and_are_counted) {
  const auto app = compile("static",
                           "#include <stdio.h>\n#include <unistd.h>\n"
                           "int main() { sleep(1); puts(\"static\"); }",
                           {"-static"});
  const auto ours = launch(two({app}), {"--report"});
  EXPECT_EQ(ours.out, "static\nstatic\n");
  EXPECT_THAT(ours.err, HasSubstr("fs-launch: 0 of 2 ranks guided"));
  // Open MPI's enter before their program, hydra's by its ld.so.
  EXPECT_THAT(ours.err,
              testing::ContainsRegex(GetParam().two[0] == "mpirun.openmpi"
                                         ? " 2 +0 .*  static program\n"
                                         : "2 ranks did not report .0-1.: static, setuid or "));
  const auto held = launch(two({app}), {"--hold", "--hold-limit", "1", "--on-tool-exit", "kill"});
  EXPECT_EQ(held.out, GetParam().two[0] == "mpirun.openmpi" ? "" : "static\nstatic\n");
  const auto none = launch({"true"}, {"--report"});
  EXPECT_THAT(none.err, HasSubstr("fs-launch: no rank reported"));
  std::ofstream(dir_ / "script") << "#!/bin/sh\necho $0 $1\n";
  fs::permissions(dir_ / "script", fs::perms(0755));
  const auto script = launch(two({dir_ / "script", "a b"}), {"--report"});
  EXPECT_EQ(script.out, (dir_ / "script") + " a b\n" + (dir_ / "script") + " a b\n");
  EXPECT_THAT(script.err, HasSubstr("2 of 2 ranks guided"));
}

TEST_P(Launched, setuid_programs_run_as_their_owner_and_are_counted) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root");
  const auto app = compile("setuid",
                           "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
                           "int main() { printf(\"%d %d\\n\", geteuid(), getenv(\"LD_AUDIT\") "
                           "!= NULL); }");
  ASSERT_EQ(::chown(app.c_str(), 65534, 65534), 0);
  ASSERT_EQ(::chmod(app.c_str(), 04755), 0);
  const auto mixed = launch(one({app, ":", "-n", "1", "git", "--version"}), {"--report"});
  EXPECT_EQ(mixed.status, 0);
  EXPECT_THAT(mixed.out, HasSubstr("65534 0\n"));
  EXPECT_THAT(mixed.err, HasSubstr("fs-launch: 1 of 2 ranks guided on 1 node"));
  EXPECT_THAT(mixed.err, HasSubstr(GetParam().two[0] == "mpirun.openmpi"
                                       ? "setuid program (1)"
                                       : "1 rank did not report (0): static, setuid or 32-bit"));
}

TEST_P(Launched, ranks_of_32_bits_run_beside_others) {
  const auto source =
      "#include <stdio.h>\nint main() { printf(\"%d\\n\", (int)sizeof(void*)); return 0; }";
  const auto wide = compile("wide", source), narrow = compile("narrow", source, {"-m32"});
  if (run({"/bin/sh", "-c", "exec \"$0\"", narrow}).out != "4\n")
    HEDDLE_SKIP("this kernel executes no programs of 32 bits");
  const auto mixed = launch(one({narrow, ":", "-n", "1", wide}), {"--report"});
  EXPECT_EQ(mixed.status, 0);
  auto lines = lines_of(mixed.out);
  std::ranges::sort(lines);
  EXPECT_EQ(lines, (Strings{"4", "8"}));
  EXPECT_THAT(mixed.err, HasSubstr("fs-launch: 1 of 2 ranks guided on 1 node"));
  EXPECT_THAT(mixed.err, HasSubstr(GetParam().two[0] == "mpirun.openmpi"
                                       ? "such as 32-bit (1)"
                                       : "1 rank did not report (0): static, setuid or 32-bit"));
}

TEST_P(Launched, ranks_without_fuse_a_temporary_directory_or_the_library_run) {
  const auto app = two({"git", "--version"});
  const auto bare = run(app, options_);
  const auto in_namespace = [&](const std::string& change) {
    return run(Strings{"unshare", "-m", "sh", "-c", change + " && exec \"$@\"", "sh"} +
                   launched(app, {"--report"}),
               options_);
  };
  const auto no_device = in_namespace("mount --bind /dev/null /dev/fuse");
  EXPECT_EQ(no_device.out, bare.out) << no_device.err;
  EXPECT_THAT(no_device.err, HasSubstr("mount namespace: "));
  // Open MPI itself needs a directory there.
  if (GetParam().two[0] == "mpiexec.hydra") {
    const auto full = in_namespace("mount -t tmpfs -o nr_inodes=1 none $TMPDIR");
    EXPECT_EQ(full.out, bare.out) << full.err;
    EXPECT_EQ(full.status, 0);
  }
  // ld.so says that the library is not there.
  const auto library = fs::path(fs_launch_).parent_path().parent_path() / "lib/heddle";
  const auto plan = launch(app, {"--dry-run"});
  const auto no_library =
      run(Strings{"unshare", "-m", "sh", "-c",
                  "mount -t tmpfs none " + library.string() + " && " + plan.out},
          options_);
  EXPECT_EQ(no_library.out, bare.out);
  EXPECT_EQ(no_library.status, 0);
}

TEST_P(Launched, killed_launchers_leave_nothing) {
  const auto reports = [&] {
    return run({"sh", "-c", "ls -d cache/heddle/launch-*"}, options_).out;
  };
  const std::pair<Strings, int> kills[] = {
      {{}, SIGKILL}, {{"--report"}, SIGTERM}, {{"--report"}, SIGINT}, {{"--report"}, SIGKILL}};
  for (const auto& [options, signal] : kills) {
    auto child = start_silently(
        "/usr/bin/env", Strings{"env"} + Strings{options_.env.begin(), options_.env.begin() + 6} +
                            launched(two({"sleep", "3"}), options));
    ASSERT_TRUE(wait_until(10s, [&] { return left().find("hd-") != std::string::npos; }));
    ::kill(child.pid(), signal);
    (void)child.wait();
    EXPECT_EQ(reports().empty(), options.empty() || signal != SIGKILL) << signal;
    EXPECT_TRUE(wait_until(10s, [&] { return left().empty(); })) << left();
  }
  // The last one's is removed by the next launch, but not that of one that runs.
  const auto killed = lines_of(reports()).at(0);
  run_checked({"touch", "-d", "-2 minutes", dir_ / killed});
  std::ofstream(dir_ / "rank.sh") << ">up; while [ ! -e go ]; do sleep 0.05; done\n";
  const auto both = sh(
      to_shell(launched(one({"sh", dir_ / "rank.sh"}), {"--report"})) +
      "& while [ ! -e up ]; do sleep 0.05; done; touch -d '-2 minutes' cache/heddle/launch-*; " +
      to_shell(launched({"true"}, {"--report"})) + "; ls -d cache/heddle/launch-* >now; >go; wait");
  EXPECT_THAT(both.err, HasSubstr("1 of 1 ranks guided"));
  EXPECT_EQ(lines_of(read_file(dir_ / "now").value_or("")).size(), 1U);
  EXPECT_EQ(reports(), "");
}

/// A shell sees 128 and the signal, or what the launcher makes of it.
TEST_P(Launched, signals_end_it_as_the_launcher) {
  for (const std::string signal : {"INT", "TERM", "HUP"}) {
    // SIGINT is ignored in what a shell without job control starts in the background.
    const auto status = [&](const Strings& command) {
      fs::remove(dir_ / "up");
      return sh("env --default-signal=INT " + to_shell(command) +
                " >out 2>&1 & while [ ! -e up ]; do sleep 0.05; done; kill -" + signal +
                " $!; wait $!; echo $?")
          .out;
    };
    const auto rank = one({"sh", "-c", ">up; exec sleep 20"});
    // hydra's own is 0 or the signal, by the moment.
    for (const auto& options : {Strings(), Strings{"--report"}})
      EXPECT_TRUE(wait_until(1min, [&] {
        const auto bare = status(rank);
        return status(launched(rank, options)) == bare;
      })) << signal;
    EXPECT_THAT(read_file(dir_ / "out").value_or(""), HasSubstr("1 of 1 ranks guided")) << signal;
  }
}

/// Logs the signals that it gets; SIGTERM ends it, a second later.
constexpr const char* kLogsSignals = R"(#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, 0);
  int log = open("log", O_CREAT | O_WRONLY | O_APPEND, 0600);
  FILE *up = fopen("up", "w");
  fprintf(up, "%d %d\n", getpgrp(), getpid());
  fclose(up);
  struct timespec limit = {30, 0};
  for (int got; (got = sigtimedwait(&all, 0, &limit)) > 0;) {
    if (got == SIGTERM) limit.tv_sec = 1;
    if (got != SIGCONT) dprintf(log, "%d\n", got);
  }
})";

/// By the launcher, to the process that it has started, and to the group that this leads.
TEST_P(Launched, signals_of_a_collected_rank_arrive_once) {
  if (staged_program("fs-job").empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
  options_.env.insert(options_.env.end(),
                      {"HEDDLE_JOB_TO=" + dir_.path(), "HEDDLE_JOB_SPOOL=" + dir_ / "spool"});
  const auto app = compile("app", kLogsSignals);
  const auto got = [&](const Strings& command) {
    return sh("rm -f up log; sent() { for i in $(seq 200); do grep -qx $1 log && return; sleep "
              "0.05; done; }; " +
              to_shell(command) +
              " >/dev/null & while [ ! -s up ]; do sleep 0.05; done; read group rank <up; "
              "kill -USR1 $(pgrep -P $! -x '" +
              fs::path(GetParam().two[0]).filename().string().substr(0, 15) +
              "' || echo $!); sent 10; for n in USR2 ALRM QUIT; do kill -$n -- -$group; sent "
              "$(kill "
              "-l $n); done; for n in INT HUP WINCH; do kill -$n $group; sent $(kill -l $n); done; "
              "kill -TERM -- -$group; wait; cat log")
        .out;
  };
  const auto bare = got(one({app}));
  EXPECT_EQ(bare, "10\n12\n14\n3\n2\n1\n28\n15\n");
  EXPECT_EQ(got(launched(one({app}), {"--job", "-q"})), bare);
}

/// For want of a library, or as they are for another machine.
TEST_P(Launched, programs_that_cannot_start_fail_as_without) {
  build_library({.output = dir_ / "libgone.so", .source = "int gone() { return 1; }"});
  const auto app = compile("app", "int gone(); int main() { return gone(); }",
                           {dir_ / "libgone.so", "-Wl,-rpath," + dir_.path()});
  fs::remove(dir_ / "libgone.so");
  auto foreign = read_file("/bin/true").value_or("");
  foreign.at(18) = '\x16';  // e_machine: IBM S/390
  std::ofstream(dir_ / "foreign") << foreign;
  fs::permissions(dir_ / "foreign", fs::perms(0755));
  for (const auto& program : {app, dir_ / "foreign"}) {
    // env(1), by which mpirun starts its ranks then, has a shell read what the kernel refuses.
    if (program != app && GetParam().two[0] == "mpirun.openmpi") continue;
    const auto bare = run(one({program}), options_), ours = launch(one({program}), {"--report"});
    EXPECT_NE(bare.status, 0);
    EXPECT_EQ(ours.status, bare.status) << program;
    EXPECT_EQ(ours.out, bare.out);
    // Each line of ld.so and the launcher but for those with a pid.
    for (const auto& line : lines_of(bare.err))
      if (line.find("PID") == line.npos && line.find(program) != line.npos) {
        EXPECT_THAT(ours.err, HasSubstr(line));
      }
  }
}

TEST_P(Launched, users_preloads_and_auditors_work_in_ranks) {
  const auto app = compile("app", R"(#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main() {
  int (*extra)() = (int (*)())dlsym(RTLD_DEFAULT, "extra");
  printf("%d %s\n", extra ? extra() : 0, getenv("LD_PRELOAD"));
})");
  const auto preload =
      build_library({.output = dir_ / "preload.so", .source = "int extra() { return 7; }"});
  const auto audit = build_library({.output = dir_ / "audit.so", .source = R"(#include <fcntl.h>
#include <stdlib.h>
unsigned la_version(unsigned version) {
  if (getenv("PMI_RANK") || getenv("OMPI_COMM_WORLD_RANK")) open("audited", O_CREAT, 0600);
  return version;
})"});
  options_.env.back() = "LD_AUDIT=" + audit;
  options_.env.push_back("LD_PRELOAD=" + preload);
  const auto ours = launch(one({app}), {"--report"});
  EXPECT_EQ(ours.out, "7 " + preload + "\n") << ours.err;
  EXPECT_THAT(ours.err, HasSubstr("1 of 1 ranks guided"));
  EXPECT_TRUE(fs::exists(dir_ / "audited"));
}

TEST_P(Launched, auditor_of_the_launchers_line_is_extended_or_named) {
  const auto audit = build_library({.output = dir_ / "user-audit.so",
                                    .source = "unsigned la_version(unsigned v) { return v; }"});
  const bool is_open_mpi = GetParam().two[0] == "mpirun.openmpi";
  const auto option =
      is_open_mpi ? Strings{"-x", "LD_AUDIT=" + audit} : Strings{"-genv", "LD_AUDIT", audit};
  const auto ours =
      launch(Strings{GetParam().two[0]} + option +
             Strings{"-n", "1", "sh", "-c", "grep -o '[a-z-]*audit.so' /proc/$$/maps | sort -u"});
  EXPECT_EQ(ours.out, is_open_mpi ? "libheddle-audit.so\nuser-audit.so\n" : "user-audit.so\n");
  if (is_open_mpi)
    EXPECT_EQ(ours.err, "");
  else
    EXPECT_THAT(ours.err, HasSubstr("-genv LD_AUDIT: replaces heddle's audit library: ranks run"));
  EXPECT_THAT(launch({"srun", "--export=ALL,LD_AUDIT=/a.so", "true"}, {"--dry-run"}).err,
              HasSubstr("--export=LD_AUDIT: replaces"));
  EXPECT_EQ(launch({"srun", "--export=ALL,MY_LD_AUDIT=/a.so", "true"}, {"--dry-run"}).err, "");
}

TEST_P(Launched, ranks_with_few_descriptors_are_guided) {
  for (const char* via : {"best", "direct"}) {
    const auto done = sh("ulimit -n 200; exec " +
                         to_shell(launched(two({"git", "--version"}), {"--report", "--via", via})));
    EXPECT_THAT(done.err, HasSubstr("2 of 2 ranks guided"));
  }
}

/// Files cannot grow, and threads have a small stack by default. mpirun needs a larger one itself.
TEST_P(Launched, ranks_with_small_limits_run_as_without) {
  const auto run_with = [&](const std::string& limit, const Strings& command) {
    return sh("export HEDDLE_JOB_TO=$PWD HEDDLE_JOB_SPOOL=$PWD/spool; (" + limit + "; " +
              to_shell(command) +
              "; echo $?) 2>&1 | cat >out; rm -rf spool; tail -1 out; grep -c ran$ out")
        .out;
  };
  for (const char* limit : {"ulimit -f 0", "ulimit -f 1", "ulimit -s 128"}) {
    const auto bare = run_with(limit, one({"echo", "ran"}));
    for (const Strings& options : {Strings{}, {"--report"}, {"--job"}})
      EXPECT_EQ(run_with(limit, launched(one({"echo", "ran"}), options)), bare)
          << limit << testing::PrintToString(options) << sh("cat out").out;
  }
}

TEST_P(Launched, launches_within_launches_work) {
  // mpirun does not start within mpirun.
  const auto nested =
      launch(two(Strings{fs_launch_, "mpiexec.hydra", "-n", "2", "echo", "inner"}), {"--report"});
  EXPECT_EQ(nested.out, "inner\ninner\ninner\ninner\n") << nested.err;
  const auto twice = launch(launched(two({"git", "--version"}), {"--report"}));
  EXPECT_THAT(twice.err, HasSubstr("2 of 2 ranks guided"));
  const auto git = run(two({"git", "--version"}), options_);
  // What the outer one was given holds, too.
  const auto map = dir_ / "git.map";
  run_checked({staged_program("fs-resolve"), "build", "-o", map, "/usr/bin/git"});
  const auto outer = launch(launched(two({"git", "--version"})), {"--report", "--map", map});
  EXPECT_THAT(outer.err, HasSubstr("2 of 2 ranks guided"));
  const auto both =
      launch(launched(two({"sh", "-c", "true"}), {"--report"}), {"--report", "--map", map});
  EXPECT_THAT(both.err, HasSubstr("--report: the fs-launch around this one writes it"));
  EXPECT_THAT(both.err, HasSubstr("0 of 2 ranks guided"));
  EXPECT_THAT(both.err, HasSubstr("not in the map"));
  const auto image = launch(launched(two({"true"}), {"--image", "/", "--dry-run"}), {"--map", map});
  EXPECT_THAT(image.err, HasSubstr("the image replaces --map"));
  // A rank that is fs-gen itself, which is static.
  const auto gen = launch(two({staged_program("fs-gen"), "-q", "git", "--version"}), {"--report"});
  EXPECT_EQ(gen.out, git.out) << gen.err;
  EXPECT_THAT(gen.err, Not(HasSubstr("no answer")));
  // A batch script of Slurm has a rank.
  options_.env.push_back("SLURM_PROCID=0");
  EXPECT_THAT(launch(two({"git", "--version"}), {"--report"}).err,
              HasSubstr("2 of 2 ranks guided"));
}

INSTANTIATE_TEST_SUITE_P(, Launched,
                         ::testing::Values(Launcher{"open_mpi", {"mpirun.openmpi", "-n", "2"}},
                                           Launcher{"hydra", {"mpiexec.hydra", "-n", "2"}}),
                         [](const auto& each) { return std::string(each.param.name); });

class FsLaunch : public LaunchFixture {};

/// As CTI_LAUNCHER_WRAPPER has it: fs-launch and its options in a variable before a launcher's
/// line.
TEST_F(FsLaunch, is_a_prefix_that_changes_no_word_of_the_launchers_line) {
  std::ofstream(dir_ / "launcher") << "#!/bin/sh\nprintf '[%s]' \"$@\"; exit 5\n";
  fs::permissions(dir_ / "launcher", fs::perms(0755));
  const auto line =
      " ./launcher -n 4 --map x --report -q '' 'a  b' '*' '$HOME' -- ./app : --slow -- y"s;
  const auto bare = sh(line), ours = sh("W=\"$FS_LAUNCH --slow / --via direct\"; $W" + line);
  EXPECT_EQ(ours.status, 5);
  EXPECT_EQ(ours.out, bare.out);
  EXPECT_EQ(ours.err, bare.err);
}

TEST_F(FsLaunch, program_that_mpirun_finds_elsewhere_is_the_one_that_runs) {
  fs::create_directory(dir_ / "bin");
  fs::copy_file("/bin/echo", dir_ / "bin/id");
  const auto done = launch({"mpirun.openmpi", "--path", dir_ / "bin", "-n", "1", "id", "ran"});
  EXPECT_EQ(done.out, "ran\n");
  EXPECT_THAT(done.err, HasSubstr("mpirun --path"));
}

TEST_F(FsLaunch, launcher_starts_without_a_working_directory) {
  for (const char* options : {"--job", "--map a", ""}) {
    const auto done =
        sh("mkdir gone; cd gone; rmdir ../gone; $FS_LAUNCH "s + options + " /bin/echo ran");
    EXPECT_THAT(done.out, HasSubstr("ran\n")) << done.err;
  }
}

TEST_F(FsLaunch, signals_to_the_group_of_a_launcher_below_it_arrive_once) {
  const auto app = compile("app", kLogsSignals);
  for (const char* option : {"--report", "--hold"}) {
    const auto got =
        sh("rm -f up log; sent() { for i in $(seq 200); do grep -qx $1 log && return; "
           "sleep 0.05; done; }; setsid $FS_LAUNCH -q " +
           std::string(option) + " " + app +
           " >/dev/null 2>&1 & while [ ! -s up ]; do sleep 0.05; done; read group "
           "rank <up; for n in USR2 ALRM INT; do kill -$n -- -$group; sent $(kill -l "
           "$n); done; for n in INT USR2; do kill -$n $group; sleep 0.5; done; kill "
           "-TERM -- -$group; wait; cat log");
    EXPECT_EQ(got.out, "12\n14\n2\n2\n12\n15\n") << option << got.err;
  }
}

TEST_F(FsLaunch, options_without_what_they_need_are_refused_or_named) {
  for (const auto& options :
       {Strings{"--backend", "bare"}, {"--source", "/etc/profile"}, {"--ship", "sbcast"}})
    EXPECT_EQ(launch({"true"}, options).status, 2) << options[0];
  for (const char* option : {"--tree", "--python"})
    EXPECT_THAT(launch({"true"}, {option, "/no/such"}).err, HasSubstr("this node has no such"));
  EXPECT_THAT(launch({"true"}, {"--image", "/", "--source", "/no/such", "--dry-run"}).err,
              HasSubstr("--source: cannot be read on this node"));
  const auto map = dir_ / "true.map";
  run_checked({staged_program("fs-resolve"), "build", "-o", map, "/bin/true"});
  EXPECT_THAT(launch({"true"}, {"--map", map, "--ship", "sbcast", "--dry-run"}).err,
              HasSubstr("--ship: is no bundle: the nodes read it where it is"));
  EXPECT_EQ(launch({"true"}, {"--map", map, "--ship", "no", "--dry-run"}).err, "");
  EXPECT_THAT(launch({"srun", "--export=NONE", "true"}, {"--dry-run"}).err,
              HasSubstr("--export=NONE: keeps heddle's variables from the ranks"));
  EXPECT_EQ(launch({"srun", "--export=HOME,all", "true", "--export=NONE"}, {"--dry-run"}).err, "");
  options_.env.push_back("SLURM_EXPORT_ENV=HOME");
  EXPECT_THAT(launch({"srun", "true"}, {"--dry-run"}).err, HasSubstr("--export=HOME: keeps"));
  options_.env.push_back("HEDDLE=off");
  EXPECT_THAT(launch({"true"}, {"--report"}).err, HasSubstr("HEDDLE=off: nothing is reported"));
  EXPECT_EQ(launch({"true"}, {"--report", "-q"}).err, "");
}

TEST_F(FsLaunch, report_names_a_damaged_bundle) {
  const auto resolve = staged_program("fs-resolve");
  const auto map = dir_ / "git.map", bundle = dir_ / "git.bundle";
  run_checked({resolve, "build", "-o", map, "/usr/bin/git"});
  run_checked({resolve, "pack", map, "-o", bundle});
  const auto report = [&] {
    return launch({"mpiexec.hydra", "-n", "2", "git", "--version"}, {"--report", "--map", bundle});
  };
  EXPECT_THAT(report().err, Not(HasSubstr("hash")));
  run_checked({"dd", "if=/dev/urandom", "of=" + bundle, "bs=1000", "seek=1", "count=20",
               "conv=notrunc", "status=none"});
  const auto damaged = report();
  EXPECT_EQ(damaged.status, 0) << damaged.err;
  EXPECT_THAT(damaged.err, HasSubstr("is damaged or has changed: frame 0 has another hash"));
}

TEST_F(FsLaunch, ranks_within_another_launchers_rank_are_all_counted) {
  options_.env.push_back("OMPI_COMM_WORLD_RANK=0");
  EXPECT_THAT(launch({"mpiexec.hydra", "-n", "3", "git", "--version"}, {"--report"}).err,
              HasSubstr("3 of 3 ranks guided"));
}

TEST_F(FsLaunch, heddle_off_turns_everything_off) {
  options_.env.push_back("HEDDLE=off");
  const auto off = launch({"env"});
  EXPECT_THAT(off.out, Not(AllOf(HasSubstr("LD_AUDIT="))));
  EXPECT_THAT(off.out, Not(HasSubstr("HEDDLE_LAUNCH=")));
  EXPECT_THAT(off.out, Not(HasSubstr("orte_fork_agent")));
}

TEST_F(FsLaunch, dry_run_starts_nothing) {
  const auto plan = launch({"touch", dir_ / "started"}, {"--dry-run"});
  EXPECT_EQ(plan.status, 0);
  EXPECT_THAT(plan.out, HasSubstr("HEDDLE_LAUNCH=" + fs_launch_));
  EXPECT_FALSE(fs::exists(dir_ / "started"));
  const auto gone = launch({"no-such-launcher"}, {"--dry-run"});
  EXPECT_EQ(gone.status, 127);
  EXPECT_THAT(gone.err, HasSubstr("no-such-launcher"));
}

TEST_F(FsLaunch, dry_run_prints_what_a_shell_runs) {
  const Strings odd = {"printf", "[%s]", "a b",    "x\ny'",      "",     "*",        "it's",
                       "a\\b",   "A=b",  "\x1b[m", "\xc2\x85\\", "\xff", "\xc3\xa4", "$HOME `x` !"};
  const auto bare = run(odd, options_);
  for (const bool is_off : {false, true}) {
    if (is_off) options_.env.push_back("HEDDLE=off");
    const auto plan = launch(odd, {"--dry-run"});
    EXPECT_EQ(sh(plan.out).out, bare.out);
    for (const char* control : {"\x1b", "\xc2\x85", "\xff"})
      EXPECT_EQ(plan.out.find(control), std::string::npos);
  }
  options_.env.pop_back();
  std::ofstream(dir_ / "A=b") << "#!/bin/sh\necho $HEDDLE_LAUNCH\n";
  fs::permissions(dir_ / "A=b", fs::perms(0755));
  options_.env.push_back("PATH=" + dir_.path() + ":" + std::getenv("PATH"));
  EXPECT_THAT(sh(launch({"A=b"}, {"--dry-run"}).out).out, HasSubstr(fs_launch_));
}

TEST_F(FsLaunch, job_with_a_useless_map_runs_as_without) {
  options_.env.push_back("XDG_CONFIG_HOME=" + dir_ / "config");
  ASSERT_EQ(launch({"create", "p", "--env", "A=1", "--env", "PATH=/none", "--map", "/none.map"},
                   {"profile"})
                .status,
            0);
  const auto plain =
      launch({"sh", "-c", "echo \"<$A $PATH>\""}, {"--profile", "p", "--report", "-q"});
  EXPECT_EQ(plain.out, "<1 /none>\n");
  EXPECT_THAT(plain.err, HasSubstr("/none.map: cannot open"));
  EXPECT_EQ(sh("ls cache/heddle | grep ^launch-").out, "");
  const auto job = launch({"true"}, {"--map", "/none.map", "--job"});
  EXPECT_THAT(job.err, HasSubstr("is not collected"));
}

/// From one shell, without a scheduler.
TEST_F(FsLaunch, each_job_has_a_name_and_the_same_last_line) {
  if (staged_program("fs-job").empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "PBS_JOB_ID"})
    options_.env.emplace_back(name);
  options_.env.push_back("HEDDLE_JOB_SPOOL=" + dir_ / "spool");
  options_.env.emplace_back("HEDDLE_JOB_TO=./jobs/.");
  fs::create_directory(dir_ / "jobs");
  const auto ran = sh("for i in 1 2; do $FS_LAUNCH --job mpiexec.hydra -n 1 true; done");
  const auto lines = lines_of(ran.err);
  ASSERT_EQ(lines.size(), 2U) << ran.err;
  EXPECT_NE(lines[0], lines[1]);
  for (const auto& line : lines)
    EXPECT_THAT(
        line, testing::MatchesRegex(
                  "fs-launch: job launch-[0-9-]+: an archive of each node is in " + dir_ / "jobs"));
  EXPECT_EQ(sh("ls jobs | wc -l").out, "2\n");
}

TEST_F(FsLaunch, odd_options_of_a_hold_are_refused) {
  const auto status = [&](const Strings& options) { return launch({"true"}, options).status; };
  for (const char* id : {"../up", "a/b", "..", "a b", "a\nb", ".hidden"})
    EXPECT_EQ(status({"--hold", "--hold-id", id}), 3) << id;
  EXPECT_EQ(status({"--hold-id", "id"}), 2);
  EXPECT_EQ(status({"--tool", "1"}), 2);
  EXPECT_EQ(status({"--hold-limit", "9"}), 2);
  fs::create_directories(dir_ / "cache/heddle/hold/taken");
  EXPECT_THAT(launch({"true"}, {"--hold", "--hold-id", "taken"}).err,
              HasSubstr("taken: is the ID of another hold"));
  EXPECT_EQ(sh("ls cache/heddle/hold").out, "taken\n");
}

TEST_F(FsLaunch, holds_whose_launch_was_killed_are_removed_after_ten_minutes) {
  const auto holds =
      sh("mkdir -m 700 -p cache/heddle/hold && cd cache/heddle/hold && mkdir lives killed begun "
         "late && "
         "touch lives/alive && touch -d -20minutes killed/alive begun && touch -d -5minutes "
         "late/alive "
         "&& $FS_LAUNCH --hold --hold-id killed true && echo *");
  EXPECT_EQ(holds.out, "late lives\n") << holds.err;
}

/// As a launcher does that is interrupted.
TEST_P(Launched, archive_of_a_job_whose_agents_are_killed_is_written) {
  if (staged_program("fs-job").empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
  fs::create_directory(dir_ / "jobs");
  options_.env.insert(options_.env.end(),
                      {"HEDDLE_JOB_TO=" + dir_ / "jobs", "HEDDLE_JOB_SPOOL=" + dir_ / "spool"});
  // The agents are killed for certain here.
  const auto rank = Strings{"sh", "-c", "echo $PPID >up.$$; exec sleep 60"};
  const auto ours =
      sh(to_shell(launched(two(rank), {"--job"})) +
         " >/dev/null & while [ $(cat up.* 2>/dev/null | wc -l) -lt 2 ]; do sleep 0.05; done; "
         "kill -KILL $(cat up.*); wait; ls jobs | wc -l; find spool -name job.json; "
         "tar -xOf jobs/*.tar.gz --wildcards '*job*.json' | grep -c '\"left\"'");
  EXPECT_EQ(ours.out, "1\n1\n") << ours.err;
}

TEST_F(FsLaunch, job_without_a_home_is_guided_and_reported) {
  std::ofstream(dir_ / "file") << "";
  for (const auto& home :
       {"HOME=" + dir_ / "file", std::string("HOME=/proc"), std::string("HOME")}) {
    options_.env.at(1) = "XDG_CACHE_HOME";
    options_.env.push_back(home);
    const auto ran =
        launch({"mpiexec.hydra", "-n", "1", "sh", "-c", "test -s \"$HEDDLE_INDEX\""}, {"--report"});
    EXPECT_EQ(ran.status, 0) << home;
    EXPECT_THAT(ran.err, HasSubstr("1 of 1 ranks guided")) << home;
    EXPECT_THAT(ran.err, HasSubstr("only ranks of this node report")) << home;
  }
  for (const Strings& needs : {Strings{"session", "create", "--local"}, {"--hold", "true"}}) {
    const auto ran = run(Strings{fs_launch_} + needs, options_);
    EXPECT_EQ(ran.status, 3) << to_shell(needs);
    EXPECT_THAT(ran.err, HasSubstr("no cache directory: XDG_CACHE_HOME and HOME name none"));
  }
}

TEST_F(FsLaunch, map_of_a_profile_is_not_for_its_image) {
  options_.env.push_back("XDG_CONFIG_HOME=" + dir_ / "config");
  ASSERT_EQ(launch({"create", "p", "--map", "/profile.map", "--image", "/"}, {"profile"}).status,
            0);
  const auto plan = launch({"true"}, {"--profile", "p", "--dry-run"});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, Not(HasSubstr("profile.map")));
  const auto refused = launch({"true"}, {"--profile", "p", "--via=best", "--dry-run"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--via: not allowed with the profile's image"));
}

/// Result: fs-launch of an installation in `directory`.
std::string install_in(const std::string& directory) {
  for (const std::string file : {"bin/fs-launch", "bin/fs-mount", "lib/heddle/libheddle-audit.so",
                                 "libexec/heddle/elf-worker"}) {
    const auto at = fs::path(directory) / file;
    fs::create_directories(at.parent_path());
    fs::copy_file(staged_program(at.filename()), at);
  }
  return directory + "/bin/fs-launch";
}

TEST_F(FsLaunch, path_that_LD_AUDIT_cannot_name_leaves_the_job_unguided) {
  for (const std::string name : {"a:b", "a$b"}) {
    fs_launch_ = install_in(dir_ / name);
    const auto done = launch({"mpirun.openmpi", "-n", "2", "echo", "ran"});
    EXPECT_EQ(done.out, "ran\nran\n");
    EXPECT_THAT(done.err, HasSubstr("the job runs without heddle"));
    EXPECT_THAT(done.err, Not(HasSubstr("ld.so")));
  }
}

TEST_F(FsLaunch, path_with_spaces_goes_by_a_link) {
  fs_launch_ = install_in(dir_ / "a b");
  const auto ours = launch({"mpirun.openmpi", "-n", "2", "git", "--version"}, {"--report"});
  EXPECT_THAT(ours.err, HasSubstr("2 of 2 ranks guided"));
  const auto link = dir_ / "cache/heddle/launch";
  EXPECT_EQ(fs::status(link).permissions(), fs::perms(0700));
  // The cache has such a path, too.
  options_.env.push_back("XDG_CACHE_HOME=" + dir_ / "the cache");
  const auto here = launch({"mpiexec.hydra", "-n", "2", "git", "--version"}, {"--report"});
  EXPECT_THAT(here.err, HasSubstr("2 of 2 ranks guided"));
  EXPECT_THAT(here.err, HasSubstr("ranks on other nodes run unguided"));
}

TEST_F(FsLaunch, what_ranks_load_by_dlopen_is_known_to_the_next_launch) {
  const auto farm = ElfFarm::build(dir_ / "farm",
                                   {.libraries = 5, .tag = FarmTag::runpath, .dlopen_roots = true});
  run_checked({"sleep", "2.1"});  // younger files are not cached
  options_.env.emplace_back("LD_DEBUG=libs");
  std::vector<std::ptrdiff_t> tried;
  for (int launches = 0; launches < 2; ++launches) {
    const auto done = launch({"mpiexec.hydra", "-n", "2", farm.program});
    EXPECT_EQ(done.out, farm.output + farm.output);
    tried.push_back(std::ranges::count_if(lines_of(done.err), [](const auto& line) {
      return line.find("trying file=") != line.npos && line.find("/farm/lib/") != line.npos;
    }));
  }
  EXPECT_GT(tried[0], 0);
  EXPECT_EQ(tried[1], 0);
}

TEST_F(FsLaunch, missing_map_or_launcher_is_one_line) {
  run_checked({"mkfifo", dir_ / "fifo"});
  for (const auto& path : {std::string("/nonexistent"), dir_ / "fifo", std::string("/dev/zero")}) {
    const auto map =
        run(Strings{"timeout", "20"} + launched({"echo", "ran"}, {"--map", path}), options_);
    EXPECT_EQ(map.out, "ran\n") << path;
    EXPECT_THAT(map.err, HasSubstr(path + ": "));
    EXPECT_EQ(lines_of(map.err).size(), 1U) << map.err;
    const auto plan =
        run(Strings{"timeout", "20"} + launched({"echo"}, {"--dry-run", "--map", path}), options_);
    EXPECT_EQ(plan.status, 0) << path;
  }
  const auto launcher = launch({"no-such-launcher"});
  EXPECT_EQ(launcher.status, 127);
  EXPECT_THAT(launcher.err, HasSubstr("no-such-launcher"));
  EXPECT_EQ(launch({}).status, 2);
}

}  // namespace
}  // namespace heddle::test
