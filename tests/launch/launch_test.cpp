// SPDX-License-Identifier: MIT
// fs-launch before the launchers of one machine: what their ranks, their users and the machine see.

#include "tests/jobs/archive_text.hpp"
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
  write_text_file(dir_ / "script", "#!/bin/sh\necho $0 $1\n", 0755);
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

TEST_P(Launched, job_that_cannot_be_written_is_said_once) {
  if (staged_program("fs-job").empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
  write_text_file(dir_ / "file", "");
  options_.env.insert(options_.env.end(),
                      {"HEDDLE_JOB_TO=" + dir_ / "file", "HEDDLE_JOB_SPOOL=" + dir_ / "spool"});
  const auto got = run(launched(two({"/bin/true"}), {"--job"}), options_);
  EXPECT_EQ(got.status, 0);
  EXPECT_EQ(std::ranges::count_if(lines_of(got.err),
                                  [](const std::string& line) {
                                    return line.find("cannot write the job's archive") != line.npos;
                                  }),
            1)
      << got.err;
}

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
  write_text_file(dir_ / "foreign", foreign, 0755);
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
  EXPECT_THAT(both.err,
              HasSubstr("0 of 2 ranks guided (of 2 only mapped programs that they start, if any)"));
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

TEST_P(Launched, map_that_is_out_of_date_is_told_once) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 3});
  const auto map = dir_ / "app.map";
  run_checked({staged_program("fs-resolve"), "build", "-o", map, farm.program});
  std::ofstream(farm.program, std::ios::app) << "x";
  const auto told = launch(two({farm.program}), {"--map", map});
  EXPECT_EQ(told.status, 0);
  EXPECT_EQ(told.out, farm.output + farm.output);
  EXPECT_EQ(lines_of(told.err).size(), 2U) << told.err;
  EXPECT_THAT(told.err, HasSubstr("app.map is out of date"));
  EXPECT_THAT(told.err, HasSubstr(": ranks run unguided\nhint: "));
  EXPECT_EQ(launch(two({farm.program}), {"-q", "--map", map}).err, "");
  const auto reported = launch(two({farm.program}), {"--report", "--map", map});
  EXPECT_THAT(reported.err, Not(HasSubstr("warning")));
}

TEST_P(Launched, job_does_not_count_what_heddle_does_to_start_a_rank) {
  if (staged_program("fs-job").empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 200});
  options_.env.insert(options_.env.end(),
                      {"HEDDLE_JOB_TO=" + dir_ / "jobs", "HEDDLE_JOB_SPOOL=" + dir_ / "spool"});
  // The first launch resolves, the second finds all in the cache.
  std::vector<JobRow> ranks;
  for (int i = 0; i < 2; ++i) {
    fs::remove_all(dir_ / "jobs");
    fs::create_directory(dir_ / "jobs");
    const auto ours = launch(one({farm.program}), {"--job"});
    ASSERT_EQ(ours.status, 0) << ours.err;
    const auto job = read_job(lines_of(sh("ls -d $PWD/jobs/*").out).at(0));
    ASSERT_EQ(job.rows.size(), 1U);
    ranks.push_back(job.rows[0]);
    EXPECT_EQ(ranks[i]["generation"], "0");
    // ld.so reads the head of each library, and that is the rank's.
    EXPECT_GE(ranks[i].sum("rchar"), 200 * 832);
    EXPECT_LT(ranks[i].sum("rchar"), 400 * 832);
    EXPECT_GT(ranks[i].sum("usertime") + ranks[i].sum("systemtime"), 0);
    EXPECT_LT(ranks[i].sum("rssmax"), 10'000);
  }
  // A static rank has a row of its own, where the agent starts it before its program.
  if (GetParam().two[0] == "mpirun.openmpi") {
    const auto app = compile("unlinked", "int main() { return 0; }", {"-static"});
    (void)launch(one({app, "a b"}), {"--job"});
    const auto job = read_job(lines_of(sh("ls -td $PWD/jobs/*").out).at(0));
    ASSERT_EQ(job.of("unlinked").size(), 1U);
    EXPECT_EQ(job.of("unlinked")[0].args(), Strings{"a b"});
  }
  // With fs-job around it, too.
  fs::remove_all(dir_ / "jobs");
  fs::create_directory(dir_ / "jobs");
  const auto around = run(Strings{staged_program("fs-job"), "run", "-q", "--to", dir_ / "jobs"} +
                              launched(one({farm.program})),
                          options_);
  EXPECT_EQ(around.out, farm.output) << around.err;
  const auto job = read_job(lines_of(sh("ls -d $PWD/jobs/*").out).at(0));
  for (const auto& row : job.rows) EXPECT_EQ(row["marks"].find("partial"), std::string::npos);
  EXPECT_EQ(job.of(fs::path(farm.program).filename()).at(0)["ended_by"], "self");
  const auto first = ranks[0].sum("rchar"), second = ranks[1].sum("rchar");
  EXPECT_NEAR(static_cast<double>(first), static_cast<double>(second), 4096.0);
}

INSTANTIATE_TEST_SUITE_P(, Launched,
                         ::testing::Values(Launcher{"open_mpi", {"mpirun.openmpi", "-n", "2"}},
                                           Launcher{"hydra", {"mpiexec.hydra", "-n", "2"}}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace heddle::test
