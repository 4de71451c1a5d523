// SPDX-License-Identifier: MIT
// A recording outlives the process that serves it: the program notices nothing, and the trace lacks
// nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/sandbox/sanitized.hpp"
#include "tests/record/recorded.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using trace::Op;

/// A build with ThreadSanitizer takes longer to begin than seven milliseconds.
constexpr auto kPause = kSanitized ? 300ms : 7ms;
/// Kills that there must have been; with long pauses there are few.
constexpr unsigned at_least(unsigned kills) { return kSanitized ? 1 : kills; }
const char* kWorker = "fs-record:work";

int rounds() {
  const char* seconds = std::getenv("HEDDLE_TEST_SECONDS");
  return 40 * (seconds ? std::atoi(seconds) : 1);
}

/// Kills the workers of the recordings that have `mark`, one after the other.
class Killer {
 public:
  explicit Killer(const std::string& mark, std::chrono::milliseconds pause = kPause) {
    thread_ = std::jthread([this, mark, pause](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        for (const int pid : recorders(mark, kWorker)) kills_ += ::kill(pid, SIGKILL) == 0 ? 1 : 0;
        // The more files are known, the longer a worker takes before it can answer anything.
        std::this_thread::sleep_for(pause + kills_.load() * 50us);
      }
    });
  }
  unsigned stop() {
    thread_ = {};
    return kills_;
  }

 private:
  std::atomic<unsigned> kills_ = 0;
  std::jthread thread_;
};

/// What programs do to files that must not be done twice, nor left out, by four processes at once.
/// It prints what went wrong, and at the end what there is.
const char* kChanges = R"(
import os, sys, ctypes
libc = ctypes.CDLL(None, use_errno=True)
def exchange(a, b):
    if libc.renameat2(-100, a.encode(), -100, b.encode(), 2) != 0:
        raise OSError(ctypes.get_errno(), 'exchange')
def change(d):
    os.mkdir(d)
    f = os.open(d + '/a', os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o444)
    for i in range(12): os.write(f, b'line %d\n' % i)
    os.close(f)
    lines = ''.join('line %d\n' % i for i in range(12))
    if open(d + '/a').read() != lines: print('appended:', open(d + '/a').read())
    os.link(d + '/a', d + '/b')
    os.symlink('a', d + '/s')
    os.rename(d + '/b', d + '/c')
    os.mkfifo(d + '/p')
    with open(d + '/x', 'w') as x: x.write('x' * 5000)
    exchange(d + '/x', d + '/c')
    if open(d + '/c').read() != 'x' * 5000: print('not exchanged')
    gone = open(d + '/gone', 'w+')
    gone.write('still here'); gone.flush()
    os.unlink(d + '/gone')
    gone.seek(0)
    if gone.read() != 'still here': print('lost')
    t = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(t, b'tmp')
    os.link('/proc/self/fd/%d' % t, d + '/t', src_dir_fd=t)
    os.close(t)
    os.mkdir(d + '/e'); os.rmdir(d + '/e')
    os.truncate(d + '/c', 777)
    os.utime(d + '/c', ns=(5, 7))
    try:
        os.setxattr(d + '/c', 'user.n', b'v', os.XATTR_CREATE)
        os.removexattr(d + '/c', 'user.n')
    except OSError as e:
        if e.errno != 95: raise
    for name in os.listdir(d + '/..'):
        if name.startswith('none'): print(name)
    if os.stat(d + '/c').st_mtime_ns != 7 or os.path.exists(d + '/gone'): print('attributes')
pids = []
for p in range(4):
    pid = os.fork()
    if pid == 0:
        for i in range(int(sys.argv[2])): change('%s/%d-%d' % (sys.argv[1], p, i))
        os._exit(0)
    pids.append(pid)
for pid in pids: print(os.waitpid(pid, 0)[1])
print(len(os.listdir(sys.argv[1])))
)";

std::vector<std::string> changes(const std::string& folder) {
  return {"/usr/bin/python3", "-c", kChanges, folder, std::to_string(rounds())};
}

/// What changes files, each as `op result path`, sorted.
std::vector<std::string> changes_in(const SeenTrace& seen, const std::string& below) {
  static constexpr Op kOps[] = {Op::create,  Op::rename,   Op::unlink, Op::mkdir,    Op::link,
                                Op::symlink, Op::rmdir,    Op::mknod,  Op::truncate, Op::chmod,
                                Op::utimens, Op::setxattr, Op::close};
  std::vector<std::string> out;
  for (const auto& e : seen.events)
    if (std::find(std::begin(kOps), std::end(kOps), e.op) != std::end(kOps) &&
        e.path.starts_with(below))
      out.push_back(std::string(trace::op_name(e.op)) + " " + std::to_string(e.error) + " " +
                    e.path);
  std::sort(out.begin(), out.end());
  return out;
}

std::size_t lines_with(const std::string& path, const std::string& text) {
  const auto all = value_or_throw(read_file(path));
  std::size_t count = 0;
  for (std::size_t at = 0; (at = all.find(text, at)) != std::string::npos; ++at) ++count;
  return count;
}

class Workers : public ::testing::Test {
 protected:
  void SetUp() override { HEDDLE_STAGED(program, "fs-record"); }
  RunOptions marked() const {
    RunOptions options;
    options.env = {mark_};
    options.deadline = std::chrono::seconds(100);
    return options;
  }
  /// Of the recordings of this case.
  void end_all() const {
    for (const int pid : recorders(mark_)) ::kill(pid, SIGKILL);
  }
  TestDir dir_;
  std::string mark_ = "HEDDLE_TEST_MARK=" + dir_.path();
};

TEST_F(Workers, killed_again_and_again_are_noticed_by_nobody) {
  run_checked({"mkdir", dir_ / "native", dir_ / "files"});
  const auto native = run(changes(dir_ / "native"));
  const auto quiet = record(dir_ / "quiet.txt", changes(dir_ / "files"), marked());
  EXPECT_EQ(quiet.out, native.out) << quiet.err;
  run_checked({"rm", "-r", dir_ / "files"});
  run_checked({"mkdir", dir_ / "files"});
  Killer killer(mark_);
  const auto recorded = record(dir_ / "run.txt", changes(dir_ / "files"), marked());
  const auto kills = killer.stop();
  if (recorded.timed_out) end_all();
  EXPECT_EQ(recorded.status, 0) << recorded.err;
  EXPECT_EQ(recorded.out, native.out);
  EXPECT_EQ(recorded.err, native.err);
  EXPECT_EQ(run({"diff", "-r", "--no-dereference", "--exclude=p", dir_ / "native", dir_ / "files"})
                .status,
            0);
  const auto seen = read_seen(dir_ / "run.txt");
  EXPECT_TRUE(seen.complete());
  EXPECT_GE(seen.footer.workers_lost, at_least(11));
  EXPECT_LE(seen.footer.workers_lost, kills);
  EXPECT_EQ(lines_with(dir_ / "run.txt", "\n#lost\t"), seen.footer.workers_lost);
  EXPECT_EQ(changes_in(seen, dir_ / "files"),
            changes_in(read_seen(dir_ / "quiet.txt"), dir_ / "files"));
}

TEST_F(Workers, killed_leave_files_as_they_are_natively) {
  run_checked({"mkdir", dir_ / "native", dir_ / "recorded"});
  const auto native = run({HEDDLE_FS_PROBE, dir_ / "native"});
  Killer killer(mark_, std::max(kPause, 30ms));
  const auto recorded = record(dir_ / "run.txt", {HEDDLE_FS_PROBE, dir_ / "recorded"}, marked());
  EXPECT_GT(killer.stop(), 0U);
  if (recorded.timed_out) end_all();
  EXPECT_EQ(recorded.status, native.status) << recorded.err;
  EXPECT_EQ(recorded.out, native.out);
  EXPECT_TRUE(read_seen(dir_ / "run.txt").complete());
}

TEST_F(Workers, killed_while_a_project_is_built_change_nothing_of_it) {
  const std::string script =
      "set -e; mkdir \"$0\"; cd \"$0\"; for i in 1 2 3 4 5 6; do printf '#include <stdio.h>\\nint "
      "f%d(void){return printf(\"%d\\\\n\");}\\n' $i $i > f$i.c; done; printf 'int f1(void);int "
      "f6(void);int main(void){return f1()+f6()-4;}\\n' > m.c; printf 'app: m.o f1.o f2.o f3.o "
      "f4.o "
      "f5.o f6.o\\n\\tcc -o app $^\\n%%.o: %%.c\\n\\tcc -O1 -c -o $@ $<\\n' > Makefile; make -s "
      "-j2; ./app; make -s; git init -q .; git add -A; git -c user.name=a -c user.email=b commit "
      "-q "
      "-m c; git fsck --no-progress; rm -rf .git; ls";
  const auto native = run({"sh", "-c", script, dir_ / "native"});
  Killer killer(mark_);
  const auto recorded = record(dir_ / "run.txt", {"sh", "-c", script, dir_ / "recorded"}, marked());
  EXPECT_GE(killer.stop(), at_least(11));
  if (recorded.timed_out) end_all();
  EXPECT_EQ(recorded.status, 0) << recorded.err;
  EXPECT_EQ(recorded.status, native.status);
  EXPECT_EQ(recorded.out, native.out);
  EXPECT_EQ(recorded.err, native.err);
  EXPECT_EQ(run({"diff", "-r", dir_ / "native", dir_ / "recorded"}).status, 0);
  EXPECT_TRUE(read_seen(dir_ / "run.txt").complete());
}

TEST_F(Workers, killed_lose_no_event_and_tell_none_twice) {
  const std::string script =
      "import os,sys\nf=os.open(sys.argv[1],os.O_CREAT|os.O_WRONLY)\n"
      "for i in range(int(sys.argv[2])):\n os.pwrite(f,b'x',i)\n"
      " try: os.stat(sys.argv[1]+'-%d'%i)\n except OSError: pass\n";
  const int count = 100 * rounds() * (kSanitized ? 5 : 1);
  Killer killer(mark_);
  const auto recorded = record(
      dir_ / "run.txt", {"/usr/bin/python3", "-c", script, dir_ / "f", std::to_string(count)},
      marked(), {"--io", "--json"});
  EXPECT_GE(killer.stop(), at_least(4));
  EXPECT_EQ(recorded.status, 0) << recorded.err;
  const auto seen = read_seen(dir_ / "run.txt");
  std::int64_t bytes = 0;
  std::vector<std::string> missed, expected;
  for (const auto& e : seen.events) {
    if (e.op == Op::write && e.path == dir_ / "f") bytes += e.bytes;
    if (e.op == Op::lookup && e.error == ENOENT && e.path.starts_with(dir_ / "f-"))
      missed.push_back(e.path);
  }
  for (int i = 0; i < count; ++i) expected.push_back(dir_ / ("f-" + std::to_string(i)));
  EXPECT_EQ(bytes, count);
  EXPECT_EQ(missed, expected);
  EXPECT_GT(seen.footer.workers_lost, 0U);
}

/// Python: kill() kills the worker that serves us, and returns when another does.
const char* kKill = R"(
import os, time
def worker():
    mark = os.environb[b'HEDDLE_TEST_MARK']
    for p in os.listdir('/proc'):
        try:
            if p.isdigit() and open('/proc/%s/comm' % p).read().startswith('fs-record:work') \
               and mark in open('/proc/%s/environ' % p, 'rb').read(): return int(p)
        except OSError: pass
def kill():
    w = worker()
    os.kill(w, 9)
    while worker() in (None, w): time.sleep(0.001)
)";

TEST_F(Workers, those_that_follow_know_what_is_open_and_what_has_no_name) {
  const std::string script = std::string(kKill) + R"(
import sys
os.chdir(sys.argv[1])
kept = open('kept', 'w+'); kept.write('one ')
gone = open('gone', 'w+'); gone.write('still '); gone.flush(); os.unlink('gone')
log = os.open('log', os.O_CREAT | os.O_WRONLY | os.O_APPEND); os.write(log, b'1')
tmp = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(tmp, b'tmp')
os.mkdir('cwd'); os.chdir('cwd'); os.rmdir('../cwd')
os.mkdir('../many')
for i in range(300): open('../many/%03d' % i, 'w').close()
many = os.scandir('../many'); first = next(many).name
numbers = {f: os.stat(f).st_ino for f in (sys.argv[1] + '/kept', '/etc/passwd', '/usr/bin/env')}
fds = len(os.listdir('/proc/%d/fd' % worker()))
for i in range(5): kill()
print({f: os.stat(f).st_ino for f in numbers} == numbers)
print(sorted([first] + [e.name for e in many]) == ['%03d' % i for i in range(300)])
kept.write('two'); kept.seek(0); print(kept.read())
gone.write('here'); gone.seek(0); print(gone.read())
os.chdir(sys.argv[1])
with open('log', 'a') as other: other.write('2')
os.write(log, b'3'); print(open('log').read())
os.lseek(tmp, 0, 0); print(os.read(tmp, 9))
os.link('/proc/self/fd/%d' % tmp, 'tmp', src_dir_fd=tmp); print(open('tmp').read())
print(abs(len(os.listdir('/proc/%d/fd' % worker())) - fds) < 5)
)";
  run_checked({"mkdir", dir_ / "d"});
  const auto done =
      record(dir_ / "run.txt", {"/usr/bin/python3", "-c", script, dir_ / "d"}, marked());
  EXPECT_EQ(done.out, "True\nTrue\none two\nstill here\n123\nb'tmp'\ntmp\nTrue\n") << done.err;
  const auto seen = read_seen(dir_ / "run.txt");
  EXPECT_TRUE(seen.complete());
  EXPECT_EQ(seen.footer.workers_lost, 5U);
  const auto closes = seen.places(Op::close);
  EXPECT_EQ(std::count(closes.begin(), closes.end(), dir_ / "d/kept"), 1);
}

TEST_F(Workers, a_supervisor_that_is_killed_leaves_nothing) {
  const std::string script = std::string(kKill) + R"(
os.kill(int(open('/proc/%d/stat' % worker()).read().rsplit(')', 1)[1].split()[1]), 9)
while worker(): time.sleep(0.001)
try: os.stat('/etc/passwd')
except OSError as e: os.write(1, b'gone'); os._exit(5)
)";
  const auto done = record(dir_ / "run.txt", {"/usr/bin/python3", "-c", script}, marked());
  EXPECT_EQ(done.out, "gone");
  EXPECT_NE(done.status, 0);
  EXPECT_THAT(done.err, HasSubstr("the recorder has gone"));
  EXPECT_TRUE(wait_until(5s, [&] { return recorders(mark_).empty(); }));
  EXPECT_EQ(mounts_with("heddle-record"), 0U);
  EXPECT_FALSE(read_seen(dir_ / "run.txt").complete());
}

}  // namespace
}  // namespace heddle::test
