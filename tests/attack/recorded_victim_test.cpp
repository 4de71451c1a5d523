// SPDX-License-Identifier: MIT
//
// A program that root records works in a directory that another user owns and keeps exchanging for
// symbolic links. Its operations by descriptors must not leave the directory, as natively.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

constexpr unsigned kAttacker = 1000;
constexpr int kExchanges = 10'000;

/// `fs-record --quiet --out TRACE -- ARGV`.
RunResult record(const std::string& trace, const Strings& argv,
                 std::chrono::milliseconds deadline = 60s) {
  return run(Strings{staged_program("fs-record"), "--quiet", "--out", trace, "--"} + argv,
             {.deadline = deadline});
}

/// The names, attributes and contents of everything below `directory`.
std::string snapshot(const std::string& directory) {
  return run_checked({"sh", "-c",
                      "cd \"$0\" && find . -printf '%p %y %m %U %G %n %s %T@ %C@ %l\\n' | sort; "
                      "find . -type f -exec sha256sum {} + | sort",
                      directory})
      .out;
}

/// The attacker, a process of user 1000. Keeps exchanging its own `directory` for a link to
/// `target` and back.
class Swapper {
 public:
  Swapper(const std::string& directory, const std::string& target) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    if (::setgid(kAttacker) != 0 || ::setuid(kAttacker) != 0) ::_exit(1);
    const std::string aside = directory + ".aside", link = directory + ".link";
    if (::symlink(target.c_str(), link.c_str()) != 0) ::_exit(2);
    for (int i = 0; i < kExchanges || ::getppid() != 1; ++i) {
      (void)!::rename(directory.c_str(), aside.c_str());
      (void)!::rename(link.c_str(), directory.c_str());
      (void)!::rename(directory.c_str(), link.c_str());
      (void)!::rename(aside.c_str(), directory.c_str());
      if (i == kExchanges) (void)!::mkdir((directory + ".done").c_str(), 0777);
    }
    ::_exit(0);
  }
  ~Swapper() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Swapper(const Swapper&) = delete;
  Swapper& operator=(const Swapper&) = delete;

 private:
  pid_t pid_;
};

class RecordedVictim : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_STAGED(program, "fs-record");
    if (::geteuid() != 0) HEDDLE_SKIP("needs root, to be attacked by another user");
    run_checked({"chmod", "0755", dir_.path()});
    run_checked({"mkdir", dir_ / "att", dir_ / "att/d", dir_ / "victim"});
    run_checked({"chown", "-R", "1000:1000", dir_ / "att"});
  }
  /// Records a Python script.
  RunResult record_script(const std::string& script, const std::string& argument) const {
    return record(dir_ / "run.txt", {"/usr/bin/python3", "-c", script, argument}, 300s);
  }
  TestDir dir_;
};

/// root's program. Works by descriptors of the directory and of its files during 10,000 exchanges,
/// with names that the victim's directory has too. It prints each result that is impossible
/// natively.
const char* kCareful = R"(
import os, sys, errno
base = sys.argv[1]
while True:
    try: d = os.open(base + '/d', os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW); break
    except OSError: pass
keep = os.open('keep', os.O_RDWR | os.O_CREAT, 0o644, dir_fd=d)
path = os.open('keep', os.O_PATH | os.O_NOFOLLOW, dir_fd=d)
rounds = 0
def attempt(what, call):
    try: return call()
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.EEXIST): print(what, e)
while not os.path.exists(base + '/d.done') or rounds < 200:
    rounds += 1
    f = attempt('create', lambda: os.open('new', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=d))
    if f is not None: os.write(f, b'mine'); os.close(f)
    f = attempt('trunc', lambda: os.open('t', os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=d))
    if f is not None: os.write(f, b'mine'); os.close(f)
    f = attempt('open', lambda: os.open('t', os.O_RDONLY | os.O_NOFOLLOW, dir_fd=d))
    if f is not None:
        if os.read(f, 100) != b'mine': print('read what is not mine')
        os.close(f)
    attempt('rename', lambda: os.rename('new', 'r', src_dir_fd=d, dst_dir_fd=d))
    attempt('link', lambda: os.link('t', 'l', src_dir_fd=d, dst_dir_fd=d, follow_symlinks=False))
    attempt('fchmod', lambda: os.fchmod(keep, 0o666 if rounds % 2 else 0o640))
    attempt('fchown', lambda: os.fchown(keep, 1000, rounds % 2))
    attempt('fsetxattr', lambda: os.setxattr(keep, 'trusted.x', b'%d' % rounds))
    attempt('futimens', lambda: os.utime(keep, (rounds, rounds)))
    attempt('ftruncate', lambda: os.ftruncate(keep, rounds % 100))
    attempt('chmodat', lambda: os.chmod('/proc/self/fd/%d' % path, 0o640))
    attempt('symlink', lambda: os.symlink('x', 's', dir_fd=d))
    attempt('mkdir', lambda: os.mkdir('m', dir_fd=d))
    attempt('rmdir', lambda: os.rmdir('m', dir_fd=d))
    for name in ('r', 't', 'l', 's'): attempt('unlink', lambda: os.unlink(name, dir_fd=d))
    listed = set(os.listdir(d))
    if listed - {'keep'}: print('listed', listed)
    if rounds % 50 == 0:
        f = os.open('x', os.O_CREAT | os.O_WRONLY, 0o755, dir_fd=d)
        os.write(f, b'#!/bin/sh\nexit 0\n'); os.close(f)
        pid = os.fork()
        if pid == 0:
            try: os.chdir(d); os.execv('./x', ['x'])
            except OSError as e: os._exit(100 + e.errno)
        status = os.waitpid(pid, 0)[1]
        if status != 0: print('exec', status)
        os.unlink('x', dir_fd=d)
print('rounds', rounds)
)";

TEST_F(RecordedVictim, directory_exchanged_for_a_link_redirects_no_request) {
  const auto victim = dir_ / "victim";
  for (const char* name : {"keep", "t", "r", "l", "s"})
    write_text_file(victim + "/" + name, std::string("root's ") + name, 0600);
  write_text_file(victim + "/x", "#!/bin/sh\nexit 77\n", 0755);
  run_checked({"mkdir", victim + "/m"});
  const auto before = snapshot(victim);
  RunResult done;
  {
    const Swapper swapper(dir_ / "att/d", victim);
    done = record_script(kCareful, dir_ / "att");
  }
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out.substr(0, 7), "rounds ") << done.out;
  EXPECT_EQ(snapshot(victim), before);
}

/// The exchange is made between two operations, so there is no race: removal, mode, owner, O_TRUNC,
/// O_EXCL.
TEST_F(RecordedVictim, descriptors_keep_the_files_they_were_opened_on) {
  const auto victim = dir_ / "victim";
  for (const std::string name : {"f", "m", "t"}) {
    write_text_file(victim + "/" + name, "root's", 0600);
    write_text_file(dir_ / ("att/d/" + name), "a");
  }
  const auto before = snapshot(victim);
  const std::string script = R"(
import os, sys, time
base = sys.argv[1]
d = os.open(base + '/d', os.O_RDONLY | os.O_DIRECTORY)
m = os.open('m', os.O_RDONLY, dir_fd=d)
os.chdir(d)
open(base + '/go', 'w').close()
while not os.path.exists(base + '/swapped'): time.sleep(0.01)
os.unlink('f', dir_fd=d)
os.fchmod(m, 0o666); os.fchown(m, 1000, 1000); os.setxattr(m, 'trusted.a', b'1')
t = os.open('t', os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, dir_fd=d)
n = os.open('new', os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=d)
os.rename('new', 'renamed', src_dir_fd=d, dst_dir_fd=d)
open('by_cwd', 'w').close()
print(sorted(os.listdir(base + '/real')), oct(os.stat(base + '/real/m').st_mode), os.stat(base + '/real/t').st_size)
)";
  std::jthread outsider([&] {
    if (!wait_until(20s, [&] { return fs::exists(dir_ / "att/go"); })) return;
    fs::rename(dir_ / "att/d", dir_ / "att/real");
    fs::create_symlink(victim, dir_ / "att/d");
    write_text_file(dir_ / "att/swapped", "");
  });
  const auto done = record_script(script, dir_ / "att");
  EXPECT_EQ(done.out, "['by_cwd', 'm', 'renamed', 't'] 0o100666 0\n") << done.err;
  EXPECT_EQ(snapshot(victim), before);
}

/// The attacker holds a lease on its program's interpreter, so that the recorder's open of it
/// blocks until the directory is exchanged. Only then the kernel reads the program's capabilities.
TEST_F(RecordedVictim, program_gets_no_capability_of_a_replacing_file) {
  const auto d = dir_ / "att/d";
  write_text_file(
      dir_ / "prog.c",
      "#include <stdio.h>\n#include <unistd.h>\n"
      "int main(void){int rc=setuid(0);printf(\"%d %d\\n\",rc,(int)getuid());return 0;}\n");
  run_checked({"gcc", "-o", d + "/prog", dir_ / "prog.c", "-Wl,--dynamic-linker=" + d + "/interp"});
  run_checked({"cp", "-L", "/lib64/ld-linux-x86-64.so.2", d + "/interp"});
  run_checked({"chown", "-R", "1000:1000", d});
  run_checked({"cp", d + "/prog", dir_ / "victim/prog"});
  if (run({"setcap", "cap_setuid+ep", dir_ / "victim/prog"}).status != 0)
    HEDDLE_SKIP("setcap does not work here");
  const std::string leaser = R"(
import fcntl, os, signal, sys
base, victim = sys.argv[1:]
os.setgid(1000); os.setuid(1000)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
f = os.open(base + '/d/interp', os.O_RDONLY)
fcntl.fcntl(f, 1024, fcntl.F_WRLCK)
open(base + '/leased', 'w').close()
signal.sigtimedwait([signal.SIGIO], 30)
os.rename(base + '/d', base + '/real'); os.symlink(victim, base + '/d')
open(base + '/swapped', 'w').close()
fcntl.fcntl(f, 1024, fcntl.F_UNLCK)
)";
  std::jthread outsider([&] {
    (void)run({"/usr/bin/python3", "-c", leaser, dir_ / "att", dir_ / "victim"});
  });
  ASSERT_TRUE(wait_until(20s, [&] { return fs::exists(dir_ / "att/leased"); }));
  const auto done = record(
      dir_ / "run.txt", {"setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", d + "/prog"});
  EXPECT_TRUE(fs::exists(dir_ / "att/swapped")) << "the lease was never asked for";
  EXPECT_EQ(done.out, "-1 1000\n") << done.err;
}

/// Runs the script as user 1000, natively and recorded by root, and compares the outputs.
void expect_same_for_user(const TestDir& dir, const std::string& script) {
  const Strings argv = {"setpriv",          "--reuid=1000", "--regid=1000", "--clear-groups",
                        "/usr/bin/python3", "-c",           script,         dir.path()};
  const auto native = run(argv);
  const auto recorded = record(dir / "run.txt", argv);
  EXPECT_EQ(recorded.out, native.out) << recorded.err;
  EXPECT_EQ(recorded.status, native.status);
  EXPECT_FALSE(native.out.empty()) << native.err;
}

TEST_F(RecordedVictim, special_files_have_their_native_permissions) {
  for (const std::string mode : {"600", "640", "644", "622", "666"}) {
    run_checked({"mkfifo", "-m", mode, dir_ / ("fifo" + mode)});
    run_checked({"mknod", "-m", mode, dir_ / ("null" + mode), "c", "1", "3"});
    const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const auto path = dir_ / ("sock" + mode);
    std::copy(path.begin(), path.end(), address.sun_path);
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    run_checked({"chmod", mode, path});
  }
  run_checked({"mkfifo", "-m", "600", dir_ / "acl"});
  run_checked({"mkfifo", "-m", "666", dir_ / "not_acl"});
  const auto set_acl = [&](const std::string& name, int permissions) {
    return run({"/usr/bin/python3", "-c",
                "import os,struct,sys\n"
                "acl=((1,6,-1),(2,int(sys.argv[2]),1000),(4,6,-1),(16,6,-1),(32,6,-1))\n"
                "os.setxattr(sys.argv[1],'system.posix_acl_access',struct.pack('<I',2)+"
                "b''.join(struct.pack('<HHi',*e) for e in acl))",
                dir_ / name, std::to_string(permissions)});
  };
  EXPECT_EQ(set_acl("acl", 6).status, set_acl("not_acl", 0).status);
  expect_same_for_user(dir_, R"(
import os, socket, sys
def attempt(what, call):
    try: call(); print(what, 'ok')
    except OSError as e: print(what, e.errno)
os.chdir(sys.argv[1])
for name in sorted(n for n in os.listdir('.') if n[:4] in ('fifo', 'null', 'acl', 'not_')):
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        attempt((name, flags), lambda: os.close(os.open(name, flags | os.O_NONBLOCK)))
    attempt((name, 'stat'), lambda: os.stat(name))
    attempt((name, 'chmod'), lambda: os.chmod(name, 0o777))
    attempt((name, 'unlink'), lambda: os.unlink(name))
for name in sorted(n for n in os.listdir('.') if n.startswith('sock')):
    attempt(name, lambda: socket.socket(socket.AF_UNIX).connect(name))
)");
}

TEST_F(RecordedVictim, attribute_names_are_the_native_ones) {
  write_text_file(dir_ / "f", "", 0644);
  ASSERT_EQ(::setxattr((dir_ / "f").c_str(), "trusted.secret", "1", 1, 0), 0);
  ASSERT_EQ(::setxattr((dir_ / "f").c_str(), "user.open", "1", 1, 0), 0);
  expect_same_for_user(dir_, "import os,sys; print(os.listxattr(sys.argv[1] + '/f'))");
}

/// The kernel caches directory entries for a second and does not ask the recorder on a path walk.
TEST_F(RecordedVictim, closed_directory_stays_closed_while_root_walks_through_it) {
  run_checked({"mkdir", "-p", dir_ / "closed/below"});
  write_text_file(dir_ / "closed/below/f", "secret", 0644);
  run_checked({"chmod", "0700", dir_ / "closed"});
  const std::string script = R"(
import os, sys
f = sys.argv[1] + '/closed/below/f'
out = []
for i in range(50):
    os.stat(f)
    pid = os.fork()
    if pid == 0:
        os.setgroups([]); os.setgid(1000); os.setuid(1000)
        try: os.stat(f); os._exit(1)
        except PermissionError: os._exit(0)
    out.append(os.waitpid(pid, 0)[1])
print(sum(out))
)";
  const auto done = record_script(script, dir_.path());
  EXPECT_EQ(done.out, "0\n") << done.err;
}

TEST_F(RecordedVictim, capabilities_decide_and_not_uid_0) {
  write_text_file(dir_ / "f", "secret", 0600);
  run_checked({"chown", "1234:1234", dir_ / "f"});
  const std::string read = "try: print(open('" + dir_ / "f" +
                           "').read())\n"
                           "except OSError as e: print(e.errno)";
  for (const auto& wrapper :
       std::vector<Strings>{{"setpriv", "--bounding-set=-all", "--inh-caps=-all"},
                            {"unshare", "--user", "--map-root-user"},
                            {"setpriv", "--reuid=1000", "--regid=1000", "--clear-groups",
                             "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"}}) {
    auto argv = wrapper;
    argv.insert(argv.end(), {"/usr/bin/python3", "-c", read});
    const auto native = run(argv);
    const auto recorded = record(dir_ / "run.txt", argv);
    EXPECT_EQ(recorded.out, native.out) << wrapper.back() << recorded.err;
  }
}

/// The list of groups is longer than what one read of /proc/TID/status returns.
TEST_F(RecordedVictim, exactly_the_callers_groups_count) {
  for (const unsigned group : {101'999U, 103'000U}) {
    const auto name = dir_ / std::to_string(group);
    write_text_file(name, "secret", 0040);
    run_checked({"chown", "0:" + std::to_string(group), name});
  }
  const std::string script = R"(
import os, sys
os.setgroups(range(100000, 102000)); os.setgid(1000); os.setuid(1000)
for name in ('101999', '103000'):
    try: print(open(sys.argv[1] + '/' + name).read())
    except OSError as e: print(e.errno)
)";
  const auto done = record_script(script, dir_.path());
  EXPECT_EQ(done.out, "secret\n13\n") << done.err;
}

TEST_F(RecordedVictim, killed_recorder_leaves_one_error_and_nothing_else) {
  const std::string script = R"(
import ctypes, os, signal, sys
ctypes.CDLL(None).mlockall(1)  # later page faults would fail
f = open(sys.argv[1] + '/kept', 'w'); f.write('written'); f.flush()
open(sys.argv[1] + '/empty', 'w').close()
mark = sys.argv[1].encode()
for p in os.listdir('/proc'):
    try:
        if p.isdigit() and open('/proc/%s/comm' % p).read() == 'fs-record:serve\n' and \
           mark in open('/proc/%s/environ' % p, 'rb').read(): os.kill(int(p), signal.SIGKILL)
    except OSError: pass
try:
    for i in range(1000): os.stat('/etc/passwd')
    os.write(1, b'answered')
except OSError as e: os.write(1, b'%d' % e.errno)
)";
  const auto done = run({staged_program("fs-record"), "--out", dir_ / "run.txt", "--",
                         "/usr/bin/python3", "-c", script, dir_.path()},
                        {.env = {"HEDDLE_TEST_MARK=" + dir_.path()}});
  EXPECT_TRUE(done.out == std::to_string(ENOTCONN) || done.out == std::to_string(ECONNABORTED))
      << done.out;
  EXPECT_EQ(done.status, 3);
  EXPECT_NE(done.err.find("the recorder died: killed by signal 9"), std::string::npos) << done.err;
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
  EXPECT_EQ(mounts_with("heddle-record"), 0U);
  EXPECT_EQ(value_or_throw(read_file(dir_ / "kept")), "written");
  EXPECT_TRUE(fs::exists(dir_ / "empty"));
  EXPECT_EQ(value_or_throw(read_file(dir_ / "run.txt")).find("#end"), std::string::npos);
}

}  // namespace
}  // namespace heddle::test
