// SPDX-License-Identifier: MIT
// Whole jobs of fs-launch on four nodes: what they ask of a slow file system, odd nodes, and kills.
#include <fmt/format.h>

#include <thread>

#include "tests/launch/on_nodes.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/slow_mount.hpp"
#include "tests/support/source_file.hpp"

namespace heddle::test {
namespace {

/// The directory `files` of dir_ is served by heddle-slowfs when the nodes start.
class OnSlowFiles : public OnNodes {
 protected:
  virtual void make_files() = 0;
  void start_cluster() override {
    make_files();
    if (IsSkipped() || HasFatalFailure()) return;
    slow_.emplace(files(), files(), dir_ / "counts");
    OnNodes::start_cluster();
  }
  void TearDown() override {
    OnNodes::TearDown();
    slow_.reset();
  }
  std::string files() const { return dir_ / "files"; }
  /// Requests for files and directories whose path begins so.
  static std::uint64_t requests(const SlowCounts::Paths& paths, const std::string& begin,
                                const char* opcode) {
    std::uint64_t out = 0;
    for (const auto& [path, opcodes] : paths)
      if (path.starts_with(begin) && opcodes.contains(opcode)) out += opcodes.at(opcode);
    return out;
  }
  std::optional<SlowMount> slow_;
};

class Of500Libraries : public OnSlowFiles {
 protected:
  void make_files() override {
    farm_ = ElfFarm::build(files(), {.libraries = 500});
    ASSERT_EQ(run({"sh", "-c",
                   bin_ + "/fs-resolve build -o app.map files/app && " + bin_ +
                       "/fs-resolve pack app.map -o files/app.bundle"},
                  {.cwd = dir_.path()})
                  .status,
              0);
  }
  std::string expected(int ranks) const {
    std::string out;
    while (ranks-- > 0) out += farm_.output;
    return out;
  }
  ElfFarm farm_;
};

TEST_F(Of500Libraries, a_node_has_one_mount_and_a_shipped_bundle_is_all_that_is_read) {
  run_checked({"sleep", "2.1"});  // of younger files nothing is kept for the node's other ranks
  (void)slow_->reset();
  std::ofstream(dir_ / "rank.sh")
      << "\"$@\"; ps -o ppid= -C fs-mount | while read p; do cat /proc/$p/comm; done | "
         "grep -cx fs-mount >daemons.$(hostname)\n"
         "echo $(hostname) $(sed -n 's,.* \\(0:[0-9]*\\) / /tmp/hd-.*,\\1,p' "
         "/proc/self/mountinfo)\n";
  const auto plain = cluster_->sh(
      fs_launch_ + " --report srun -Q -O -N4 -n32 sh rank.sh files/app | sort | uniq -c",
      {.deadline = 2min});
  // One mount for the eight of a node.
  auto lines = lines_of(plain.out);
  EXPECT_EQ(lines.size(), 5U) << plain.out << plain.err;
  EXPECT_EQ(lines.at(0), "     32 " + farm_.output.substr(0, farm_.output.size() - 1));
  for (int node = 1; node <= 4; ++node) {
    EXPECT_THAT(plain.out, testing::ContainsRegex("  8 n" + std::to_string(node) + " 0:[0-9]+\n"));
    EXPECT_EQ(read_file(dir_ / ("daemons.n" + std::to_string(node))).value_or(""), "1\n");
  }
  EXPECT_THAT(plain.err, HasSubstr("32 of 32 ranks guided on 4 nodes"));
  // Each node opens each library once to resolve the program, and once to serve it.
  const auto read = slow_->reset();
  EXPECT_LE(requests(read.files, "lib/", "OPEN"), 2U * 4U * 500U);
  EXPECT_GE(requests(read.files, "lib/", "OPEN"), 500U);
  // Two launches by a bundle in one allocation, which are counted one by one.
  const auto bundle = fs_launch_ + " --report --map files/app.bundle srun -Q -O -n32 files/app; "s;
  const auto copies = "srun -Q sh -c \"stat -c %i-%Y /tmp/heddle-job-*/*.bundle\" | sort >"s;
  RunResult twice;
  std::thread job([&] {
    twice = cluster_->sh("salloc -Q -N4 sh -c '" + bundle + copies +
                             "one; >launched; while [ ! -e counted ]; do sleep 0.1; done; " +
                             bundle + copies + "two; srun -Q rm -rf /tmp/heddle-job-0-1'",
                         {.deadline = 2min});
  });
  EXPECT_TRUE(wait_until(1min, [&] { return fs::exists(dir_ / "launched"); }));
  const auto first = slow_->reset();
  std::ofstream(dir_ / "counted") << "";
  job.join();
  const auto second = slow_->reset();
  EXPECT_EQ(twice.out, expected(64)) << twice.err;
  EXPECT_EQ(lines_of(cluster_->sh("cat one").out).size(), 4U);
  EXPECT_EQ(cluster_->sh("cmp one two").status, 0);
  for (const auto* counts : {&first, &second}) {
    EXPECT_EQ(requests(counts->files, "lib/", "READ"), 0U);
    EXPECT_EQ(requests(counts->files, "lib/", "OPEN"), 0U);
  }
  // Each launch looks at the bundle's index; the first reads all of it, once.
  (void)cluster_->sh("cat files/app.bundle >whole");
  const auto whole = requests(slow_->reset().files, "app.bundle", "READ");
  const auto of_first = requests(first.files, "app.bundle", "READ"),
             of_second = requests(second.files, "app.bundle", "READ");
  EXPECT_GT(of_first, of_second);
  EXPECT_LE(of_first, of_second + whole);
}

class OfAPythonProgram : public OnSlowFiles {
 protected:
  void make_files() override {
    const auto numpy = run({"/usr/bin/python3", "-c", "import numpy; print(numpy.__path__[0])"});
    if (numpy.status != 0) HEDDLE_SKIP("numpy is not installed");
    fs::create_directories(files() + "/site");
    run_checked({"cp", "-r", lines_of(numpy.out).at(0), files() + "/site/numpy"});
    std::ofstream main(dir_ / "main.py");
    main << "import numpy, os, sys, time\n";
    for (int i = 0; i < 100; ++i) {
      const auto name = "p" + std::to_string(i), package = files() + "/site/" + name;
      write_text_file(package + "/__init__.py", "from . import m\n");
      write_text_file(package + "/m.py", "x = 1\n");
      main << "import " << name << "\n";
    }
    main << "print(numpy.__file__, sum(p.m.x for n, p in globals().items() if n[1:].isdigit()))\n"
            "while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]): time.sleep(0.1)\n";
    run_checked({"python3", "-m", "compileall", "-q", files() + "/site"});
    run_checked({"sleep", "2.1"});  // younger files are not cached
  }
  /// `place`: options of srun.
  std::string job(int nodes, int ranks, const std::string& place,
                  const std::string& arguments = "") const {
    return "PYTHONPATH=" + files() + "/site " + fs_launch_ + " --report srun -Q -O -N" +
           std::to_string(nodes) + " " + place + " --ntasks-per-node=" + std::to_string(ranks) +
           " /usr/bin/python3 main.py " + arguments;
  }
  /// Requests of a job of so many nodes, and ranks on each, by path and opcode.
  std::map<std::string, std::uint64_t> asked(int nodes, int ranks, const std::string& place) {
    (void)slow_->reset();
    const auto ran =
        cluster_->sh(job(nodes, ranks, place) + " | sort | uniq -c", {.deadline = 1min});
    EXPECT_EQ(ran.out, fmt::format("{:>7} {}/site/numpy/__init__.py 100\n", nodes * ranks, files()))
        << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(fmt::format("{0} of {0} ranks guided on {1} node", nodes * ranks,
                                               nodes)));
    const auto counts = slow_->reset();
    std::map<std::string, std::uint64_t> out;
    for (const auto* paths : {&counts.files, &counts.directories, &counts.missing})
      for (const auto& [path, requests] : *paths)
        for (const auto& [opcode, count] : requests) out[opcode + " " + path] += count;
    return out;
  }
};

/// The script is elsewhere: its directory, where users work, is never served from a map.
TEST_F(OfAPythonProgram, later_ranks_of_a_node_ask_nothing_of_the_file_system) {
  (void)asked(4, 1, "");  // resolves, and learns
  // The first job of a node; reading ahead is not of its second rank.
  std::string difference = "not tried";
  std::uint64_t more = UINT64_MAX;
  std::thread first([&] {
    const auto ran =
        cluster_->sh("salloc -Q -N4 sh -c '" + job(4, 1, "", "done") + "'", {.deadline = 3min});
    EXPECT_THAT(ran.err, HasSubstr("4 of 4 ranks guided"));
  });
  if (wait_until(60s, [&] { return left().find("hd-") != std::string::npos; })) {
    const auto beside = "--overlap --jobid=$(squeue -ho %A)";
    (void)asked(4, 4, beside);
    // On one node, since the kernel here asks once for what two nodes ask for at the same time. A
    // busy machine makes requests by chance; what a rank asks for, it asks for each time.
    for (int tries = 0; tries < 3 && more >= 7; ++tries) {
      const auto alone = asked(1, 1, beside), eight = asked(1, 8, beside);
      std::uint64_t all = 0;
      std::string differences;
      for (const auto& [what, count] : eight) {
        const auto found = alone.find(what);
        const auto before = found == alone.end() ? 0 : found->second;
        if (count > before) differences += fmt::format("{}: {} and not {}\n", what, count, before);
        all += count - std::min(count, before);
      }
      if (all < more) difference = std::move(differences);
      more = std::min(more, all);
    }
  }
  std::ofstream(dir_ / "done") << "";
  first.join();
  EXPECT_LT(more, 7U) << "requests in all of seven ranks more:\n" << difference;
}

TEST_F(OnNodes, ranks_of_a_node_enter_one_container) {
  const auto made = run({source_file("tests/support/rootfs"), "bullseye"}, {.deadline = 9min});
  if (made.status != 0) HEDDLE_SKIP(made.err);
  std::ofstream(dir_ / "rank.sh")
      << "sleep 1; echo n$((SLURM_NODEID + 1)) $(readlink /proc/self/ns/mnt) "
         "$(cat /etc/debian_version)\n";
  const auto ran = cluster_->sh(fs_launch_ + " --backend bare --image " + lines_of(made.out).at(0) +
                                " srun -Q -N4 -n8 sh rank.sh | sort | uniq -c");
  for (int node = 1; node <= 4; ++node)
    EXPECT_THAT(ran.out,
                testing::ContainsRegex("  2 n" + std::to_string(node) + " mnt:[^ ]* 11\\.[0-9]+\n"))
        << ran.err;
  EXPECT_TRUE(wait_until(10s, [&] { return cluster_->on(1, "pgrep -x heddle-root").out.empty(); }));
}

TEST_F(OnNodes, mpi_programs_run_in_a_container_of_each_node) {
  if (run({"sh", "-c", "command -v mpicc.mpich"}).status != 0)
    HEDDLE_SKIP("mpicc.mpich is not installed");
  const auto made = run({source_file("tests/support/rootfs"), "trixie-mpich"}, {.deadline = 9min});
  if (made.status != 0) HEDDLE_SKIP(made.err);
  std::ofstream(dir_ / "app.c") << Cluster::kRanksSayWhere;
  run_checked({"mpicc.mpich", "-o", dir_ / "app", dir_ / "app.c"});
  const auto ran = cluster_->sh(fs_launch_ + " --report --backend bare --image " +
                                lines_of(made.out).at(0) + " srun -Q -N4 -n8 --mpi=pmi2 ./app");
  EXPECT_EQ(ran.status, 0) << ran.err;
  Strings expected;
  for (int rank = 0; rank < 8; ++rank)
    expected.push_back("n" + std::to_string(1 + rank / 2) + " " + std::to_string(rank) + " 8");
  EXPECT_EQ(sorted_lines(ran.out), expected) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("in a container of "));
  EXPECT_TRUE(wait_until(10s, [&] { return cluster_->on(1, "pgrep -x heddle-root").out.empty(); }));
}

/// Slurm signals each process of the step (proctrack/linuxproc).
TEST_F(OnNodes, signals_of_collected_tasks_arrive_once) {
  if (staged_program("fs-job").empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
  std::ofstream(dir_ / "app.c") << R"(#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int main() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, 0);
  char name[64];
  snprintf(name, sizeof name, "log.%s", getenv("SLURM_PROCID"));
  int log = open(name, O_CREAT | O_WRONLY | O_APPEND, 0600);
  struct timespec limit = {30, 0};
  for (int got; (got = sigtimedwait(&all, 0, &limit)) > 0;) {
    if (got == SIGQUIT) limit.tv_sec = 1;
    if (got != SIGCONT) dprintf(log, "%d\n", got);
  }
})";
  run_checked({"cc", "-o", dir_ / "app", dir_ / "app.c"});
  const auto got = [&](const std::string& prefix) {
    const auto ran = cluster_->sh(
        "rm -f log.*; " + prefix +
            "srun -Q -N2 -n4 ./app & until [ $(ls log.* 2>/dev/null | wc -l) = 4 ]; do sleep 0.1; "
            "done; job=$(squeue -ho %A); for n in 10 14 1 3; do scancel -s $n $job.0; "
            "until [ $(cat log.* | grep -cx $n) -ge 4 ]; do sleep 0.1; done; done; wait; "
            "for i in 0 1 2 3; do echo $(cat log.$i); done",
        {.deadline = 1min});
    return ran.out;
  };
  EXPECT_EQ(got(""), "10 14 1 3\n10 14 1 3\n10 14 1 3\n10 14 1 3\n");
  EXPECT_EQ(got("HEDDLE_JOB_TO=" + dir_.path() + " HEDDLE_JOB_SPOOL=/tmp/spool " + fs_launch_ +
                " --job -q "),
            "10 14 1 3\n10 14 1 3\n10 14 1 3\n10 14 1 3\n");
}

class OnOddNodes : public OnNodes {};

TEST_F(OnOddNodes, jobs_run_and_the_report_names_the_node) {
  // n1: programs cannot be executed from its /tmp; n2: that is full; n3: no /dev/fuse.
  EXPECT_EQ(cluster_->on(1, "mount -o remount,noexec /tmp").status, 0);
  (void)cluster_->on(2, "head -c 70M /dev/zero >/tmp/full");
  EXPECT_EQ(cluster_->on(3, "mount --bind /dev/null /dev/fuse").status, 0);
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 10});
  const auto odd = cluster_->sh(fs_launch_ + " --report --slow / srun -Q -N4 -n8 farm/app");
  std::string all;
  for (int i = 0; i < 8; ++i) all += farm.output;
  EXPECT_EQ(odd.out, all) << odd.err;
  EXPECT_EQ(odd.status, 0);
  EXPECT_THAT(odd.err, testing::ContainsRegex("\nn1 [^\n]*  \n")) << "no reason";
  EXPECT_THAT(odd.err, testing::ContainsRegex("\nn2 [^\n]*No space left on device"));
  EXPECT_THAT(odd.err, testing::ContainsRegex("\nn3 [^\n]*mount namespace: "));
  (void)cluster_->on(2, "rm /tmp/full");

  // As seen by a plain user.
  fs::permissions(dir_.path(), fs::perms(0755));
  fs::create_directory(dir_ / "home");
  run_checked({"chown", "65534:65534", dir_ / "home"});
  const auto user = cluster_->sh("setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=" +
                                 (dir_ / "home") + " XDG_CACHE_HOME=" + (dir_ / "home/cache") +
                                 " " + fs_launch_ + " --report --slow / srun -Q -N4 -n8 id -u");
  EXPECT_EQ(user.out, "65534\n65534\n65534\n65534\n65534\n65534\n65534\n65534\n") << user.err;
  EXPECT_THAT(user.err, HasSubstr("8 of 8 ranks guided on 4 nodes"));

  // n4: another CPU, as ld.so and the resolver see it.
  for (const auto& [directory, value] :
       {std::pair{"lib/glibc-hwcaps/x86-64-v3", "3"}, {"lib", "1"}}) {
    build_library({dir_ / (directory + "/libx.so"s),
                   "int level() { return "s + value + "; }",
                   {"-Wl,-soname,libx.so"}});
  }
  build_program({dir_ / "app",
                 "#include <stdio.h>\nint level();\nint main() { printf(\"%d\\n\", level()); }",
                 {dir_ / "lib/libx.so", "-Wl,-rpath," + (dir_ / "lib")}});
  if (run({dir_ / "app"}).out != "3\n") return;  // this CPU has no x86-64-v3
  write_text_file(
      dir_ / "prolog",
      "#!/bin/sh\n[ $(hostname) != n4 ] || echo export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2\n",
      0755);
  const auto cpus = cluster_->sh(bin_ + "/fs-resolve build -o app.map app >out && " + fs_launch_ +
                                 " --report --slow / --map app.map srun -Q -N4 -n4 --task-prolog=" +
                                 (dir_ / "prolog") + " ./app | sort");
  EXPECT_EQ(cpus.out, "1\n3\n3\n3\n") << cpus.err;
  EXPECT_THAT(cpus.err, testing::ContainsRegex("\nn4 [^\n]*is for another CPU"));
}

TEST_F(OnOddNodes, foreign_programs_and_a_node_that_does_not_answer_fail_as_without) {
  auto foreign = read_file("/bin/true").value_or("");
  foreign.at(18) = '\x16';  // e_machine: IBM S/390
  write_text_file(dir_ / "foreign", foreign, 0755);
  const auto bare = cluster_->sh("srun -Q -w n1 -n1 ./foreign");
  const auto ours = cluster_->sh(fs_launch_ + " srun -Q -w n1 -n1 ./foreign");
  EXPECT_NE(bare.status, 0);
  EXPECT_EQ(ours.status, bare.status);
  EXPECT_EQ(sorted_lines(ours.err), sorted_lines(bare.err));  // of srun and slurmstepd

  const auto gone = cluster_->sh("salloc -Q -N4 sh -c 'c/rsh n3 pkill -KILL -x slurmd; " +
                                     fs_launch_ + " --slow / srun -Q -n4 hostname'",
                                 {.deadline = 2min});
  EXPECT_THAT(gone.err, HasSubstr("n3: the job runs without heddle"));
}

class KilledOnNodes : public OnNodes {
 protected:
  /// Eight ranks that stay, one of the job's processes killed: how many ranks each node has then.
  std::string survivors(const std::string& prefix, const std::string& kill) const {
    const auto count = "c=; for i in 1 2 3 4; do c=\"$c $(" + cluster_->rsh() +
                       " n$i pgrep -cx sleeper)\"; done; ";
    const auto result = cluster_->sh(
        kInterruptible + prefix +
            " srun -Q -N4 -n8 ./sleeper 1000 & launch=$!\n"
            "for i in $(seq 100); do " +
            count + "[ \"$c\" = ' 2 2 2 2' ] && break; sleep 0.1; done\n" + "sleep 0.5; " + kill +
            "\nsleep 2; " + count + "echo $c; scancel -u root; for i in 1 2 3 4; do " +
            cluster_->rsh() + " n$i pkill -KILL -x sleeper; done; wait",
        {.deadline = 2min});
    expect_clean(kill);
    return result.out;
  }
  /// Of a node whose processes of heddle's were all killed the next launch removes the directory.
  /// Slurm kills all when the mount service has just been started.
  void expect_clean(const std::string& kill) const {
    if (kill.ends_with(kAll) || kill.starts_with("scancel -s KILL"))
      (void)cluster_->sh(fs_launch_ + " --slow / srun -Q -N4 -n4 sleep 0");
    EXPECT_TRUE(wait_until(15s, [&] { return left().empty(); })) << kill << ": " << left();
  }
  /// After a kill -9 the next launch removes the directory of the reports.
  void expect_no_reports() const {
    (void)cluster_->sh("find cache/heddle -name 'launch-*' -exec touch -d '-2 minutes' {} +; " +
                       fs_launch_ + " --report true");
    EXPECT_EQ(cluster_->sh("ls -d cache/heddle/launch-*").out, "");
  }
  /// A shell without job control has SIGINT ignored in what it starts in the background.
  static constexpr const char* kInterruptible = "env --default-signal=INT ";
  static constexpr const char* kAll = " n2 pkill -KILL -x fs-mount";
};

TEST_F(KilledOnNodes, ranks_live_on_as_without_heddle) {
  run_checked({"cp", "/bin/sleep", dir_ / "sleeper"});
  const auto heddle = fs_launch_ + " --slow /";
  for (const auto& kill : {"kill -KILL $launch"s, "kill -INT $launch"s,
                           "kill -INT $launch; sleep 0.3; kill -INT $launch"s,
                           cluster_->rsh() + " n2 pkill -KILL -x slurmstepd"})
    EXPECT_EQ(survivors(heddle, kill), survivors("", kill)) << kill;
  for (const char* which : {kAll, " n2 pkill -KILL -ox fs-mount", " n2 pkill -KILL -nx fs-mount"})
    EXPECT_EQ(survivors(heddle, cluster_->rsh() + which), "2 2 2 2\n") << which;
}

TEST_F(KilledOnNodes, nothing_stays_whatever_ends_and_when) {
  const auto n2 = cluster_->rsh() + " n2 pkill -KILL ";
  const auto srun = "srun -Q -N4 -n8"s, hosts = " n1:2,n2:2,n3:2,n4:2"s,
             mpirun = "mpirun.openmpi --mca plm_rsh_agent " + cluster_->rsh() + " -host" + hosts,
             hydra = "mpiexec.hydra -launcher ssh -launcher-exec " + cluster_->rsh() + " -hosts" +
                     hosts + " -n 8";
  std::vector<std::pair<std::string, std::string>> victims = {
      {srun, "scancel -s KILL $(squeue -ho %A)"},
      {srun, "pkill -KILL -x srun"},
      {srun, n2 + "-x slurmstepd"},
      {srun, n2 + "-nx fs-mount"},
      {srun, n2 + "-ox fs-mount"},
      {srun, cluster_->rsh() + kAll},
      {mpirun, n2 + "-x orted"},
      {mpirun, cluster_->rsh() + kAll},
      {hydra, n2 + "-x hydra_pmi_proxy"},
      {hydra, cluster_->rsh() + kAll}};
  for (const auto& launcher : {srun, mpirun, hydra})
    for (const auto* signal : {"KILL", "INT", "TERM"})
      victims.emplace_back(launcher, "kill -"s + signal + " $launch");
  // HEDDLE_KILLS=100 tries so many.
  const char* wanted = std::getenv("HEDDLE_KILLS");
  const auto tries = wanted ? std::strtoul(wanted, nullptr, 10) : victims.size();
  for (std::size_t i = 0; i < tries; ++i) {
    const auto& [launcher, kill] = victims.at(i % victims.size());
    const auto moment = fmt::format("{:02}", i * 37 % 100);  // hundredths of the first second
    // Whether it becomes the launcher, or waits for it, is another each time.
    const auto options = i / victims.size() % 2 == i % 2 ? " --report"s : "";
    (void)cluster_->sh(kInterruptible + fs_launch_ + options + " --slow / " + launcher +
                       " sleep 2 & launch=$!\nsleep 0." + moment + "; " + kill +
                       "; sleep 0.2; scancel -u root; wait");
    expect_clean(kill);
    expect_no_reports();
    ASSERT_FALSE(HasFailure()) << launcher << options << ": " << kill << " at 0." << moment;
  }
}

class SrunOfHeddle : public OnNodes {
 protected:
  void start_cluster() override {
    const auto plugin = fs::path(bin_).parent_path() / "lib/heddle/spank_heddle.so";
    if (!fs::exists(plugin)) HEDDLE_SKIP("spank_heddle.so is not built: libslurm-dev");
    cluster_.emplace(dir_.path(), 4, "", "required " + plugin.string());
  }
};

TEST_F(SrunOfHeddle, guides_tasks_that_get_no_variables_of_the_user) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 5});
  std::ofstream(dir_ / "rank.sh")
      << "PATH=/bin; echo ${HEDDLE_LAUNCH-none} ${LD_AUDIT##*/} ${HEDDLE_INDEX:+guided}\n";
  const auto made = cluster_->sh(bin_ + "/fs-resolve build -o 'a b.map' /bin/sh farm/app");
  ASSERT_EQ(made.status, 0) << made.err;
  const auto tasks = [&](const std::string& options) {
    return cluster_->sh("srun -Q -N4 -n4 --export=NONE " + options + " /bin/sh rank.sh | sort -u");
  };
  EXPECT_EQ(tasks("").out, "none\n");
  EXPECT_EQ(tasks("--heddle=off").out, "none\n");
  const auto by_map = tasks("--heddle='" + dir_.path() + "/a b.map'");
  EXPECT_EQ(by_map.out, "none libheddle-audit.so guided\n") << by_map.err;
  const auto resolved = tasks("--heddle");
  EXPECT_EQ(resolved.out, by_map.out) << resolved.err;
  const auto relative = tasks("--heddle=app.map");
  EXPECT_EQ(relative.out, "");
  EXPECT_THAT(relative.err, HasSubstr("--heddle: app.map: not an absolute path"));
  // With fs-launch too the ranks enter once.
  const auto both =
      cluster_->sh(fs_launch_ + " --report --slow / srun -Q -N4 -n8 --heddle farm/app");
  EXPECT_THAT(both.err, HasSubstr("8 of 8 ranks guided on 4 nodes"));
}

}  // namespace
}  // namespace heddle::test
