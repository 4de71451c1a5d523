// SPDX-License-Identifier: MIT
// The run meets processes that are not of it.
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/record/recorded.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

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

/// Waits for the program's `go`, and then makes a file in each directory, as a process outside
/// does.
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

TEST(Recorder, inotify_and_sockets_of_native_directories_reach_processes_outside) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", dir / "plain", dir / "native"});
  const Fd listener = listen_at(dir / "native/socket");
  const Fd outside(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(::inotify_add_watch(outside.get(), (dir / "plain").c_str(), IN_CREATE), 0);
  // Ends at the first event from the native directory: the one of the plain directory was due
  // before.
  const std::string script = R"(
import ctypes, os, socket, struct, sys
socket.socket(socket.AF_UNIX).connect(sys.argv[1] + '/native/socket')
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

/// Runs `setup`, in a mount namespace of its own, and then records the script there.
RunResult record_among_mounts(const TestDir& dir, const std::string& setup,
                              const std::string& script) {
  RunOptions options;
  options.cwd = dir.path();
  options.deadline = std::chrono::seconds(30);
  return run(
      {"unshare", "-m", "sh", "-c", setup + " && exec \"$@\"", "sh", staged_program("fs-record"),
       "--quiet", "--out", dir / "run.txt", "--", "/usr/bin/python3", "-c", script},
      options);
}

TEST(Recorder, directories_moved_outside_below_each_other_are_no_endless_way) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", "-p", dir / "a/b/c"});
  const std::string script = R"(
import errno, os, time
b = os.open('a/b', os.O_RDONLY)
os.stat('a/b/c')
open('go', 'w').close()
while not os.path.exists('moved'): time.sleep(0.01)
for name in ('a', 'a/../a', 'a'):
    try: os.close(os.open(name, os.O_RDONLY, dir_fd=b))
    except OSError as e:
        if e.errno != errno.ELOOP: print(e)
os.stat('c', dir_fd=b)
print(sorted(os.listdir('.')))
)";
  const std::jthread outsider([&] {
    if (!wait_until(std::chrono::seconds(20),
                    [&] { return ::access((dir / "go").c_str(), F_OK) == 0; }))
      return;
    std::filesystem::rename(dir / "a/b", dir / "b");
    std::filesystem::rename(dir / "a", dir / "b/a");
    write_text_file(dir / "moved", "");
  });
  RunOptions options;
  options.cwd = dir.path();
  options.deadline = std::chrono::seconds(30);
  const auto done = record(dir / "run.txt", {"/usr/bin/python3", "-c", script}, options);
  EXPECT_EQ(done.out, "['b', 'go', 'moved', 'run.txt']\n") << done.err;
}

TEST(Recorder, a_file_is_opened_by_the_mount_it_is_reached_by) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount");
  TestDir dir;
  run_checked({"mkdir", dir / "rw", dir / "ro"});
  write_text_file(dir / "rw/f", "");
  const auto done = record_among_mounts(
      dir, "mount --bind rw ro && mount -o remount,bind,ro ro && mount --bind . rw", R"(
import os
os.close(os.open('rw/rw/f', os.O_RDWR))
def attempt(call):
    try: call(); print('done')
    except OSError as e: print(os.strerror(e.errno))
attempt(lambda: os.open('ro/f', os.O_RDWR))
attempt(lambda: os.chmod('ro/f', 0o600))
attempt(lambda: os.open('rw/rw/f', os.O_RDWR))
)");
  EXPECT_EQ(done.out, "Read-only file system\nRead-only file system\ndone\n") << done.err;
}

TEST(Recorder, no_procfs_is_seen_with_the_recorder_s_eyes) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount");
  TestDir dir;
  run_checked({"mkdir", dir / "before", dir / "later"});
  const auto done = record_among_mounts(dir,
                                        "mount -t proc proc before && "
                                        "{ (while [ ! -e go ]; do sleep 0.05; done; "
                                        "mount -t proc proc later; touch mounted) & }",
                                        R"(
import os, time
print(os.readlink('before/self') == str(os.getpid()))
open('go', 'w').close()
while not os.path.exists('mounted'): time.sleep(0.01)
try: print(os.readlink('later/self'))
except OSError as e: print(os.strerror(e.errno))
)");
  EXPECT_EQ(done.out, "True\nPermission denied\n") << done.err;
}

/// elf/dl-load.c, _dl_map_object_from_fd(): of equal (dev, ino) the second is taken for the first.
/// tmpfs counts its inodes from the same number.
TEST(Recorder, libraries_of_two_devices_with_one_inode_number_stay_two) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount two disks");
  TestDir dir;
  run_checked({"mkdir", dir / "1", dir / "2"});
  for (const std::string n : {"1", "2"})
    build_library({.output = dir / (n + ".so"), .source = "int which(void) { return " + n + "; }"});
  const auto done = record_among_mounts(
      dir, "for n in 1 2; do mount -t tmpfs -o size=1m small $n && cp $n.so $n/lib.so; done",
      "import ctypes, os\nlibs = ['./1/lib.so', './2/lib.so']\n"
      "print([ctypes.CDLL(l).which() for l in libs], len({os.stat(l).st_ino for l in libs}))");
  EXPECT_EQ(done.out, "[1, 2] 2\n") << done.err;
}

}  // namespace
}  // namespace heddle::test
