// SPDX-License-Identifier: MIT
//
// Files of an image or of another user choose their type, bytes and owner, and are exchanged
// between check and use.
#include <elf.h>
#include <linux/fs.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <atomic>
#include <set>

#include "base/content_hash.hpp"
#include "base/temp_dir.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/map/sample_map.hpp"
#include "tests/support/prelude.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

using std::chrono::seconds;

constexpr const char* kLib = "/lib/x86_64-linux-gnu/";
constexpr const char* kLoader = "/lib64/ld-linux-x86-64.so.2";

void copy_file(const std::string& from, const std::string& to) {
  fs::create_directories(fs::path(to).parent_path());
  fs::copy_file(fs::canonical(from), to, fs::copy_options::overwrite_existing);
}

/// A process that opens a FIFO for writing, which blocks until a reader opens it.
class WaitingWriter {
 public:
  explicit WaitingWriter(const std::string& fifo) : pid_(::fork()) {
    if (pid_ != 0) return;
    const int fd = ::open(fifo.c_str(), O_WRONLY);
    ::_exit(fd >= 0 ? 0 : 1);
  }
  ~WaitingWriter() {
    ::kill(pid_, SIGKILL);
    if (!has_ended_) ::waitpid(pid_, nullptr, 0);
  }
  bool has_reader() {
    has_ended_ = has_ended_ || ::waitpid(pid_, nullptr, WNOHANG) == pid_;
    return has_ended_;
  }

 private:
  pid_t pid_;
  bool has_ended_ = false;
};

/// A library with the marks of MPICH (resolver/mpi/mpi_family.cpp).
std::string build_mpi(const std::string& output) {
  return build_library({.output = output,
                        .source = "int MPI_Init(void){return 0;}int MPI_Comm_rank(void){return 0;}"
                                  "int MPIR_Err(void){return 0;}const char "
                                  "t[]=\"MPICH Version:\\0\" \"3.4.1\";",
                        .flags = {"-Wl,-soname,libmpi.so.12"}});
}

/// A small image with a program that needs libmpi.so.12 and three other libraries; and a host's
/// MPI.
class HostileImage : public ::testing::Test {
 protected:
  HostileImage() {
    for (const char* name : {"libc.so.6", "libm.so.6"})
      copy_file(kLib + std::string(name), in(kLib) + name);
    copy_file(kLoader, in(kLoader));
    fs::create_directories(in("/etc"));
    build_mpi(dir_ / "host/lib/libmpi.so.12");
    Strings needed = {build_mpi(in(kLib) + "libmpi.so.12")};
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

  void SetUp() override { HEDDLE_STAGED(program, "fs-resolve"); }
  /// `before`, then fs-resolve with options to make a map of the image's `program`.
  Strings resolving(Strings before = {}, const std::string& program = "/app",
                    const std::string& mpi = "none") const {
    for (const auto& word : {staged_program("fs-resolve"), "build"s, "--into"s, dir_ / "root",
                             "--program"s, program, "--mpi"s, mpi, "-o"s, dir_ / "map", "--json"s})
      before.push_back(word);
    return before;
  }
  RunOptions options() const {
    return {.env = {"XDG_CACHE_HOME=" + (dir_ / "cache")}, .deadline = seconds(100)};
  }

  /// The calls of `words` and its descendants that opened a device or a FIFO of the image without
  /// O_PATH.
  Strings opened(Strings words) {
    const auto log = dir_ / "strace";
    words.insert(words.begin(),
                 {"strace", "-f", "-yy", "-s", "0", "-o", log, "-e", "trace=open,openat,openat2"});
    last_ = run(words, options());
    EXPECT_FALSE(last_.timed_out);
    Strings out;
    bool any = false;
    std::map<std::string, std::string> unfinished;  // by thread: strace splits the calls of several
    for (auto line : lines_of(value_or_throw(read_file(log)))) {
      const auto thread = line.substr(0, line.find(' '));
      if (line.ends_with("<unfinished ...>")) unfinished[thread] = line;
      if (line.find(" resumed>") != line.npos) line = unfinished[thread] + line;
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

TEST_F(HostileImage, devices_and_fifos_of_an_image_are_never_opened) {
  NEEDS_ROOT_AND_STRACE();
  put_device("/etc/ld.so.cache", 1, 5);                  // /dev/zero, which never ends
  put_device(kLib + std::string("libmpi.so.12"), 1, 3);  // as a watchdog device
  put_device(kLib + std::string("libdevice.so.1"), 1, 7);
  const auto fifo = put_fifo(kLib + std::string("libfifo.so.1"));
  WaitingWriter writer(fifo);
  for (const auto& mpi : {std::string("none"), dir_ / "host"}) {
    EXPECT_THAT(opened(resolving({}, "/app", mpi)), ::testing::IsEmpty());
    EXPECT_LT(last_.status, 128) << last_.err;
  }
  EXPECT_FALSE(writer.has_reader());
}

TEST_F(HostileImage, loader_that_is_a_device_is_not_opened) {
  NEEDS_ROOT_AND_STRACE();
  put_device(kLoader, 1, 5);
  EXPECT_THAT(opened(resolving()), ::testing::IsEmpty());
  EXPECT_NE(last_.status, 0);
  EXPECT_LT(last_.status, 128) << last_.err;
}

TEST_F(HostileImage, compat_tools_open_no_device_or_fifo) {
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
  EXPECT_FALSE(writer.has_reader());
}

TEST_F(HostileImage, fs_resolve_opens_no_fifo_that_a_host_program_needs) {
  if (!strace_works()) HEDDLE_SKIP("strace does not work here");
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  const auto fifo = put_fifo(kLib + std::string("libfifo.so.1"));
  WaitingWriter writer(fifo);
  EXPECT_THAT(opened({"env", "LD_LIBRARY_PATH=" + in(kLib), fs_resolve, "tree", in("/app")}),
              ::testing::IsEmpty());
  EXPECT_LT(last_.status, 128) << last_.err;
  EXPECT_FALSE(writer.has_reader());
}

TEST_F(HostileImage, directory_swapped_for_a_link_leads_to_no_host_file) {
  // The program finds libgood.so.1 in /d, which is a directory and a link to the host's by turns.
  build_program({.output = in("/swapped"),
                 .source = "int main(void){return 0;}",
                 .flags = {"-Wl,--no-as-needed", in(kLib) + "libgood.so.1", "-Wl,-rpath,/d"}});
  fs::create_directories(in("/d"));
  fs::rename(in(kLib) + "libgood.so.1", in("/d/libgood.so.1"));
  const auto host = dir_ / "host";
  // A process that reads the host's library searches for this one.
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
      ::usleep(2000);  // shorter than the delay below
    }
  });
  // Leaves time between two lookups of one name.
  const Strings slowly = {"strace", "-f",
                          "-o",     "/dev/null",
                          "-e",     "trace=readlink",
                          "-e",     "inject=readlink:delay_exit=3000"};
  const auto words = resolving(strace_works() ? slowly : Strings{}, "/swapped");
  for (int i = 0; i < 8; ++i) {
    const auto result = run(words, options());
    EXPECT_LT(result.status, 128) << result.err;
    EXPECT_THAT(result.out + result.err, Not(HasSubstr("libhostsecret"))) << "run " << i;
  }
  done = true;
  swapper.join();
}

TEST_F(HostileImage, links_stay_inside_the_image_without_openat2) {
  if (!strace_works()) HEDDLE_SKIP("strace does not work here");
  const auto library = in(kLib) + "libgood.so.1";
  fs::create_directories(in("/opt/x"));
  fs::rename(library, in("/opt/x/good"));
  const auto resolved = [&](const std::string& error) {
    Strings words;
    if (!error.empty())
      words = {"strace", "-f",
               "-o",     "/dev/null",
               "-e",     "trace=openat2",
               "-e",     "inject=openat2:error=" + error};
    const auto result = run(resolving(words), options());
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };
  // Above the root, by an absolute path, and to a path of the host that the image lacks.
  for (const auto& target : {std::string("../../../../../../../../opt/x/good"),
                             std::string("/opt/../opt/x/./good"), dir_ / "root/opt/x/good"}) {
    fs::remove(library);
    fs::create_symlink(target, library);
    const auto with = resolved("");
    for (const char* error : {"ENOSYS", "EPERM", "EINVAL"})
      EXPECT_EQ(resolved(error), with) << target << ' ' << error;
  }
}

/// An ld.so.cache with `count` entries of one name before `rest`, and `names` hwcaps directories.
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

/// The limit is on CPU time, so that other load does not matter.
TEST_F(HostileImage, costly_caches_and_loaders_are_bounded) {
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

/// A library whose program headers are changed by `change`, followed by zeros.
void put_module(const std::string& path, const std::string& library, off_t size,
                const std::function<void(Elf64_Ehdr&, Elf64_Phdr&)>& change) {
  auto bytes = value_or_throw(read_file(library));
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  for (unsigned i = 0, count = header.e_phnum; i < count; ++i) {
    char* const at = bytes.data() + header.e_phoff + i * sizeof(Elf64_Phdr);
    Elf64_Phdr segment;
    std::memcpy(&segment, at, sizeof(segment));
    if (segment.p_type == PT_DYNAMIC) change(header, segment);
    std::memcpy(at, &segment, sizeof(segment));
  }
  std::memcpy(bytes.data(), &header, sizeof(header));
  write_text_file(path, bytes);
  ASSERT_EQ(::truncate(path.c_str(), size), 0);
}

/// fs-resolve itself, and not its worker, looks for the modules that need MPI.
TEST_F(HostileImage, costly_python_modules_are_bounded) {
  fs::create_directories(in("/usr/bin"));
  fs::rename(in("/app"), in("/usr/bin/python3"));
  const auto packages = in("/usr/lib/python3/dist-packages");
  fs::create_directories(packages);
  const auto decide = [&] {
    const auto result =
        run(resolving({"prlimit", "--cpu=20"}, "/usr/bin/python3", dir_ / "host"), options());
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };
  for (int i = 0; i < 30; ++i)
    put_module(packages + "/long" + std::to_string(i) + ".so", in(kLib) + "libgood.so.1",
               off_t{3} << 30,
               [](Elf64_Ehdr&, Elf64_Phdr& dynamic) { dynamic.p_filesz = 1U << 30; });
  EXPECT_THAT(decide(), Not(HasSubstr("more files than fs-resolve searches")));
  for (int i = 0; i < 40; ++i)
    put_module(packages + "/many" + std::to_string(i) + ".so", in(kLib) + "libgood.so.1",
               off_t{8} << 20,
               [](Elf64_Ehdr& header, Elf64_Phdr&) { header.e_phnum = PN_XNUM - 1; });
  EXPECT_THAT(decide(), HasSubstr("more files than fs-resolve searches"));
}

/// A container would get the files of the user who mounted them.
TEST_F(HostileImage, mount_of_another_user_is_not_the_maps) {
  HEDDLE_STAGED(fs_mount, "fs-mount");
  ASSERT_EQ(run(resolving({}, "/app", dir_ / "host"), options()).status, 0) << last_.err;
  const auto directory = dir_ / "mount";
  fs::create_directory(directory);
  for (const std::string user : {"1511", "0"}) {
    SCOPED_TRACE(user);
    auto device = open_file("/dev/fuse", O_RDWR);
    if (!device) HEDDLE_SKIP(device.error().message());
    const auto how = "fd=" + std::to_string(device->get()) +
                     ",rootmode=40000,group_id=0,allow_other,user_id=" + user;
    if (::mount("heddle", directory.c_str(), "fuse.heddle", MS_RDONLY | MS_NOSUID | MS_NODEV,
                how.c_str()) != 0)
      HEDDLE_SKIP("only root can mount");
    auto child = value_or_throw(
        spawn(fs_mount, {"fs-mount", "--mount-point", "/mnt", dir_ / "map", "/dev/fd/7", "-f"},
              {{{device->get(), 7}}}));
    device->reset();
    const auto printed = run(
        {staged_program("fs-resolve"), "explain", "--binds", "podman", dir_ / "map"}, options());
    EXPECT_EQ(printed.status, user == "0" ? 0 : 3) << printed.out;
    if (user != "0") {
      EXPECT_THAT(printed.err, HasSubstr("is not mounted on this host"));
    }
    EXPECT_EQ(::umount2(directory.c_str(), MNT_DETACH), 0);
    EXPECT_EQ(value_or_throw(child.wait_for(5s)), 0);
  }
}

/// The files whose descriptors each process received, from a log of strace.
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

TEST_F(HostileImage, elf_worker_of_an_image_reads_no_host_file) {
  if (!strace_works()) HEDDLE_SKIP("strace does not work here");
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

/// The contents of all files in a facts cache.
std::string contents_of(const std::string& cache) {
  std::string all;
  std::error_code none;
  for (const auto& entry : fs::recursive_directory_iterator(cache, none))
    if (entry.is_regular_file()) all += value_or_throw(read_file(entry.path()));
  return all;
}

TEST(HostileFacts, image_facts_do_not_reach_the_hosts_cache) {
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  // The image is "/": facts of recently changed files are never cached.
  const TestDir dir;
  const auto with = [&](const std::string& cache) {
    return RunOptions{.env = {"XDG_CACHE_HOME=" + (dir / cache)}};
  };
  // Only this program needs the marker; the host's cache shows that it is found.
  constexpr const char* program = "/usr/bin/ls";
  constexpr const char* marker = "libselinux.so.1";
  (void)run({fs_resolve, "tree", program}, with("host"));
  if (contents_of(dir / "host").find(marker) == std::string::npos)
    HEDDLE_SKIP("this machine's ls keeps no such fact");
  const auto built = run({fs_resolve, "build", "--into", "/", "--program", program, "--mpi", "none",
                          "-o", dir / "map", "--json"},
                         with("image"));
  ASSERT_LT(built.status, 2) << built.err;
  EXPECT_THAT(built.out, HasSubstr(marker)) << "the image was read";
  EXPECT_THAT(contents_of(dir / "image"), Not(HasSubstr(marker)));
}

class HostileMap : public ::testing::Test {
 protected:
  HostileMap() {
    value_or_throw(write_map(sample_map(40), path_));
    whole_ = value_or_throw(read_file(path_));
    whole_.resize(whole_.size() - map_format::kTrailerSize);
  }

  void SetUp() override {
    if (fs_resolve_.empty() || fs_mount_.empty() || fs_gen_.empty())
      HEDDLE_SKIP("heddle is not installed in $HEDDLE_STAGE");
    fs::create_directory(mount_);
  }
  void expect_refused(const Strings& words, const std::string& why) {
    const auto result = run(words);
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_THAT(result.err, HasSubstr(why));
  }

  /// The sample's pages with one to three numbers changed, and a correct checksum.
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
  std::string mount_ = dir_ / "mount";
  std::string whole_;
  std::string fs_resolve_ = staged_program("fs-resolve");
  std::string fs_mount_ = staged_program("fs-mount");
  std::string fs_gen_ = staged_program("fs-gen");
};

/// A change without an effect leaves the map readable.
TEST_F(HostileMap, thousand_corrupted_maps_are_one_error_line_each) {
  const auto map = dir_ / "m.map";
  int damaged = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    write_text_file(map, changed(seed));
    const auto shown = run({fs_resolve_, "show", map});
    ASSERT_FALSE(shown.timed_out) << seed;
    ASSERT_TRUE(shown.status == 0 || shown.status == 3) << seed << ": " << shown.status;
    if (shown.status == 0) continue;
    ++damaged;
    EXPECT_THAT(shown.err, StartsWith("fs-resolve: " + map + ": damaged map: ")) << seed;
    EXPECT_LE(lines_of(shown.err).size(), 2U) << shown.err;  // the second is a hint
    if (damaged % 4 != 0) continue;
    const auto mounted = run({fs_mount_, map, mount_});
    ASSERT_FALSE(mounted.timed_out) << seed;
    EXPECT_EQ(mounted.status, 3) << seed << ": " << mounted.err;
    EXPECT_THAT(mounted.err, HasSubstr(": damaged map: ")) << seed;
  }
  EXPECT_GT(damaged, 300);
  EXPECT_EQ(mounts_with(mount_), 0U);
}

TEST_F(HostileMap, corrupted_maps_that_are_accepted_crash_no_server) {
  if (::geteuid() != 0) HEDDLE_SKIP("mounts");
  auto content = sample_map(40);
  for (auto& object : content.objects) {
    object.path = dir_ / "files" + object.path;
    write_text_file(object.path, object.soname);
    struct stat status {};
    ASSERT_EQ(::stat(object.path.c_str(), &status), 0);
    object.stamp = file_stamp(status);
    object.hash = hash_bytes(object.soname);
  }
  value_or_throw(write_map(content, path_));
  whole_ = value_or_throw(read_file(path_));
  whole_.resize(whole_.size() - map_format::kTrailerSize);
  const auto map = dir_ / "m.map";
  int served = 0;
  for (unsigned seed = 0; seed < 400 && served < 60; ++seed) {
    write_text_file(map, changed(seed));
    const auto mounted = run({fs_mount_, "--on-drift", "warn", map, mount_});
    ASSERT_FALSE(mounted.timed_out) << seed;
    ASSERT_TRUE(mounted.status == 0 || mounted.status == 3) << seed << ": " << mounted.status;
    const auto guided = run({fs_gen_, "-q", "--via", "direct", "--map", map, "/bin/true"});
    EXPECT_TRUE(guided.status == 0 || guided.status == 3) << seed << ": " << guided.err;
    if (mounted.status != 0) continue;
    ++served;
    // Missing or changed files are errors of their own; the server's end is another one.
    const auto used = run({"sh", "-c", "ls -lR $0; find $0 -type f | xargs head -c 99", mount_});
    EXPECT_FALSE(used.timed_out) << seed;
    EXPECT_THAT(used.err, Not(HasSubstr("not connected"))) << seed;
    EXPECT_THAT(used.out, HasSubstr("libfarm")) << seed;
    EXPECT_EQ(run({fs_mount_, "-u", mount_}).status, 0) << seed;
  }
  EXPECT_GE(served, 60);
  EXPECT_EQ(mounts_with(mount_), 0U);
}

TEST_F(HostileMap, map_of_another_user_is_not_served_by_root) {
  if (::geteuid() != 0) HEDDLE_SKIP("gives files to others");
  ASSERT_EQ(::chown(path_.c_str(), 1000, 1000), 0);
  expect_refused({fs_mount_, path_, mount_},
                 "root does not use this map: it belongs to another user");
  expect_refused({fs_gen_, "--map", path_, "/bin/true"}, "it belongs to another user");
  ASSERT_EQ(::chown(path_.c_str(), 0, 0), 0);
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  expect_refused({fs_mount_, path_, mount_}, "others may write to it");
  EXPECT_EQ(mounts_with(mount_), 0U);
}

TEST_F(HostileMap, map_in_a_writable_directory_is_refused_for_root) {
  const auto map = dir_ / "maps/below/map";
  fs::create_directories(dir_ / "maps/below");
  value_or_throw(write_map({}, map));
  for (const auto& directory : {dir_ / "maps", dir_ / "maps/below"}) {
    ::chmod(directory.c_str(), 0777);
    expect_refused({fs_mount_, map, mount_}, "root does not use this map");
    EXPECT_THAT(run({fs_mount_, map, mount_}).err,
                AllOf(HasSubstr(directory), HasSubstr("\nhint: ")));
    ::chmod(directory.c_str(), 01777);
    EXPECT_EQ(run({fs_mount_, map, mount_}).status, 0) << "a sticky directory, such as /tmp";
    EXPECT_EQ(run({fs_mount_, "-u", mount_}).status, 0);
    ::chmod(directory.c_str(), 0755);
  }
}

TEST_F(HostileMap, fifo_in_place_of_a_map_is_not_opened) {
  const auto fifo = dir_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  WaitingWriter writer(fifo);
  for (const auto& words : {Strings{fs_resolve_, "show", fifo}, {fs_mount_, fifo, mount_}})
    expect_refused(words, "not a heddle map: not a regular file");
  EXPECT_FALSE(writer.has_reader());
}

/// Files are checked before they are opened even in directories that only root may write to.
TEST_F(HostileMap, fifo_named_by_a_map_is_not_opened) {
  if (::geteuid() != 0) HEDDLE_SKIP("only root has such directories");
  const auto own = value_or_throw(TempDir::create("heddle-attack", "/run"));
  ::chmod(own.path().c_str(), 0755);
  const auto fifo = own.path() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  auto content = sample_map(2);
  content.objects.back().path = fifo;  // the last in order
  value_or_throw(write_map(content, path_));
  WaitingWriter writer(fifo);
  EXPECT_EQ(run({fs_mount_, "--verify", path_}).status, 1);
  EXPECT_FALSE(writer.has_reader());
}

}  // namespace
}  // namespace heddle::test
