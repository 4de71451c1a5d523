// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/record/recorded.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using trace::Op;

const char* kProbe = HEDDLE_FS_PROBE;

/// What fs-record is allowed to differ in: nothing.
void expect_same(const RunResult& native, const RunResult& recorded) {
  EXPECT_FALSE(recorded.timed_out);
  EXPECT_EQ(native.status, recorded.status) << recorded.err;
  EXPECT_EQ(native.out, recorded.out);
  EXPECT_EQ(native.err, recorded.err);
}

void expect_same_run(const std::vector<std::string>& argv, const RunOptions& options = {}) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const auto native = run(argv, options);
  const auto recorded = record(dir / "run.txt", argv, options);
  expect_same(native, recorded);
  EXPECT_TRUE(read_seen(dir / "run.txt").complete());
}

TEST(Recorder, files_behave_as_natively) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", dir / "native", dir / "recorded"});
  const auto native = run({kProbe, dir / "native"});
  const auto recorded = record(dir / "run.txt", {kProbe, dir / "recorded"});
  expect_same(native, recorded);
  EXPECT_EQ(native.status, 0);
  EXPECT_GT(native.out.size(), 3000U);
  EXPECT_EQ(run({"diff", "-r", "--no-dereference", "--exclude=sock", "--exclude=fifo",
                 "--exclude=node", dir / "native", dir / "recorded"})
                .status,
            0);
}

/// fs-record and the probe where a user reaches them, and what runs there as user 1500.
struct UserWorld {
  UserWorld() {
    run_checked({"mkdir", dir / "native", dir / "recorded", dir / "closed"});
    run_checked({"chmod", "0777", dir.path()});
    // The user's own: a mount in a user namespace, without fusermount3, cannot write to others'.
    run_checked({"chown", "1500:1500", dir / "native", dir / "recorded"});
    run_checked({"cp", staged_program("fs-record"), kProbe, dir.path()});
  }
  RunResult run_as_user(const std::vector<std::string>& argv, const std::string& tmp,
                        const std::vector<std::string>& where = {}) const {
    std::vector<std::string> all{HEDDLE_IN_WORLD, "--uid", "1500"};
    all.insert(all.end(), where.begin(), where.end());
    all.emplace_back("--");
    all.insert(all.end(), argv.begin(), argv.end());
    RunOptions options;
    options.env = {"HOME=/nonexistent", "TMPDIR=" + tmp};
    return run(all, options);
  }
  TestDir dir;
};

TEST(Recorder, files_behave_as_natively_for_a_user) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
  const UserWorld world;
  const auto& dir = world.dir;
  expect_same(world.run_as_user({dir / "fs_probe", dir / "native"}, dir.path()),
              world.run_as_user({dir / "fs-record", "-q", "--out", dir / "run.txt",
                                 dir / "fs_probe", dir / "recorded"},
                                dir.path()));
  EXPECT_TRUE(read_seen(dir / "run.txt").complete());
  EXPECT_EQ(mounts_with("heddle-record"), 0U);
}

TEST(Recorder, a_TMPDIR_that_the_user_cannot_write_to_changes_nothing) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
  const UserWorld world;
  const auto& dir = world.dir;
  std::string method;
  for (const auto& tmp : {dir.path(), dir / "closed", std::string("/nowhere")}) {
    const auto recorded = world.run_as_user(
        {dir / "fs-record", "--quiet", "--out", dir / "run.txt", "/bin/true"}, tmp);
    EXPECT_EQ(recorded.status, 0) << recorded.err;
    const auto seen = read_seen(dir / "run.txt");
    if (method.empty()) method = seen.header.method;
    EXPECT_EQ(seen.header.method, method) << tmp;
  }
}

TEST(Recorder, a_user_without_dev_fuse_is_told_what_to_do) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
  const UserWorld world;
  const auto& dir = world.dir;
  const auto told = world.run_as_user({dir / "fs-record", "--out", dir / "run.txt", "/bin/true"},
                                      dir.path(), {"--fuse", "absent"});
  EXPECT_EQ(told.status, 3);
  EXPECT_NE(told.err.find("/dev/fuse: cannot open"), std::string::npos) << told.err;
  EXPECT_NE(told.err.find("hint: "), std::string::npos) << told.err;
}

TEST(Recorder, a_user_who_may_not_unshare_records_under_proot) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
  if (run({"sh", "-c", "command -v proot"}).status != 0) HEDDLE_SKIP("proot is not installed");
  const UserWorld world;
  const auto& dir = world.dir;
  const std::vector<std::string> app = {"sh", "-c", "cat /etc/debian_version /no/such; exit 7"};
  std::vector<std::string> recorded_app = {dir / "fs-record", "--out", dir / "run.txt", "-q"};
  recorded_app.insert(recorded_app.end(), app.begin(), app.end());
  expect_same(world.run_as_user(app, dir.path()),
              world.run_as_user(recorded_app, dir.path(), {"--forbid", "unshare"}));
  const auto seen = read_seen(dir / "run.txt");
  EXPECT_TRUE(seen.complete());
  EXPECT_EQ(seen.header.method, "proot");
  EXPECT_TRUE(std::any_of(
      seen.header.notes.begin(), seen.header.notes.end(),
      [](const std::string& note) { return note.find("no namespaces") != std::string::npos; }));
}

TEST(Recorder, another_user_below_root_has_his_own_rights) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to become another user");
  TestDir dir;
  run_checked({"chmod", "0755", dir.path()});
  write_text_file(dir / "secret", "s", 0600);
  write_text_file(dir / "shared", "g", 0640);
  run_checked({"chgrp", "12345", dir / "shared"});
  const std::string script = "cat " + dir.path() + "/secret; cat " + dir.path() + "/shared; id -G";
  expect_same_run(
      {"setpriv", "--reuid=65534", "--regid=65534", "--groups=12345", "sh", "-c", script});
}

TEST(Recorder, arguments_arrive_as_they_are) {
  expect_same_run({"printf", "[%s]", "a b", "", "$x", "tab\tnl\n", "\xff"});
}

TEST(Recorder, exit_codes_are_the_programs_own) {
  expect_same_run({"sh", "-c", "exit 7"});
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  EXPECT_EQ(record(dir / "r", {"/no/such/program"}).status, 127);
  EXPECT_EQ(record(dir / "r", {dir.path()}).status, 126);
  EXPECT_EQ(run({program, "--append", dir / "r", "true"}).status, 2);
  EXPECT_EQ(run({program, "--trace", dir / "missing", "--summary"}).status, 3);
  write_text_file(dir / "bad", "no trace\n");
  EXPECT_EQ(run({program, "--trace", dir / "bad", "--summary"}).status, 2);
  EXPECT_EQ(run({program, "true"}).status, 2);
  EXPECT_EQ(record("/no/such/folder/run.txt", {"true"}).status, 3);
}

TEST(Recorder, small_programs_run_as_natively) { expect_same_run({"xz", "--help"}); }

TEST(Recorder, python_imports_numpy) {
  expect_same_run({"/usr/bin/python3", "-c", "import numpy; print(numpy.arange(9).sum())"});
}

TEST(Recorder, lammps_helps) {
  if (run({"sh", "-c", "command -v lmp"}).status != 0) HEDDLE_SKIP("lmp is not installed");
  expect_same_run({"lmp", "-h"});
}

TEST(Recorder, sqlite_works_with_a_write_ahead_log) {
  if (run({"sh", "-c", "command -v sqlite3"}).status != 0) HEDDLE_SKIP("sqlite3 is not installed");
  TestDir dir;
  RunOptions options;
  options.cwd = dir.path();
  expect_same_run(
      {"sh", "-c",
       "rm -f db*; sqlite3 db 'pragma journal_mode=wal; create table t(x); insert into t "
       "select value from generate_series(1,20000); pragma integrity_check; select "
       "sum(x) from t;' && sqlite3 db 'delete from t where x%2; vacuum; pragma "
       "integrity_check; select count(*) from t'"},
      options);
}

TEST(Recorder, a_project_is_configured_built_cloned_and_packed) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const std::string script =
      "set -e; mkdir p && cd p && git init -q . && mkdir many && for i in $(seq 800); do echo $i > "
      "many/f$i; done; printf 'int f(void){return 3;}' > f.c; printf '#include <stdio.h>\\nint "
      "f(void);int main(void){printf(\"%d\\\\n\",f());return 0;}' > m.c; printf 'app: m.o "
      "f.o\\n\\tcc -o app m.o f.o\\n%%.o: %%.c\\n\\tcc -c -o $@ $<\\n' > Makefile; make -s -j2; "
      "./app; "
      "make -s; git add -A; git -c user.name=a -c user.email=b commit -q -m c; git clone -q "
      "--no-local . ../q; git -C ../q fsck --no-progress; tar cf ../t.tar many; mkdir ../x; tar xf "
      "../t.tar -C ../x; diff -r many ../x/many; rm -rf ../q/many; ls ../q | sort";
  run_checked({"mkdir", dir / "a", dir / "b"});
  RunOptions here, there;
  here.cwd = dir / "a";
  there.cwd = dir / "b";
  const auto native = run({"sh", "-c", script}, here);
  expect_same(native, record(dir / "run.txt", {"sh", "-c", script}, there));
  EXPECT_EQ(native.status, 0) << native.err;
  EXPECT_EQ(run({"diff", "-r", "--exclude=.git", "--exclude=t.tar", dir / "a", dir / "b"}).status,
            0);
}

/// As root, and more ranks than cores.
const std::vector<std::string> kOpenMpi = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                                           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                           "OMPI_MCA_rmaps_base_oversubscribe=1"};

TEST(Recorder, ranks_run_inside) {
  if (run({"sh", "-c", "command -v mpirun"}).status != 0) HEDDLE_SKIP("no mpirun");
  RunOptions options;
  options.env = kOpenMpi;
  expect_same_run({"mpirun", "-n", "2", "uname"}, options);
}

TEST(Recorder, each_rank_has_a_complete_trace) {
  HEDDLE_STAGED(program, "fs-record");
  if (run({"sh", "-c", "command -v mpicc.openmpi && command -v mpirun"}).status != 0)
    HEDDLE_SKIP("no Open MPI");
  TestDir dir;
  write_text_file(
      dir / "h.c",
      "#include <mpi.h>\n#include <stdio.h>\nint main(int c,char**v){int r;double x,y;"
      "MPI_Init(&c,&v);MPI_Comm_rank(MPI_COMM_WORLD,&r);x=r;MPI_Allreduce(&x,&y,1,"
      "MPI_DOUBLE,MPI_SUM,MPI_COMM_WORLD);if(!r)printf(\"%g\\n\",y);MPI_Finalize();return 0;}");
  run_checked({"mpicc.openmpi", "-o", dir / "h", dir / "h.c"});
  RunOptions options;
  options.env = kOpenMpi;
  const auto done =
      run({"mpirun.openmpi", "-n", "4", program, "-q", "--out-dir", dir / "t", dir / "h"}, options);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "6\n");
  const auto names = run({"sh", "-c", "ls " + dir.path() + "/t"}).out;
  std::vector<bool> ranks(4);
  std::size_t begin = 0;
  for (std::size_t end; (end = names.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const auto seen = read_seen(dir / ("t/" + names.substr(begin, end - begin)));
    EXPECT_TRUE(seen.complete());
    ASSERT_TRUE(seen.header.rank && *seen.header.rank >= 0 && *seen.header.rank < 4);
    ranks[static_cast<std::size_t>(*seen.header.rank)] = true;
  }
  EXPECT_EQ(ranks, std::vector<bool>(4, true));
}

TEST(Recorder, few_descriptors_suffice) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const auto done =
      record(dir / "run.txt", {"bash", "-c",
                               "ulimit -n 256; exec /usr/bin/python3 -c \"\nfor i in range(20000): "
                               "open('/etc/passwd').close()\n"
                               "f=[open('/etc/passwd') for i in range(240)]\nprint('ok')\""});
  EXPECT_EQ(done.out, "ok\n") << done.err;
}

// execve closes files under a lock that much of /proc waits for (fs/exec.c, begin_new_exec()).
TEST(Recorder, a_program_with_many_files_open_to_write_execs_another) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const std::string mark = "HEDDLE_TEST_MARK=" + dir.path();
  RunOptions options;
  options.cwd = dir.path();
  options.env = {mark};
  options.deadline = std::chrono::seconds(30);
  write_text_file(dir / "file", "x");
  const std::string script =
      "import os\npids = []\nfor n in range(4):\n pid = os.fork()\n if pid == 0:\n"
      "  files = [os.open('file', os.O_WRONLY) for i in range(300)]\n"
      "  for i in range(5): os.write(files[i], b'y')\n"
      "  os.execv('/bin/sh', ['sh', '-c', 'exit 7'])\n pids.append(pid)\n"
      "print([os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids])\n";
  for (const auto& form : {std::vector<std::string>{}, std::vector<std::string>{"--io"},
                           std::vector<std::string>{"--op", "close"}}) {
    const auto done = record(dir / "run.txt", {"/usr/bin/python3", "-c", script}, options, form);
    if (done.timed_out)
      for (const int pid : recorders(mark)) ::kill(pid, SIGKILL);
    ASSERT_FALSE(done.timed_out);
    EXPECT_EQ(done.out, "[7, 7, 7, 7]\n") << done.err;
    const auto seen = read_seen(dir / "run.txt");
    EXPECT_TRUE(seen.complete());
    const auto closes = seen.places(Op::close);
    EXPECT_EQ(std::count(closes.begin(), closes.end(), dir / "file"), 1200);
    for (const auto& e : seen.events)
      if (e.op == Op::close && e.place() == dir / "file") {
        EXPECT_TRUE(e.exe.find("python3") != std::string::npos && e.pid > 0) << e.exe;
      }
  }
}

TEST(Recorder, odd_names_are_in_the_trace_as_they_are) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const std::string odd = dir / "sp ace\ttab\nnl\\bs\xff\xfe";
  write_text_file(odd, "x");
  for (const auto& form : {std::vector<std::string>{}, std::vector<std::string>{"--json"}}) {
    EXPECT_EQ(record(dir / "run.txt", {"cat", odd}, {}, form).out, "x");
    const auto opens = read_seen(dir / "run.txt").places(Op::open);
    EXPECT_EQ(std::count(opens.begin(), opens.end(), odd), 1);
  }
}

TEST(Recorder, the_name_that_was_asked_for_is_told) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", dir / "real"});
  write_text_file(dir / "real/lib.so.1.2", "x");
  run_checked({"ln", "-s", "real", dir / "link"});
  run_checked({"ln", "-s", "lib.so.1.2", dir / "real/lib.so.1"});
  record(dir / "run.txt", {"cat", dir / "link/lib.so.1"});
  const auto seen = read_seen(dir / "run.txt");
  const auto open = std::find_if(seen.events.begin(), seen.events.end(), [&](const SeenEvent& e) {
    return e.op == Op::open && e.path == dir / "link/lib.so.1";
  });
  ASSERT_NE(open, seen.events.end());
  EXPECT_EQ(open->resolved, dir / "real/lib.so.1.2");
  EXPECT_TRUE(open->exe.ends_with("/cat"));
}

TEST(Recorder, the_same_run_twice_opens_the_same) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  std::vector<std::string> opens[2];
  for (auto& list : opens) {
    record(dir / "run.txt", {"/usr/bin/python3", "-c", "import json"});
    const auto seen = read_seen(dir / "run.txt");
    for (const auto& e : seen.events)
      if (e.op == Op::open) list.push_back(e.path);
  }
  EXPECT_EQ(opens[0], opens[1]);
  EXPECT_GT(opens[0].size(), 20U);
}

TEST(Recorder, the_same_run_twice_is_no_difference_to_fs_diff) {
  HEDDLE_STAGED(program, "fs-record");
  HEDDLE_STAGED(fs_diff, "fs-diff");
  TestDir dir;
  RunOptions options;
  options.env = {"PYTHONDONTWRITEBYTECODE=1"};
  // The kernel keeps folders for a second, and closes what is open at exit in no fixed order.
  for (const auto& [name, nap] : {std::pair{"a", "0"}, {"b", "1.2"}}) {
    const auto script = std::string("import json, time; time.sleep(") + nap +
                        "); import sqlite3, ctypes, decimal, numpy";
    EXPECT_EQ(record(dir / name, {"/usr/bin/python3", "-c", script}, options).status, 0);
  }
  const auto same = run({fs_diff, "--summary", dir / "a", dir / "b"});
  EXPECT_EQ(same.status, 0) << same.out;
}

TEST(Recorder, operations_are_chosen) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  for (const auto& ops : {std::vector<std::string>{"--op", "open,lookup"},
                          std::vector<std::string>{"--op", "open", "--op", "lookup"}}) {
    EXPECT_EQ(record(dir / "run.txt", {"cat", "/etc/passwd"}, {}, ops).status, 0);
    const auto seen = read_seen(dir / "run.txt");
    EXPECT_FALSE(seen.places(Op::open).empty());
    EXPECT_FALSE(seen.places(Op::lookup).empty());
    EXPECT_TRUE(seen.places(Op::stat).empty() && seen.places(Op::close).empty());
  }
  EXPECT_EQ(record(dir / "run.txt", {"true"}, {}, {"--op", "frob"}).status, 2);
}

TEST(Recorder, a_scope_is_all_that_is_recorded) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", dir / "in", dir / "out"});
  write_text_file(dir / "in/a", "a");
  write_text_file(dir / "out/b", "b");
  RunOptions options;
  options.cwd = dir / "in";
  const auto done =
      record(dir / "run.txt", {"cat", "a", dir / "out/b"}, options, {"--scope", dir / "in"});
  EXPECT_EQ(done.out, "ab") << done.err;
  const auto seen = read_seen(dir / "run.txt");
  EXPECT_EQ(seen.header.scopes, std::vector<std::string>{dir / "in"});
  EXPECT_EQ(seen.places(Op::open), std::vector<std::string>{dir / "in/a"});
}

TEST(Recorder, a_full_disk_is_said_and_the_program_runs_on) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount a small disk");
  TestDir dir;
  run_checked({"mkdir", dir / "small"});
  ASSERT_EQ(::mount("small", (dir / "small").c_str(), "tmpfs", 0, "size=64k"), 0);
  const auto done =
      record(dir / "small/run.txt",
             {"sh", "-c", "for i in $(seq 300); do cat /etc/passwd >/dev/null; done; echo end"});
  const auto seen = read_seen(dir / "small/run.txt");
  ::umount((dir / "small").c_str());
  EXPECT_EQ(done.out, "end\n");
  EXPECT_EQ(done.status, 3);
  EXPECT_NE(done.err.find("No space left"), std::string::npos) << done.err;
  EXPECT_EQ(done.err.find('\n'), done.err.size() - 1) << done.err;
  EXPECT_FALSE(seen.complete());
}

/// A small tmpfs, gone with it.
class SmallDisk {
 public:
  explicit SmallDisk(std::string path) : path_(std::move(path)) {
    run_checked({"mkdir", path_});
    if (::mount("small", path_.c_str(), "tmpfs", 0, "size=1m") != 0)
      throw Error::from_errno(path_, "cannot mount");
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() { ::umount2(path_.c_str(), MNT_DETACH); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// elf/dl-load.c, _dl_map_object_from_fd(): of equal (dev, ino) the second is taken for the first.
TEST(Recorder, libraries_of_two_devices_with_one_inode_number_stay_two) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount two disks");
  TestDir dir;
  const SmallDisk one(dir / "one"), two(dir / "two");
  write_text_file(dir / "one.c", "int which(void) { return 1; }\n");
  write_text_file(dir / "two.c", "int which(void) { return 2; }\n");
  run_checked({"gcc", "-shared", "-fPIC", "-o", dir / "one.so", dir / "one.c"});
  run_checked({"gcc", "-shared", "-fPIC", "-o", dir / "two.so", dir / "two.c"});
  run_checked({"cp", dir / "one.so", one / "lib.so"});
  run_checked({"cp", dir / "two.so", two / "lib.so"});
  struct stat a {
  }, b{};
  ASSERT_EQ(::stat((one / "lib.so").c_str(), &a), 0);
  ASSERT_EQ(::stat((two / "lib.so").c_str(), &b), 0);
  ASSERT_EQ(a.st_ino, b.st_ino) << "tmpfs counts from the same number";
  expect_same_run({"/usr/bin/python3", "-c",
                   "import ctypes, sys; print([ctypes.CDLL(l).which() for l in sys.argv[1:]])",
                   one / "lib.so", two / "lib.so"});
}

TEST(Recorder, the_slim_copy_is_enough_to_run) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root for chroot");
  TestDir dir;
  RunOptions options;
  options.cwd = "/";
  const auto done = run(
      {program, "--out", dir / "run.txt", "--slim", dir / "slim", "--summary", "xz", "--version"},
      options);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.err.find("files on the root's file system"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("missed most, by folder:"), std::string::npos) << done.err;
  EXPECT_EQ(run({"chroot", dir / "slim", "/usr/bin/xz", "--version"}).out, done.out);
  EXPECT_EQ(run({program, "--trace", dir / "run.txt", "--slim", dir / "again"}).status, 0);
  EXPECT_EQ(run({"diff", "-r", dir / "slim", dir / "again"}).status, 0);
}

TEST(Recorder, the_static_program_runs_in_a_foreign_root) {
  HEDDLE_STAGED(program, "fs-record");
  HEDDLE_STAGED(static_program, "fs-record-static");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root for chroot");
  TestDir dir;
  RunOptions options;
  options.cwd = "/";
  ASSERT_EQ(
      run({program, "-q", "--out", dir / "run.txt", "--slim", dir / "root", "xz", "--version"},
          options)
          .status,
      0);
  run_checked({"cp", static_program, dir / "root/fs-record"});
  const auto done =
      run({"unshare", "-m", "sh", "-c",
           "cd \"$0\" && mount --bind . . && cd \"$0\" && mount --rbind /dev dev && mount -t "
           "proc proc proc && exec chroot . /fs-record -q --out /tmp/run.txt /usr/bin/xz --version",
           dir / "root"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, run({"xz", "--version"}).out);
  EXPECT_TRUE(read_seen(dir / "root/tmp/run.txt").complete());
}

/// A listening socket at `path`.
Fd listen_at(const std::string& path) {
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) throw Error(path, "too long for a socket");
  std::copy(path.begin(), path.end(), address.sun_path);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener.get(), 1) != 0)
    throw Error::from_errno(path, "cannot listen");
  return listener;
}

bool says(const trace::RunHeader& header, const std::string& text) {
  return std::any_of(header.notes.begin(), header.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

TEST(Recorder, sockets_answered_outside_are_reached) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", dir / "daemon"});
  const std::string name = dir / "daemon/socket";
  const Fd listener = listen_at(name);
  RunOptions options;
  options.cwd = "/";
  const auto done = record(dir / "run.txt",
                           {"/usr/bin/python3", "-c",
                            "import socket,sys; s=socket.socket(socket.AF_UNIX); "
                            "s.connect(sys.argv[1]); print('connected')",
                            name},
                           options);
  EXPECT_EQ(done.out, "connected\n") << done.err;
  EXPECT_TRUE(says(read_seen(dir / "run.txt").header, dir / "daemon"));
}

/// Waits for the program's `go`, and then makes a file in each folder, as a process outside does.
class Outsider {
 public:
  explicit Outsider(const TestDir& dir)
      : thread_([&dir] {
          if (!wait_until(std::chrono::seconds(20),
                          [&] { return ::access((dir / "plain/go").c_str(), F_OK) == 0; }))
            return;
          write_text_file(dir / "plain/outside", "");
          write_text_file(dir / "native/outside", "");
        }) {}

 private:
  std::jthread thread_;
};

TEST(Recorder, inotify_sees_what_the_run_does_and_in_native_folders_what_others_do) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", dir / "plain", dir / "native"});
  const Fd listener = listen_at(dir / "native/socket");
  const Fd outside(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(::inotify_add_watch(outside.get(), (dir / "plain").c_str(), IN_CREATE), 0);
  // Ends at the first event from the native folder: the one of the plain folder was due before.
  const std::string script = R"(
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(0)
names = {libc.inotify_add_watch(fd, (sys.argv[1] + '/' + n).encode(), 0x100): n for n in ('plain', 'native')}
open(sys.argv[1] + '/plain/go', 'w').close()
seen = []
while not [s for s in seen if s.startswith('native')]:
    data = os.read(fd, 4096)
    while data:
        wd, mask, cookie, size = struct.unpack_from('iIII', data)
        seen.append(names[wd] + '/' + data[16:16 + size].rstrip(b'\0').decode())
        data = data[16 + size:]
print(sorted(seen), os.path.exists(sys.argv[1] + '/plain/outside'))
)";
  RunOptions options;
  options.cwd = "/";
  options.deadline = std::chrono::seconds(30);
  const Outsider outsider(dir);
  const auto done =
      record(dir / "run.txt", {"/usr/bin/python3", "-c", script, dir.path()}, options);
  EXPECT_EQ(done.out, "['native/outside', 'plain/go'] True\n") << done.err;
  const auto& header = read_seen(dir / "run.txt").header;
  EXPECT_TRUE(says(header, dir / "native"));
  EXPECT_TRUE(says(header, "inotify"));
  alignas(inotify_event) char events[1024];
  const ssize_t n = ::read(outside.get(), events, sizeof(events));
  ASSERT_GT(n, 0) << "outside, what the run does is seen";
  EXPECT_STREQ(reinterpret_cast<const inotify_event*>(events)->name, "go");
}

/// Lines of `ps` that hold `text` and are alive.
bool runs(const std::string& text) {
  return run({"sh", "-c",
              "ps -eo stat,args | grep -v '^Z' | grep -v grep | grep -q -- '" + text + "'"})
             .status == 0;
}

TEST(Recorder, whoever_is_killed_nothing_is_left) {
  HEDDLE_STAGED(program, "fs-record");
  struct Case {
    const char* whom;
    const char* signal;
  };
  int number = 0;
  for (const auto& c :
       {Case{"app", "TERM"}, Case{"app", "INT"}, Case{"app", "KILL"}, Case{"recorder", "TERM"},
        Case{"recorder", "INT"}, Case{"recorder", "KILL"}}) {
    SCOPED_TRACE(std::string(c.whom) + " " + c.signal);
    TestDir dir;
    const std::string nap = "31." + std::to_string(++number) + std::to_string(::getpid());
    const bool app = std::string(c.whom) == "app";
    // The shell tells its own pid, its parent is the recorder.
    const std::string script = std::string("exec 2>/dev/null; (sleep 0.2; kill -") + c.signal +
                               " " + (app ? "$$" : "$PPID") + ") & exec sleep " + nap;
    const auto done =
        run({"sh", "-c", "exec \"$0\" -q --out run.txt sh -c \"$1\"", program, script},
            {{}, dir.path(), {}, std::chrono::seconds(20)});
    EXPECT_FALSE(done.timed_out);
    EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return !runs("sleep " + nap); }));
    EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return !runs("--out run.txt sh -c"); }));
    EXPECT_EQ(mounts_with("heddle-record"), 0U);
    EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] {
      return read_seen(dir / "run.txt").ending == trace::Ending::footer;
    }));
    const auto seen = read_seen(dir / "run.txt");
    EXPECT_FALSE(seen.complete());
    EXPECT_GT(seen.events.size(), 10U);
  }
}

TEST(Recorder, proot_serves_where_namespaces_are_forbidden) {
  HEDDLE_STAGED(program, "fs-record");
  if (run({"sh", "-c", "command -v proot && command -v fusermount3"}).status != 0)
    HEDDLE_SKIP("proot or fusermount3 is not installed");
  TestDir dir;
  expect_same(run({"xz", "--help"}),
              record(dir / "run.txt", {"xz", "--help"}, {}, {"--via", "proot"}));
  const auto seen = read_seen(dir / "run.txt");
  EXPECT_TRUE(seen.complete());
  EXPECT_EQ(seen.header.method, "proot");
  EXPECT_EQ(mounts_with("heddle-record"), 0U);
  const std::string nap = "32." + std::to_string(::getpid());
  run({"sh", "-c", "exec \"$0\" -q --via proot --out run.txt sh -c \"$1\"", program,
       "sleep 0.3; kill -KILL $(ps -o ppid= $(ps -o ppid= $$)); sleep " + nap},
      {{}, dir.path(), {}, std::chrono::seconds(20)});
  EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return !runs("sleep " + nap); }));
  EXPECT_TRUE(
      wait_until(std::chrono::seconds(5), [&] { return mounts_with("heddle-record") == 0; }));
}

}  // namespace
}  // namespace heddle::test
