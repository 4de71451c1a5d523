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

}  // namespace
}  // namespace heddle::test
