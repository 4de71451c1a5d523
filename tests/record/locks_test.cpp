// SPDX-License-Identifier: MIT
// Two recordings and an outside process use one file at once.

#include <sched.h>

#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

constexpr int kRounds = 150;

/// Who records, and where: a user's recorder has no passthrough, so the kernel's page cache and
/// direct I/O decide; on one CPU a waiting lock must let the others go on.
enum class World { roots, on_one_cpu, users, users_on_one_cpu };

class Locks : public Recorder,
              public ::testing::WithParamInterface<std::tuple<const char*, World>> {
 protected:
  void SetUp() override {
    Recorder::SetUp();
    if (is_users() && ::geteuid() != 0) HEDDLE_SKIP("only root can become another user");
    fs::permissions(dir_.path(), fs::perms(is_users() ? 0777 : 0755));
  }
  static World world() { return std::get<World>(GetParam()); }
  static bool is_users() { return world() == World::users || world() == World::users_on_one_cpu; }
  /// `argv` in this world.
  static Strings there(const Strings& argv) {
    Strings out;
    if (is_users()) out = {HEDDLE_IN_WORLD, "--uid", "1500", "--fuse", "open", "--"};
    if (world() == World::on_one_cpu || world() == World::users_on_one_cpu)
      out = out + Strings{"taskset", "-c", std::to_string(::sched_getcpu())};
    return out + argv;
  }
  /// `argv` in two recordings and natively, at once. Their outputs.
  std::string run_at_once(const Strings& argv) {
    const RunOptions options{.cwd = dir_.path(), .deadline = std::chrono::seconds(100)};
    RunResult results[3];
    const auto recorded = [&](RunResult& result, const std::string& trace) {
      result =
          run(there(Strings{program_, "--quiet", "--out", dir_ / trace, "--"} + argv), options);
      EXPECT_TRUE(read_seen(dir_ / trace).complete());
    };
    {
      std::jthread one(recorded, std::ref(results[0]), "one.txt");
      std::jthread two(recorded, std::ref(results[1]), "two.txt");
      results[2] = run(there(argv), options);
    }
    std::string out;
    for (const auto& result : results) {
      EXPECT_EQ(result.status, 0) << result.err;
      out += result.out;
      messages_ += result.err;
    }
    return out;
  }

  std::string messages_;  ///< of run_at_once()
};

std::string name_of(const ::testing::TestParamInfo<std::tuple<const char*, World>>& each) {
  constexpr const char* kWorlds[] = {"by_root", "by_root_on_one_cpu", "by_a_user",
                                     "by_a_user_on_one_cpu"};
  return std::string(std::get<0>(each.param)) + "_" +
         kWorlds[static_cast<int>(std::get<World>(each.param))];
}

const auto kAllWorlds =
    ::testing::Values(World::roots, World::on_one_cpu, World::users, World::users_on_one_cpu);

/// `fcntl`, `flock`: one descriptor for the lock, reads and writes. `reread`: the lock is on
/// another file, and the counter is opened for each access.
TEST_P(Locks, exclude_each_other_between_recordings_and_outside_processes) {
  const std::string script = R"(
import fcntl, os, sys
how, rounds = sys.argv[1], int(sys.argv[2])
f = os.open('counter', os.O_RDWR | os.O_CREAT, 0o644)
lock = os.open('lock', os.O_RDWR | os.O_CREAT, 0o644) if how == 'reread' else f
take = fcntl.flock if how == 'flock' else fcntl.lockf
for i in range(rounds):
    take(lock, fcntl.LOCK_EX)
    if how == 'reread':
        with open('counter') as c: value = int(c.read() or '0')
        with open('counter', 'w') as c: c.write('%09d' % (value + 1))
    else:
        value = int(os.pread(f, 20, 0) or b'0')
        os.pwrite(f, b'%d' % (value + 1), 0)
    take(lock, fcntl.LOCK_UN)
)";
  run_at_once({"/usr/bin/python3", "-c", script, std::get<0>(GetParam()), std::to_string(kRounds)});
  EXPECT_EQ(std::stoi(value_or_throw(read_file(dir_ / "counter"))), 3 * kRounds);
}

INSTANTIATE_TEST_SUITE_P(, Locks,
                         ::testing::Combine(::testing::Values("fcntl", "flock", "reread"),
                                            kAllWorlds),
                         name_of);

class Databases : public Locks {};

/// A write-ahead log's index is mapped by all. Without passthrough that is refused while another
/// process has it open: an error is printed, and the row is not there. Rows may be lost to a
/// process outside that opens it later; the recorder reports most of them (docs/recorder.md).
TEST_P(Databases, lose_no_row_that_was_written) {
  if (!is_installed("sqlite3")) HEDDLE_SKIP("sqlite3 is not installed");
  const std::string mode = std::get<0>(GetParam());
  run_checked(
      there({"sqlite3", dir_ / "q.db", "pragma journal_mode=" + mode + "; create table t(a)"}));
  const bool maps_copies = is_users() && mode == "wal";
  const auto out = run_at_once(
      {"sh", "-c",
       "for i in $(seq 20); do sqlite3 -cmd '.timeout 60000' q.db \"insert into t values($i)\" "
       "2>&1 && echo written; done; true"});
  const auto lines = lines_of(out);
  const auto written = std::ranges::count(lines, "written");
  const auto rows =
      run_checked({"sqlite3", dir_ / "q.db", "select count(*) from t; pragma integrity_check"});
  if (maps_copies) {  // nothing else is promised there
    EXPECT_TRUE(rows.out.ends_with("\nok\n")) << rows.out;
    EXPECT_LE(std::stoi(rows.out), written) << out;
    return;
  }
  EXPECT_EQ(rows.out, "60\nok\n") << out;
  EXPECT_EQ(written, 60) << out;
}

/// A user's recording, where mappings are copies: of a file that a process outside writes, or that
/// only the run writes, by a mapping and by two threads.
class Collisions : public Locks {
 protected:
  RunResult record(bool outside) const {
    const auto file = dir_ / "file";
    write_text_file(file, std::string(8192, 'a'));
    EXPECT_EQ(::chown(file.c_str(), 1500, 1500), 0);
    RunResult out;
    {
      std::jthread recording([&] {
        out = run(there({program_, "--quiet", "--out", dir_ / "t.txt", "--", "python3", "-c", R"(
import mmap, os, threading, time
file = os.open('file', os.O_RDWR)
pages = mmap.mmap(file, 8192)
def write():
    for i in range(300): os.pwrite(file, b'b', 4096 + i)
threads = [threading.Thread(target=write) for _ in range(2)]
for t in threads: t.start()
for i in range(300): pages[i] = 99; pages.flush()
for t in threads: t.join()
os.truncate('file', 8192); os.utime('file'); os.posix_fallocate(file, 0, 8192)
pages[1] = 100; pages.flush()
open('ready', 'w').close()
while not os.path.exists('go'): time.sleep(0.01)
pages[2] = 101
pages.close(); os.close(file)
)"}),
                  {.cwd = dir_.path(), .deadline = std::chrono::seconds(100)});
      });
      EXPECT_TRUE(wait_until(std::chrono::seconds(90), [&] { return fs::exists(dir_ / "ready"); }));
      if (outside)
        run_checked({"dd", "if=/dev/zero", "of=" + file, "bs=1", "count=1", "conv=notrunc"});
      write_text_file(dir_ / "go", "");
    }
    EXPECT_EQ(out.status, 0) << out.err;
    fs::remove(dir_ / "ready");
    fs::remove(dir_ / "go");
    return out;
  }
};

TEST_P(Collisions, with_a_process_outside_are_reported_and_the_run_s_own_writes_are_none) {
  EXPECT_EQ(record(false).err, "");
  EXPECT_THAT(record(true).err,
              HasSubstr("file: was written by a process outside while the run had it mapped"));
}

INSTANTIATE_TEST_SUITE_P(, Collisions,
                         ::testing::Combine(::testing::Values("mapped"),
                                            ::testing::Values(World::users,
                                                              World::users_on_one_cpu)),
                         name_of);

INSTANTIATE_TEST_SUITE_P(, Databases,
                         ::testing::Combine(::testing::Values("delete", "wal"), kAllWorlds),
                         name_of);

/// In one recording, or two that map one file.
class RecordersLocks : public Recorder {};

TEST_F(RecordersLocks, behave_as_natively_in_one_recording) {
  const std::string script = R"(
import errno, fcntl, os, signal, struct, sys, threading, time
def lock(f, kind, start, command=fcntl.F_SETLK, pid=0):
    return fcntl.fcntl(f, command, struct.pack('hhqqi4x', kind, 0, start, 1, pid))
def child(call):
    pid = os.fork()
    if pid == 0:
        try: call(); os._exit(0)
        except OSError as e: os._exit(e.errno)
    return pid
def status(pid): return os.waitpid(pid, 0)[1] >> 8
f = os.open('f', os.O_RDWR | os.O_CREAT)
lock(f, fcntl.F_WRLCK, 5)
print('taken', errno.errorcode[status(child(lambda: lock(f, fcntl.F_WRLCK, 5)))])
def holder():
    if struct.unpack('hhqqi4x', lock(f, fcntl.F_WRLCK, 5, fcntl.F_GETLK))[4] != os.getppid(): os._exit(9)
print('held by', status(child(holder)))
os.close(os.open('f', os.O_RDONLY))
print('lost by close', status(child(lambda: lock(f, fcntl.F_WRLCK, 5))))
# A waiting process is killed, and interrupted.
lock(f, fcntl.F_WRLCK, 5)
waiting = child(lambda: lock(f, fcntl.F_WRLCK, 5, fcntl.F_SETLKW))
time.sleep(0.3); os.kill(waiting, signal.SIGKILL); print('killed', os.waitpid(waiting, 0)[1])
def interrupted():
    signal.signal(signal.SIGALRM, lambda *a: (_ for _ in ()).throw(OSError(errno.EINTR, '')))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    lock(f, fcntl.F_WRLCK, 5, fcntl.F_SETLKW)
print('interrupted', errno.errorcode[status(child(interrupted))])
# A deadlock.
go = os.pipe()
def other():
    lock(f, fcntl.F_WRLCK, 6); os.write(go[1], b'x')
    lock(f, fcntl.F_WRLCK, 5, fcntl.F_SETLKW)
pid = child(other); os.read(go[0], 1); time.sleep(0.3)
try: lock(f, fcntl.F_WRLCK, 6, fcntl.F_SETLKW); print('no deadlock')
except OSError as e: print(errno.errorcode[e.errno])
lock(f, fcntl.F_UNLCK, 5); print('goes on', status(pid))
# A read lock by a read-only descriptor.
g = os.open('g', os.O_RDWR | os.O_CREAT); r = os.open('g', os.O_RDONLY)
lock(r, fcntl.F_RDLCK, 1); lock(g, fcntl.F_WRLCK, 2)
print('reader', errno.errorcode[status(child(lambda: lock(g, fcntl.F_WRLCK, 1)))])
)";
  const std::vector<std::string> argv = {"/usr/bin/python3", "-c", script};
  const auto native = run(argv, {.cwd = dir_.path()});
  const auto recorded = record_here(argv);
  EXPECT_EQ(native.status, 0) << native.err;
  EXPECT_EQ(recorded.out, native.out) << recorded.err;
  EXPECT_NE(native.out.find("EDEADL"), std::string::npos) << native.out;
}

/// Also where kernel passthrough sends I/O of the second descriptor to the file of the first.
TEST_F(RecordersLocks, are_released_when_the_open_file_is_closed) {
  const std::string script = R"(
import fcntl, os, signal
open('f', 'w').close()
a, b = os.open('f', os.O_RDWR), os.open('f', os.O_RDWR)
fcntl.flock(a, fcntl.LOCK_EX)
os.close(a)
signal.alarm(10)
fcntl.flock(b, fcntl.LOCK_EX)
print('locked')
)";
  const auto done = record_here({"/usr/bin/python3", "-c", script});
  EXPECT_EQ(done.out, "locked\n") << done.err;
}

/// Two recordings map one counter and increment it in turn. Without kernel passthrough mmap(2)
/// fails.
TEST_F(RecordersLocks, shared_mappings_of_two_recordings_are_coherent_or_refused) {
  const std::string script = R"(
import mmap, os, sys
me = int(sys.argv[1])
f = os.open('m', os.O_RDWR)
try: m = mmap.mmap(f, 4096)
except OSError as e: print('refused'); sys.exit(0)
if me == 0: m[8] = 1
while m[8] == 0: pass
for i in range(100):
    while m[0] % 2 != me: pass
    m[4] = m[4] + 1; m[0] = (m[0] + 1) % 256
)";
  write_text_file(dir_ / "m", std::string(4096, '\0'));
  const RunOptions options{.cwd = dir_.path(), .deadline = std::chrono::seconds(30)};
  RunResult results[2];
  {
    const auto one = [&](int me) {
      results[me] = record(dir_ / (std::to_string(me) + ".txt"),
                           {"/usr/bin/python3", "-c", script, std::to_string(me)}, options);
    };
    std::jthread first(one, 0), second(one, 1);
  }
  if (results[0].out == "refused\n" || results[1].out == "refused\n")
    HEDDLE_SKIP("this kernel has no FUSE passthrough: mmap is refused");
  EXPECT_EQ(results[0].status, 0) << results[0].err;
  EXPECT_EQ(results[1].status, 0) << results[1].err;
  EXPECT_EQ(value_or_throw(read_file(dir_ / "m"))[4], static_cast<char>(200));
}

}  // namespace
}  // namespace heddle::test
