// SPDX-License-Identifier: MIT
// Each stat(2) and fstat(2) is an event, and gives what the file is, though the lookup of a stat
// answers the request that follows it (record/loopback/stat_calls.hpp).
#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

class RecordedStats : public Recorder {
 protected:
  /// Runs a Python script that has the case's directory as `d`, behind the shell words of
  /// `outside`; expects no error.
  RunResult script(const std::string& text, const std::string& outside = "") const {
    write_text_file(dir_ / "script.py",
                    "import ctypes, os, sys, threading\nd = sys.argv[1]\n" + text);
    const auto done =
        run({"sh", "-c", outside + " exec \"$@\"" + (outside.empty() ? "" : " 3>in 4<out"), "sh",
             program_, "--quiet", "--out", trace_, "--", "/usr/bin/python3", dir_ / "script.py",
             dir_.path()},
            {.cwd = dir_.path()});
    EXPECT_EQ(done.status, 0) << done.err;
    return done;
  }
  std::size_t stats_of(const std::string& name) const {
    const auto all = read_seen(trace_).places(trace::Op::stat);
    return static_cast<std::size_t>(std::ranges::count(all, dir_ / name));
  }
};

TEST_F(RecordedStats, are_counted_one_by_one) {
  for (int i = 0; i < 100; ++i) write_text_file(dir_ / ("f" + std::to_string(i)), "some text");
  write_text_file(dir_ / "open", "");
  write_text_file(dir_ / "later", "");
  write_text_file(dir_ / "path", "");
  write_text_file(dir_ / "mixed", "");
  fs::create_symlink("mixed", dir_ / "link");
  // 332: statx(2) on x86-64; the mask 0x7ff asks for the basic attributes, 0xfff for the birth,
  // too.
  script(R"(
for i in range(100):
    for _ in range(3): os.lstat(f'{d}/f{i}')
fd = os.open(d + '/open', os.O_RDONLY)
for _ in range(50):
    os.stat(d + '/open'); os.fstat(fd); os.fstat(fd)
for _ in range(50):
    os.stat(d + '/later')
    later = os.open(d + '/later', os.O_RDONLY)
    os.fstat(later); os.close(later)
directory = os.open(d, os.O_PATH)
for _ in range(50):
    os.stat('path', dir_fd=directory)
    path = os.open(d + '/path', os.O_PATH)
    os.fstat(path); os.close(path)
for _ in range(50):
    os.stat(d + '/link'); os.lstat(d + '/link'); os.access(d + '/mixed', os.R_OK); os.stat(d + '/mixed')
buffer = ctypes.create_string_buffer(256)
if os.uname().machine == 'x86_64':
    for mask in (0x7ff, 0xfff) * 50:
        assert ctypes.CDLL(None).syscall(332, -100, (d + '/f0').encode(), 0, mask, buffer) == 0
)");
  const auto run = read_seen(trace_);
  ASSERT_TRUE(run.complete());
  for (int i = 1; i < 100; ++i) EXPECT_EQ(stats_of("f" + std::to_string(i)), 3U) << i;
#ifdef __x86_64__
  EXPECT_EQ(stats_of("f0"), 103U);
#endif
  EXPECT_EQ(stats_of("open"), 150U);
  EXPECT_EQ(stats_of("later"), 100U);
  EXPECT_EQ(stats_of("path"), 100U);
  EXPECT_EQ(stats_of("mixed"), 100U);
  EXPECT_EQ(stats_of("link"), 50U);
}

TEST_F(RecordedStats, of_several_threads_are_counted) {
  write_text_file(dir_ / "file", "");
  script(R"(
def by_path():
    for _ in range(2000): os.stat(d + '/file')
def by_handle():
    for _ in range(2000):
        fd = os.open(d + '/file', os.O_RDONLY)
        os.fstat(fd); os.close(fd)
threads = [threading.Thread(target=t) for t in (by_path, by_handle, by_path, by_handle)]
for t in threads: t.start()
for t in threads: t.join()
)");
  EXPECT_EQ(stats_of("file"), 8000U);
}

TEST_F(RecordedStats, show_what_processes_outside_have_changed) {
  write_text_file(dir_ / "file", "");
  write_text_file(dir_ / "renamed", "");
  write_text_file(dir_ / "outside.sh",
                  "while read -r line; do printf x >>file; echo \"$line\" >new; mv new renamed\n"
                  "echo done; done\n");
  const auto done = script(R"(
fd = os.open(d + '/file', os.O_RDONLY)
wrong = []
for i in range(1, 200):
    if i == 100: os.close(fd)
    os.stat(d + '/file'); os.stat(d + '/renamed')
    os.write(3, b'123456'[:i % 5 + 1] + b'\n')
    assert os.read(4, 100) == b'done\n'
    if i < 100 and os.fstat(fd).st_size != i: wrong.append(('open', i))
    if os.stat(d + '/file').st_size != i: wrong.append(('path', i))
    if os.stat(d + '/renamed').st_size != i % 5 + 2: wrong.append(('renamed', i))
print(wrong)
)",
                           "mkfifo in out; sh outside.sh <in >out &");
  EXPECT_EQ(done.out, "[]\n") << done.err;
}

}  // namespace
}  // namespace heddle::test
