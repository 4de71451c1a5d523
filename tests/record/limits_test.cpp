// SPDX-License-Identifier: MIT
// What differs from a native run, all of it: docs/recorder.md has the same list.

#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

using RecorderLimits = Recorder;

/// Prints `name: result` for each property of files in the working directory.
constexpr const char* kProbe = R"(
import ctypes, errno, fcntl, os, struct, time
libc = ctypes.CDLL(None, use_errno=True)
def call(rc): return 'ok' if rc >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(do):
    try: return do()
    except OSError as e: return errno.errorcode[e.errno]
def say(name, result): print(name + ': ' + str(result))
long = ctypes.c_long
fd = os.open('f', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'x' * 65536)
os.fsync(fd)
buf = ctypes.create_string_buffer(256)
libc.fstatfs(fd, buf)
say('f_type', hex(struct.unpack_from('Q', buf)[0]))
say('df', os.popen('df --output=fstype . | tail -1').read().strip())
say('LINK_MAX', os.pathconf('f', 'PC_LINK_MAX'))
say('FILESIZEBITS', os.pathconf('f', 'PC_FILESIZEBITS'))
say('NAME_MAX', os.pathconf('f', 'PC_NAME_MAX'))
say('FIEMAP', attempt(lambda: fcntl.ioctl(fd, 0xC020660B, struct.pack('QQIIII', 0, 1 << 40, 0, 0, 0, 0)) and 'ok'))
say('FICLONE', attempt(lambda: fcntl.ioctl(os.open('g', os.O_RDWR | os.O_CREAT), 0x40049409, fd)))
say('label', attempt(lambda: fcntl.ioctl(fd, 0x81009431, bytes(256)).rstrip(b'\0')))
say('COLLAPSE_RANGE', call(libc.fallocate(fd, 8, long(0), long(4096))))
say('INSERT_RANGE', call(libc.fallocate(fd, 0x20, long(0), long(4096))))
say('PUNCH_HOLE', call(libc.fallocate(fd, 3, long(0), long(4096))))
say('RWF_NOWAIT', attempt(lambda: os.preadv(fd, [bytearray(10)], 0, os.RWF_NOWAIT)))
say('RWF_DSYNC', attempt(lambda: os.pwritev(fd, [b'y'], 0, os.RWF_DSYNC)))
say('RESOLVE_CACHED', call(libc.syscall(437, -100, b'f', struct.pack('QQQ', os.O_RDONLY, 0, 0x20), long(24))))
say('RESOLVE_BENEATH', call(libc.syscall(437, -100, b'f', struct.pack('QQQ', os.O_RDONLY, 0, 8), long(24))))
st = ctypes.create_string_buffer(256)
libc.syscall(332, -100, b'f', 0, 0x2000, st)
say('STATX_DIOALIGN', bool(struct.unpack_from('I', st)[0] & 0x2000))
direct = attempt(lambda: os.open('f', os.O_RDWR | os.O_DIRECT))
say('unaligned O_DIRECT', attempt(lambda: os.pwrite(direct, b'y' * 511, 1)))
before = os.stat('f').st_ctime_ns
while os.stat('f').st_ctime_ns == before and time.time_ns() < before + 2 * 10**9:
    time.sleep(0.01)
    os.chown('f', -1, -1)
say('chown(-1, -1) changes ctime', os.stat('f').st_ctime_ns != before)
)";

/// The limits, and what a recorded run has instead. All else is as natively.
const std::map<std::string, std::string> kLimits = {
    {"f_type", "0x65735546"},      {"df", "fuse.heddle-record"}, {"LINK_MAX", "127"},
    {"FILESIZEBITS", "32"},        {"FIEMAP", "ENOTSUP"},        {"FICLONE", "ENOTSUP"},
    {"COLLAPSE_RANGE", "ENOTSUP"}, {"INSERT_RANGE", "ENOTSUP"},  {"RWF_NOWAIT", "ENOTSUP"},
    {"RESOLVE_CACHED", "EAGAIN"},  {"STATX_DIOALIGN", "False"},  {"unaligned O_DIRECT", "511"}};

TEST_F(RecorderLimits, are_those_documented_and_no_more) {
  run_checked({"mkdir", dir_ / "native", dir_ / "recorded"});
  RunOptions options;
  const std::vector<std::string> probe = {"/usr/bin/python3", "-c", kProbe};
  options.cwd = dir_ / "native";
  const auto native = run(probe, options);
  options.cwd = dir_ / "recorded";
  const auto recorded = record(trace_, probe, options);
  ASSERT_EQ(recorded.status, 0) << recorded.err;
  const auto read = [](const std::string& text) {
    std::map<std::string, std::string> out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      out[line.substr(0, line.find(": "))] = line.substr(line.find(": ") + 2);
    return out;
  };
  auto expected = read(native.out);
  for (const auto& [name, value] : kLimits) expected[name] = value;
  EXPECT_EQ(read(recorded.out), expected);
}

TEST_F(RecorderLimits, a_removed_working_directory_is_as_natively) {
  const std::string probe = R"(
import os
for do in (os.getcwd, lambda: os.listdir('.'), lambda: open('file'), lambda: os.mkdir('d')):
    try: print(do())
    except OSError as e: print(e)
print(sorted(os.listdir('..')), open('../beside').read())
)";
  write_text_file(dir_ / "beside", "content\n");
  write_text_file(dir_ / "probe", probe);
  const auto in_removed = [&](const std::string& before) {
    return run({"sh", "-c",
                "mkdir removed && cd removed && rmdir ../removed && exec " + before +
                    " /usr/bin/python3 ../probe"},
               {.cwd = dir_.path()});
  };
  write_text_file(trace_, "");
  const auto native = in_removed("");
  EXPECT_THAT(native.out, HasSubstr("content"));
  const auto recorded =
      in_removed(staged_program("fs-record") + " --quiet --out " + trace_ + " --");
  EXPECT_EQ(recorded.out, native.out);
  EXPECT_EQ(recorded.err, native.err);
  EXPECT_EQ(recorded.status, 0);
  EXPECT_THAT(read_seen(trace_).header.notes, Contains(HasSubstr("removed working directory")));
}

TEST_F(RecorderLimits, a_working_directory_renamed_outside_stays_usable) {
  const std::jthread outsider([&] {
    if (!wait_until(std::chrono::seconds(20),
                    [&] { return ::access((dir_ / "go").c_str(), F_OK) == 0; }))
      return;
    std::filesystem::rename(dir_ / "work", dir_ / "renamed");
    write_text_file(dir_ / "moved", "");
  });
  RunOptions options;
  options.cwd = dir_.path();
  options.deadline = std::chrono::seconds(30);
  const auto done = record(trace_, {"/usr/bin/python3", "-c", R"(
import os, time
os.mkdir('work'); os.chdir('work'); open('../go', 'w').close()
while not os.path.exists('../moved'): time.sleep(0.01)
while os.path.exists('../work'): time.sleep(0.01)
for name in ('a', 'b'):
    open(name, 'w').close()
    os.rename(name, name + name)
os.mkdir('c')
print(sorted(os.listdir('.')), os.path.exists('../renamed/c/..'))
)"},
                           options);
  EXPECT_EQ(done.out, "['aa', 'bb', 'c'] True\n") << done.err;
  EXPECT_TRUE(std::filesystem::exists(dir_ / "renamed/bb"));
}

}  // namespace
}  // namespace heddle::test
