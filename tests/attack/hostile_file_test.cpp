// SPDX-License-Identifier: MIT
//
// What a file can choose, of an image or of another user: its type, its bytes, its owner, and to be
// another one between two looks.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "base/temp_dir.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/map/sample_map.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"
#include "tests/support/strace.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using namespace std::string_literals;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLib = "/lib/x86_64-linux-gnu/";
constexpr const char* kLoader = "/lib64/ld-linux-x86-64.so.2";

void copy_file(const std::string& from, const std::string& to) {
  fs::create_directories(fs::path(to).parent_path());
  fs::copy_file(fs::canonical(from), to, fs::copy_options::overwrite_existing);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

/// A process that waits to write to a FIFO, as long as nobody opens it for reading.
class WaitingWriter {
 public:
  explicit WaitingWriter(const std::string& fifo) : pid_(::fork()) {
    if (pid_ != 0) return;
    const int fd = ::open(fifo.c_str(), O_WRONLY);
    ::_exit(fd >= 0 ? 0 : 1);
  }
  ~WaitingWriter() {
    ::kill(pid_, SIGKILL);
    if (!let_through_) ::waitpid(pid_, nullptr, 0);
  }
  bool was_let_through() {
    let_through_ = let_through_ || ::waitpid(pid_, nullptr, WNOHANG) == pid_;
    return let_through_;
  }

 private:
  pid_t pid_;
  bool let_through_ = false;
};

/// A library with the marks of MPICH (resolver/mpi/mpi_family.cpp).
std::string build_mpi(const std::string& output) {
  return build_library({.output = output,
                        .source = "int MPI_Init(void){return 0;}int MPI_Comm_rank(void){return 0;}"
                                  "int MPIR_Err(void){return 0;}const char "
                                  "t[]=\"MPICH Version:\\0\" \"3.4.1\";",
                        .flags = {"-Wl,-soname,libmpi.so.12"}});
}

/// A small image with a program that needs libmpi.so.12, and three others; and a host's MPI.
class HostileImage : public ::testing::Test {
 protected:
  HostileImage() {
    for (const char* name : {"libc.so.6", "libm.so.6"})
      copy_file(kLib + std::string(name), in(kLib) + name);
    copy_file(kLoader, in(kLoader));
    fs::create_directories(in("/etc"));
    build_mpi(dir_ / "host/lib/libmpi.so.12");
    std::vector<std::string> needed = {build_mpi(in(kLib) + "libmpi.so.12")};
    for (const char* name : {"libfifo.so.1", "libdevice.so.1", "libgood.so.1"})
      needed.push_back(build_library({.output = in(kLib) + name,
                                      .source = "int a;",
                                      .flags = {"-Wl,-soname," + std::string(name)}}));
    needed.insert(needed.begin(), "-Wl,--no-as-needed");
    build_program({.output = in("/app"),
                   .source = "int MPI_Init(void);int main(void){return MPI_Init();}",
                   .flags = needed});
  }

  std::string in(const std::string& path) const { return dir_ / "root" + path; }

  void put_device(const std::string& path, unsigned major, unsigned minor) const {
    fs::remove(in(path));
    ASSERT_EQ(::mknod(in(path).c_str(), S_IFCHR | 0666, makedev(major, minor)), 0) << path;
  }
  std::string put_fifo(const std::string& path) const {
    fs::remove(in(path));
    EXPECT_EQ(::mkfifo(in(path).c_str(), 0666), 0) << path;
    return in(path);
  }

  /// `before` and fs-resolve, which makes a map of a program of the image.
  std::vector<std::string> resolving(std::vector<std::string> before = {},
                                     const std::string& program = "/app",
                                     const std::string& mpi = "none") const {
    for (const auto& word : {staged_program("fs-resolve"), "build"s, "--into"s, dir_ / "root",
                             "--program"s, program, "--mpi"s, mpi, "-o"s, dir_ / "map", "--json"s})
      before.push_back(word);
    return before;
  }
  RunOptions options() const {
    return {.env = {"XDG_CACHE_HOME=" + (dir_ / "cache")}, .deadline = seconds(100)};
  }

  /// Every call of `words`, and of what it starts, that opened a device or a FIFO of the image for
  /// more than to look at it.
  std::vector<std::string> opened(std::vector<std::string> words) {
    const auto log = dir_ / "strace";
    words.insert(words.begin(),
                 {"strace", "-f", "-yy", "-s", "0", "-o", log, "-e", "trace=open,openat,openat2"});
    last_ = run(words, options());
    EXPECT_FALSE(last_.timed_out);
    std::vector<std::string> out;
    bool any = false;
    for (const auto& line : lines_of(value_or_throw(read_file(log)))) {
      const auto answer = line.rfind(" = ");
      if (answer == line.npos) continue;
      any = true;
      const auto fd = line.substr(answer);
      const bool hostile = fd.find(dir_.path()) != fd.npos &&
                           (fd.find("<char ") != fd.npos || fd.find("fifo") != fd.npos);
      if (hostile && line.find("O_PATH") == line.npos) out.push_back(line);
    }
    EXPECT_TRUE(any) << "strace saw nothing";
    return out;
  }

  TestDir dir_;
  RunResult last_;
};

#define NEEDS_ROOT_AND_STRACE()                            \
  if (::geteuid() != 0) HEDDLE_SKIP("makes device nodes"); \
  if (!strace_works()) HEDDLE_SKIP("strace does not work here")

TEST_F(HostileImage, its_devices_and_fifos_are_looked_at_and_never_opened) {
  NEEDS_ROOT_AND_STRACE();
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  put_device("/etc/ld.so.cache", 1, 5);                  // /dev/zero: read to the limit
  put_device(kLib + std::string("libmpi.so.12"), 1, 3);  // stands for a watchdog
  put_device(kLib + std::string("libdevice.so.1"), 1, 7);
  const auto fifo = put_fifo(kLib + std::string("libfifo.so.1"));
  WaitingWriter writer(fifo);
  for (const auto& mpi : {std::string("none"), dir_ / "host"}) {
    EXPECT_THAT(opened(resolving({}, "/app", mpi)), ::testing::IsEmpty());
    EXPECT_LT(last_.status, 128) << last_.err;
  }
  EXPECT_FALSE(writer.was_let_through());
}

TEST_F(HostileImage, its_loader_may_be_a_device) {
  NEEDS_ROOT_AND_STRACE();
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  put_device(kLoader, 1, 5);
  EXPECT_THAT(opened(resolving()), ::testing::IsEmpty());
  EXPECT_NE(last_.status, 0);
  EXPECT_LT(last_.status, 128) << last_.err;
}

TEST_F(HostileImage, the_compat_tools_open_none_either) {
  NEEDS_ROOT_AND_STRACE();
  HEDDLE_STAGED(compat_gen, "compat-gen");
  HEDDLE_STAGED(compat_check, "compat-check");
  run_checked({compat_gen, "--rootfs", dir_ / "root", "-o", dir_ / "app.json", "/app"});
  put_device("/etc/ld.so.cache", 1, 5);
  put_device(kLib + std::string("libdevice.so.1"), 1, 5);
  const auto fifo = put_fifo(kLib + std::string("libfifo.so.1"));
  WaitingWriter writer(fifo);
  EXPECT_THAT(opened({compat_gen, "--rootfs", dir_ / "root", "-o", dir_ / "b.json", "/app"}),
              ::testing::IsEmpty());
  EXPECT_LT(last_.status, 128) << last_.err;
  EXPECT_THAT(opened({compat_check, "--rootfs", dir_ / "root", dir_ / "app.json"}),
              ::testing::IsEmpty());
  EXPECT_EQ(last_.status, 1) << last_.err;
  EXPECT_FALSE(writer.was_let_through());
}

TEST_F(HostileImage, fs_resolve_opens_no_fifo_that_a_hosts_program_needs) {
  if (!strace_works()) HEDDLE_SKIP("strace does not work here");
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  const auto fifo = put_fifo(kLib + std::string("libfifo.so.1"));
  WaitingWriter writer(fifo);
  EXPECT_THAT(opened({"env", "LD_LIBRARY_PATH=" + in(kLib), fs_resolve, "tree", in("/app")}),
              ::testing::IsEmpty());
  EXPECT_LT(last_.status, 128) << last_.err;
  EXPECT_FALSE(writer.was_let_through());
}

TEST_F(HostileImage, a_directory_that_is_swapped_for_a_link_leads_to_no_file_of_the_host) {
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  // The program finds libgood.so.1 in /d, which is a directory and a link to the host's by turns.
  build_program({.output = in("/swapped"),
                 .source = "int main(void){return 0;}",
                 .flags = {"-Wl,--no-as-needed", in(kLib) + "libgood.so.1", "-Wl,-rpath,/d"}});
  fs::create_directories(in("/d"));
  fs::rename(in(kLib) + "libgood.so.1", in("/d/libgood.so.1"));
  const auto host = dir_ / "host";
  // Who reads the host's looks for what it needs.
  const auto secret = build_library({.output = host + "/libhostsecret.so.9",
                                     .source = "int b;",
                                     .flags = {"-Wl,-soname,libhostsecret.so.9"}});
  build_library({.output = host + "/libgood.so.1",
                 .source = "int a;",
                 .flags = {"-Wl,-soname,libgood.so.1", "-Wl,--no-as-needed", secret}});
  fs::create_directory_symlink(host, in("/e"));
  std::atomic<bool> done{false};
  std::thread swapper([&] {
    while (!done) {
      (void)::renameat2(AT_FDCWD, in("/d").c_str(), AT_FDCWD, in("/e").c_str(), RENAME_EXCHANGE);
      ::usleep(2000);  // no wait for anything: long enough to be met, shorter than a delay below
    }
  });
  // Where a name is looked up twice there is time between.
  const std::vector<std::string> slowly = {"strace", "-f",
                                           "-o",     "/dev/null",
                                           "-e",     "trace=readlink",
                                           "-e",     "inject=readlink:delay_exit=3000"};
  const auto words = resolving(strace_works() ? slowly : std::vector<std::string>{}, "/swapped");
  for (int i = 0; i < 20; ++i) {
    const auto result = run(words, options());
    EXPECT_LT(result.status, 128) << result.err;
    EXPECT_THAT(result.out + result.err, Not(HasSubstr("libhostsecret"))) << "run " << i;
  }
  done = true;
  swapper.join();
}

TEST_F(HostileImage, links_lead_nowhere_outside_it_on_kernels_without_openat2_too) {
  if (!strace_works()) HEDDLE_SKIP("strace does not work here");
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  const auto library = in(kLib) + "libgood.so.1";
  fs::create_directories(in("/opt/x"));
  fs::rename(library, in("/opt/x/good"));
  const auto resolved = [&](const std::string& error) {
    std::vector<std::string> words;
    if (!error.empty())
      words = {"strace", "-f",
               "-o",     "/dev/null",
               "-e",     "trace=openat2",
               "-e",     "inject=openat2:error=" + error};
    const auto result = run(resolving(words), options());
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };
  // Further up than there is, and by a path from the root; the last leads out and is not there.
  for (const auto& target : {std::string("../../../../../../../../opt/x/good"),
                             std::string("/opt/../opt/x/./good"), dir_ / "root/opt/x/good"}) {
    fs::remove(library);
    fs::create_symlink(target, library);
    const auto with = resolved("");
    for (const char* error : {"ENOSYS", "EPERM", "EINVAL"})
      EXPECT_EQ(resolved(error), with) << target << ' ' << error;
  }
}

/// A table of ld.so's cache with `count` entries, all of one name, in front of `rest`; `names` are
/// those of its hwcaps directories.
std::string odd_cache(std::uint32_t count, std::uint32_t names, const std::string& rest) {
  std::string out = "glibc-ld.so.cache1.1";
  const auto put = [&](std::uint64_t value, std::size_t size = 4) {
    out.append(reinterpret_cast<const char*>(&value), size);
  };
  const std::uint32_t entries = 48, strings = entries + count * 24;
  const auto extension = static_cast<std::uint32_t>(strings + 16 + rest.size() + 3) & ~3U;
  for (const std::uint32_t value : {count, 0U, 2U, extension, 0U, 0U, 0U}) put(value);
  for (std::uint32_t i = 0; i < count; ++i) {
    put(0x0303);
    put(strings);
    put(strings + 16 + i % 1000);
    put(0);
    put((std::uint64_t{1} << 62) | i % 4096, 8);
  }
  out += "libmpi.so.12";
  out.append(4, '\0');
  out += rest;
  out.resize(extension);
  for (const std::uint32_t value : {0xEAA42174U, 1U, 1U, 0U, extension + 24, names * 4}) put(value);
  for (std::uint32_t i = 0; i < names; ++i) put(strings + 16 + i);
  return out;
}

/// What is looked for in them has bounds, whatever their sizes: in a processor's time, so that
/// others who are busy count for nothing.
TEST_F(HostileImage, caches_and_loaders_that_are_made_to_take_long_do_not) {
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  const auto loader = value_or_throw(read_file(in(kLoader)));
  const std::string no_end(std::size_t{20} << 20, 'x');
  const auto repeated = [](std::string_view piece, std::size_t size) {
    std::string out;
    while (out.size() < size) out += piece;
    return out;
  };
  using namespace std::string_view_literals;
  const auto most = (std::size_t{16} << 20) - loader.size() - 4096;
  const std::vector<std::pair<std::string, std::string>> files = {
      {"/etc/ld.so.cache", odd_cache(1'500'000, 4096, no_end)},
      {"/etc/ld.so.cache", odd_cache(1, 4096, no_end)},
      {"/etc/ld.so.cache", odd_cache(2'000'000, 0, std::string(4095, 'y'))},
      {kLoader, loader + repeated("\0/lib/\0/lib64/"sv, most)},
      {kLoader, loader + "\0/"s + std::string(most, 'l')},
      {kLoader, loader + repeated("/ld.so.cache"sv, most)},
      {kLoader, loader + repeated(" release version 2."sv, most)},
      {kLoader, loader + repeated("\0x86-64-v"sv, std::size_t{100} << 20)}};
  for (std::size_t i = 0; i < files.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& [path, bytes] = files[i];
    const auto before = read_file(in(path));
    fs::remove(in(path));
    write_text_file(in(path), bytes, 0755);
    const auto result = run(resolving({"prlimit", "--cpu=20"}, "/app", dir_ / "host"), options());
    EXPECT_FALSE(result.timed_out);
    EXPECT_LT(result.status, 128) << result.err;
    fs::remove(in(path));
    if (before) write_text_file(in(path), *before, 0755);
  }
}

/// The files that each process was sent to read, by strace's word.
std::map<std::string, std::set<std::string>> read_by_workers(const std::string& log) {
  std::map<std::string, std::set<std::string>> out;
  for (const auto& line : lines_of(value_or_throw(read_file(log)))) {
    const auto sent = line.find("cmsg_data=[");
    const auto name = line.find('<', sent);
    if (sent == line.npos || name == line.npos) continue;
    out[line.substr(0, line.find(' '))].insert(
        line.substr(name + 1, line.find('>', name) - name - 1));
  }
  return out;
}

TEST_F(HostileImage, no_reader_of_its_files_reads_a_file_of_the_host) {
  if (!strace_works()) HEDDLE_SKIP("strace does not work here");
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  const auto log = dir_ / "strace";
  const auto result =
      run(resolving({"strace", "-f", "-y", "-s", "64", "-o", log, "-e", "trace=recvmsg"}, "/app",
                    dir_ / "host"),
          options());
  EXPECT_LT(result.status, 128) << result.err;
  bool image = false, host = false;
  for (const auto& [pid, files] : read_by_workers(log)) {
    const auto of_image = static_cast<std::size_t>(std::count_if(
        files.begin(), files.end(), [&](const auto& f) { return f.starts_with(dir_ / "root"); }));
    EXPECT_TRUE(of_image == 0 || of_image == files.size()) << ::testing::PrintToString(files);
    image = image || of_image != 0;
    host = host || of_image != files.size();
  }
  EXPECT_TRUE(image);
  EXPECT_TRUE(host);
}

/// All bytes of the files in a facts cache.
std::string kept_in(const std::string& cache) {
  std::string all;
  std::error_code none;
  for (const auto& entry : fs::recursive_directory_iterator(cache, none))
    if (entry.is_regular_file()) all += value_or_throw(read_file(entry.path()));
  return all;
}

TEST(HostileFacts, of_an_image_do_not_reach_the_hosts_cache) {
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  // An image of files that have been there for long: facts of new ones are never kept.
  const TestDir dir;
  const auto with = [&](const std::string& cache) {
    RunOptions options;
    options.env = {"XDG_CACHE_HOME=" + (dir / cache)};
    return options;
  };
  // What no other file needs that this reads: the probe is shown to work on the host's side.
  constexpr const char* program = "/usr/bin/ls";
  constexpr const char* marker = "libselinux.so.1";
  (void)run({fs_resolve, "tree", program}, with("host"));
  if (kept_in(dir / "host").find(marker) == std::string::npos)
    HEDDLE_SKIP("this machine's ls keeps no such fact");
  const auto built = run({fs_resolve, "build", "--into", "/", "--program", program, "--mpi", "none",
                          "-o", dir / "map", "--json"},
                         with("image"));
  ASSERT_LT(built.status, 2) << built.err;
  EXPECT_THAT(built.out, HasSubstr(marker)) << "the image was read";
  EXPECT_THAT(kept_in(dir / "image"), Not(HasSubstr(marker)));
}

class HostileMap : public ::testing::Test {
 protected:
  HostileMap() {
    value_or_throw(write_map(sample_map(40), path_));
    whole_ = value_or_throw(read_file(path_));
    whole_.resize(whole_.size() - map_format::kTrailerSize);
  }

  /// The sample's pages with one to three numbers changed, under a right checksum.
  std::string changed(unsigned seed) const {
    std::mt19937 random(seed);
    std::string pages = whole_;
    constexpr std::uint64_t values[] = {0, 1, 15, 16, 0x7fff, 0xfff0, 0xffff, 0x10000, ~0ULL};
    for (auto n = 1 + random() % 3; n > 0; --n) {
      const auto page = random() % (pages.size() / 4096) * 4096;
      const auto at = page + (random() % 4 ? random() % 160 : random() % 4096) / 2 * 2;
      const std::uint64_t value =
          random() % 4 ? values[random() % std::size(values)] : std::uint64_t{random()};
      std::memcpy(pages.data() + at, &value,
                  std::min<std::size_t>(std::size_t{2} << random() % 3, pages.size() - at));
    }
    return map_format::with_trailer(std::move(pages));
  }

  TestDir dir_;
  std::string path_ = dir_ / "sample.map";
  std::string whole_;
};

/// Each is told of in one line; a change that nothing hangs on shows the map as it was.
TEST_F(HostileMap, a_thousand_changed_under_a_right_checksum_are_each_one_line) {
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  HEDDLE_STAGED(fs_mount, "fs-mount");
  const auto map = dir_ / "m.map";
  const auto mount = dir_ / "mount";
  fs::create_directory(mount);
  int damaged = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    write_text_file(map, changed(seed));
    const auto shown = run({fs_resolve, "show", map});
    ASSERT_FALSE(shown.timed_out) << seed;
    ASSERT_TRUE(shown.status == 0 || shown.status == 3) << seed << ": " << shown.status;
    if (shown.status == 0) continue;
    ++damaged;
    const auto said = lines_of(shown.err);
    ASSERT_FALSE(said.empty());
    EXPECT_THAT(said[0], ::testing::StartsWith("fs-resolve: " + map + ": damaged map: ")) << seed;
    EXPECT_LE(said.size(), 2U) << shown.err;  // and a hint
    if (damaged % 4 != 0) continue;
    const auto mounted = run({fs_mount, map, mount});
    ASSERT_FALSE(mounted.timed_out) << seed;
    EXPECT_EQ(mounted.status, 3) << seed << ": " << mounted.err;
    EXPECT_THAT(mounted.err, HasSubstr(": damaged map: ")) << seed;
  }
  EXPECT_GT(damaged, 300);
  EXPECT_EQ(mounts_with(mount), 0U);
}

TEST_F(HostileMap, of_another_user_is_not_served_by_root) {
  if (::geteuid() != 0) HEDDLE_SKIP("gives files to others");
  HEDDLE_STAGED(fs_mount, "fs-mount");
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const auto mount = dir_ / "mount";
  fs::create_directory(mount);
  const auto refused = [&](const std::vector<std::string>& words, const std::string& why) {
    const auto result = run(words);
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_THAT(result.err, HasSubstr(why));
  };
  ASSERT_EQ(::chown(path_.c_str(), 1000, 1000), 0);
  refused({fs_mount, path_, mount}, "root does not use this map: it belongs to another user");
  refused({fs_gen, "--map", path_, "/bin/true"}, "it belongs to another user");
  ASSERT_EQ(::chown(path_.c_str(), 0, 0), 0);
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  refused({fs_mount, path_, mount}, "others may write to it");
  EXPECT_EQ(mounts_with(mount), 0U);
}

TEST_F(HostileMap, a_fifo_in_its_place_lets_no_writer_through) {
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  HEDDLE_STAGED(fs_mount, "fs-mount");
  const auto fifo = dir_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  fs::create_directory(dir_ / "mount");
  WaitingWriter writer(fifo);
  for (const auto& words :
       {std::vector<std::string>{fs_resolve, "show", fifo}, {fs_mount, fifo, dir_ / "mount"}}) {
    const auto result = run(words);
    EXPECT_EQ(result.status, 3);
    EXPECT_THAT(result.err, HasSubstr("not a heddle map: not a regular file"));
  }
  EXPECT_FALSE(writer.was_let_through());
}

/// Types are looked at before a file is opened, where nobody else could put one in place too.
TEST_F(HostileMap, that_names_a_fifo_in_a_directory_of_roots_lets_no_writer_through) {
  HEDDLE_STAGED(fs_mount, "fs-mount");
  if (::geteuid() != 0) HEDDLE_SKIP("only root has such directories");
  const auto own = value_or_throw(TempDir::create("heddle-attack", "/run"));
  ::chmod(own.path().c_str(), 0755);
  const auto fifo = own.path() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  auto content = sample_map(2);
  content.objects.back().path = fifo;  // they are sorted
  value_or_throw(write_map(content, path_));
  WaitingWriter writer(fifo);
  EXPECT_EQ(run({fs_mount, "--verify", path_}).status, 1);
  EXPECT_FALSE(writer.was_let_through());
}

}  // namespace
}  // namespace heddle::test
