// SPDX-License-Identifier: MIT
// Recorded programs meet processes outside the recording, and mounts.
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/record/recorded.hpp"
#include "tests/support/fuse_kernel.hpp"

namespace heddle::test {
namespace {

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

bool has_note(const trace::RunHeader& header, const std::string& text) {
  return std::any_of(header.notes.begin(), header.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

/// Calls `work` in a thread once `path` exists: the process outside the recording.
std::jthread when_exists(const std::string& path, std::function<void()> work) {
  return std::jthread([path, work = std::move(work)] {
    if (wait_until(std::chrono::seconds(20), [&] { return ::access(path.c_str(), F_OK) == 0; }))
      work();
  });
}

TEST_F(Recorder, connects_native_directories_with_outside_processes) {
  run_checked({"mkdir", dir_ / "plain", dir_ / "native"});
  const Fd listener = listen_at(dir_ / "native/socket");
  const Fd outside(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(::inotify_add_watch(outside.get(), (dir_ / "plain").c_str(), IN_CREATE), 0);
  // Ends at the first event of the native directory; that of the plain directory comes before it.
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
  const auto outsider = when_exists(dir_ / "plain/go", [this] {
    write_text_file(dir_ / "plain/outside", "");
    write_text_file(dir_ / "native/outside", "");
  });
  const auto done = record(trace_, {"/usr/bin/python3", "-c", script, dir_.path()}, {.cwd = "/"});
  EXPECT_EQ(done.out, "['native/outside', 'plain/go'] True\n") << done.err;
  const auto& header = read_seen(trace_).header;
  EXPECT_TRUE(has_note(header, dir_ / "native"));
  EXPECT_TRUE(has_note(header, "inotify"));
  alignas(inotify_event) char events[1024];
  const ssize_t n = ::read(outside.get(), events, sizeof(events));
  ASSERT_GT(n, 0) << "the outside watch misses the run's event";
  EXPECT_STREQ(reinterpret_cast<const inotify_event*>(events)->name, "go");
}

/// Runs `setup` in a new mount namespace and records the script there.
RunResult record_among_mounts(const TestDir& dir, const std::string& setup,
                              const std::string& script) {
  return run(
      {"unshare", "-m", "sh", "-c", setup + " && exec \"$@\"", "sh", staged_program("fs-record"),
       "--quiet", "--out", dir / "run.txt", "--", "/usr/bin/python3", "-c", script},
      {.cwd = dir.path(), .deadline = std::chrono::seconds(30)});
}

TEST_F(Recorder, resolves_directories_that_were_moved_below_each_other) {
  run_checked({"mkdir", "-p", dir_ / "a/b/c"});
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
  const auto outsider = when_exists(dir_ / "go", [this] {
    std::filesystem::rename(dir_ / "a/b", dir_ / "b");
    std::filesystem::rename(dir_ / "a", dir_ / "b/a");
    write_text_file(dir_ / "moved", "");
  });
  const auto done = record_here({"/usr/bin/python3", "-c", script});
  EXPECT_EQ(done.out, "['b', 'go', 'moved', 'run.txt']\n") << done.err;
}

TEST_F(Recorder, opens_a_file_through_the_mount_of_its_path) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount");
  run_checked({"mkdir", dir_ / "rw", dir_ / "ro"});
  write_text_file(dir_ / "rw/f", "");
  const auto done = record_among_mounts(
      dir_, "mount --bind rw ro && mount -o remount,bind,ro ro && mount --bind . rw", R"(
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

TEST_F(Recorder, serves_proc_as_the_caller_sees_it_or_denies_it) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount");
  run_checked({"mkdir", dir_ / "before", dir_ / "later"});
  const auto done = record_among_mounts(dir_,
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

/// ld.so identifies loaded files by (dev, ino) (elf/dl-load.c, _dl_map_object_from_fd()). Each
/// tmpfs starts its inode numbers at the same value.
TEST_F(Recorder, keeps_equal_inode_numbers_of_two_devices_apart) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount two disks");
  run_checked({"mkdir", dir_ / "1", dir_ / "2"});
  for (const std::string n : {"1", "2"})
    build_library(
        {.output = dir_ / (n + ".so"), .source = "int which(void) { return " + n + "; }"});
  const auto done = record_among_mounts(
      dir_, "for n in 1 2; do mount -t tmpfs -o size=1m small $n && cp $n.so $n/lib.so; done",
      "import ctypes, os\nlibs = ['./1/lib.so', './2/lib.so']\n"
      "print([ctypes.CDLL(l).which() for l in libs], len({os.stat(l).st_ino for l in libs}))");
  EXPECT_EQ(done.out, "[1, 2] 2\n") << done.err;
}

/// Reads `f` until `stop` exists.
constexpr const char* kReadOften = R"(
import os
open('go', 'w').close()
while not os.path.exists('stop'): os.close(os.open('f', os.O_RDONLY))
)";

TEST_F(Recorder, lets_processes_outside_write_what_it_reads) {
  write_text_file(dir_ / "f", "old");
  int refused = 0;
  int opened = 0;
  auto outsider = when_exists(dir_ / "go", [&] {
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
         std::chrono::steady_clock::now() < end; ++opened)
      if (!Fd(::open((dir_ / "f").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC))) ++refused;
    write_text_file(dir_ / "stop", "");
  });
  const auto done = record_here({"/usr/bin/python3", "-c", kReadOften});
  outsider.join();
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_GT(opened, 0);
  EXPECT_EQ(refused, 0) << "of " << opened;
}

TEST_F(Recorder, shows_what_a_mapping_outside_writes) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to pass files through");
  HEDDLE_NEEDS_PIDFD_THREAD();  // as old as FUSE_PASSTHROUGH
  write_text_file(dir_ / "f", "old");
  const Fd file(::open((dir_ / "f").c_str(), O_RDWR | O_CLOEXEC));
  auto* shared =
      static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  ASSERT_NE(shared, MAP_FAILED);
  // As if it had not been written to for years.
  const timespec times[] = {{1'600'000'000, 0}, {1'600'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir_ / "f").c_str(), times, 0), 0);
  auto outsider = when_exists(dir_ / "go", [&] {
    std::copy_n("new", 3, shared);
    write_text_file(dir_ / "stop", "");
  });
  const auto done = record_here({"/usr/bin/python3", "-c", R"(
import mmap, os, time
fd = os.open('f', os.O_RDONLY)
m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
before = m[:]
open('go', 'w').close()
while not os.path.exists('stop'): time.sleep(0.01)
print(before, m[:], os.read(fd, 3))
)"});
  outsider.join();
  EXPECT_EQ(done.out, "b'old' b'new' b'new'\n") << done.err;
  ::munmap(shared, 4096);
}

}  // namespace
}  // namespace heddle::test
