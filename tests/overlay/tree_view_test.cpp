// SPDX-License-Identifier: MIT
// Directory trees of a map, at `.t` of a mount, compared with the originals.

#include <grp.h>
#include <sys/prctl.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <iostream>

#include "base/mount_service.hpp"
#include "base/mounts.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/tree_view_fixture.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::test {
namespace {

TEST_F(TreeView, every_name_attribute_and_byte_equals_the_original) {
  add("empty", "");
  add("one byte", "x", 0600);
  add("big", random_bytes(3'000'001, 1), 0444);
  add("exactly a MiB", random_bytes(1U << 20, 2));
  add("tool", "#!/bin/sh\n", 0755);
  add("deep/er/and/deeper/file", "deep");
  add("tab\tnewline\nquote\"back\\slash", "odd");
  add("b\xC3\xBC"
      "cher \xE2\x98\x83",
      "utf-8");
  add("not utf-8 \xFF\xFE", "bytes");
  add(std::string(255, 'n'), "long");
  for (int i = 0; i < 3000; ++i) add("many/m" + std::to_string(i) + ".py", std::to_string(i));
  fs::create_directory(native("no entries"));
  fs::permissions(native("deep/er"), fs::perms(0700));
  fs::create_symlink("deep/er", native("link"));
  fs::create_symlink("/nonexistent/" + std::string(4000, 'x'), native("dangling"));
  fs::create_hard_link(native("big"), native("deep/hard"));
  ASSERT_EQ(::lchown(native("empty").c_str(), 1234, 2345), 0);
  const timespec times[] = {{1, 2}, {-7, 123456789}};
  ASSERT_EQ(::utimensat(AT_FDCWD, native("tool").c_str(), times, 0), 0);
  mount();
  ASSERT_EQ(names_below(source()), names_below(served("")));
  auto names = names_below(source());
  names.insert("");
  std::map<ino_t, ino_t> numbers;
  for (const auto& name : names) {
    const auto a = status_of(native(name)), b = status_of(served(name));
    EXPECT_EQ(a.st_mode, b.st_mode) << name;
    EXPECT_EQ(a.st_size, b.st_size) << name;
    EXPECT_EQ(a.st_uid, b.st_uid) << name;
    EXPECT_EQ(a.st_gid, b.st_gid) << name;
    EXPECT_EQ(a.st_nlink, b.st_nlink) << name;
    EXPECT_EQ(file_stamp(a).mtime_ns, file_stamp(b).mtime_ns) << name;
    EXPECT_EQ(b.st_atim.tv_nsec, b.st_mtim.tv_nsec) << name;
    EXPECT_GE(b.st_ino, std::uint64_t{1} << 32) << name;
    const auto [known, fresh] = numbers.emplace(a.st_ino, b.st_ino);
    EXPECT_EQ(known->second, b.st_ino) << name;
    if (S_ISLNK(a.st_mode)) {
      EXPECT_EQ(fs::read_symlink(native(name)), fs::read_symlink(served(name)));
    }
    if (!S_ISREG(a.st_mode)) continue;
    EXPECT_EQ(value_or_throw(read_file(native(name))), value_or_throw(read_file(served(name))))
        << name;
  }
  EXPECT_EQ(status_of(served("")).st_ino, (std::uint64_t{1} << 32) + 1);
  EXPECT_EQ(stats()["trees"], 1);
  EXPECT_EQ(stats()["tree_entries"], names.size());
  EXPECT_EQ(stats()["tree_changed_files"], 0);
  char list[8];
  EXPECT_EQ(::listxattr(served("big").c_str(), list, sizeof(list)), 0);
  EXPECT_EQ(::getxattr(served("big").c_str(), "user.x", list, sizeof(list)), -1);
  EXPECT_EQ(errno, ENODATA);
}

TEST_F(TreeView, later_processes_ask_for_no_name_content_or_attribute) {
  for (int i = 0; i < 300; ++i) add("p" + std::to_string(i) + "/__init__.py", "x");
  fs::create_directory_symlink("p0", native("link"));
  mount();
  const auto visit = [&] {
    const std::string script =
        "import os,sys\n"
        "for i in range(300):\n"
        "  d=sys.argv[1]+'/p%d'%i\n"
        "  os.listdir(d)\n"
        "  for n in ('', '/__init__.py','/none.py','/__init__.so','/a/b'):\n"
        "    try: os.stat(d+n)\n"
        "    except OSError: pass\n"
        "  open(d+'/__init__.py').read()\n"
        "os.readlink(sys.argv[1]+'/link')\n"
        "os.stat(sys.argv[1]+'/link/none.py')";
    return run({"python3", "-I", "-c", script, served("")});
  };
  if (visit().status == 127) HEDDLE_SKIP("no python3");
  // The second process has GETATTRs: the kernel takes a READ for a change of atime where a mount is
  // not read-only (fs/fuse/file.c, fuse_invalidate_atime). Others on this machine may have the
  // kernel drop caches.
  bool quiet = false;
  for (int tries = 0; tries < 5 && !quiet; ++tries) {
    EXPECT_THAT(visit().err, HasSubstr("none.py"));
    auto before = stats()["requests"];
    (void)visit();
    auto after = stats()["requests"];
    // Python's isatty(3) at each open, before 3.13; the kernel remembers no answer to that.
    for (const char* kind : {"getxattr", "ioctl"}) before[kind] = after[kind] = 0;
    quiet = before == after;
    if (!quiet) std::cout << before << "\n" << after << "\n";
  }
  EXPECT_TRUE(quiet);
}

TEST_F(TreeView, reads_at_any_position_equal_the_original) {
  const auto bytes = random_bytes(5'000'003, 7);
  add("file", bytes);
  mount();
  std::mt19937 random(1);
  std::string buffer(2U << 20, '\0');
  for (int i = 0; i < 300; ++i) {
    const auto file = value_or_throw(open_file(served("file"), O_RDONLY));
    if (i % 3 == 0) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    const std::size_t at = random() % (bytes.size() + 10'000);
    const std::size_t size = random() % buffer.size();
    const auto got = ::pread(file.get(), buffer.data(), size, static_cast<off_t>(at));
    const auto expected =
        at < bytes.size() ? std::string_view(bytes).substr(at, size) : std::string_view();
    ASSERT_EQ(got, static_cast<ssize_t>(expected.size()));
    ASSERT_TRUE(std::string_view(buffer).starts_with(expected)) << at << " " << size;
  }
}

TEST_F(TreeView, sixty_four_processes_read_and_stat_at_once) {
  for (int i = 0; i < 200; ++i)
    add("p" + std::to_string(i) + "/m.py", random_bytes(20'000, unsigned(i)));
  mount();
  std::vector<pid_t> children;
  for (int child = 0; child < 64; ++child) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int wrong = 0;
      for (int i = 0; i < 200; ++i) {
        const auto directory = "p" + std::to_string(i);
        struct stat st {};
        wrong += ::stat(served(directory + "/none.py").c_str(), &st) == 0;
        wrong += ::stat(served(directory + "/m.py").c_str(), &st) != 0 || st.st_size != 20'000;
        wrong += read_file(served(directory + "/m.py")).value_or("") !=
                 random_bytes(20'000, unsigned(i));
      }
      ::_exit(wrong != 0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  // More where the kernel has had to drop pages meanwhile.
  EXPECT_LT(stats()["tree_bytes_read"], 2 * 200 * 20'000);
}

/// Memory of a daemon in bytes: its private pages, and its part of shared ones.
std::uint64_t memory_of(const Mount& mount) {
  std::uint64_t kib = 0;
  for (const int pid : {mount.pid(), mount.worker()}) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/smaps_rollup");
    for (std::string word; in >> word;)
      if (word == "Pss:" && in >> word) kib += std::stoull(word);
  }
  return kib * 1024;
}

TEST_F(TreeView, two_hundred_thousand_entries_cost_little_time_and_memory) {
  const auto make = [&](int packages) {
    TreeIndexWriter::Entry root{.mode = S_IFDIR | 0755};
    for (int i = 0; i < packages; ++i) {
      auto& package = root.children.emplace_back(TreeIndexWriter::Entry{
          .name = "package" + std::to_string(i), .mode = S_IFDIR | 0755, .links = 2});
      for (int j = 0; j < 99; ++j)
        package.children.push_back(
            {.name = "module_" + std::to_string(j) + ".py", .mode = S_IFREG | 0644, .size = 1000});
    }
    MapContent content;
    content.trees.push_back({source(), value_or_throw(TreeIndexWriter::encode(std::move(root)))});
    value_or_throw(heddle::write_map(content, dir_ / "map"));
  };
  const auto mount_in = [&] {
    const auto begin = std::chrono::steady_clock::now();
    mount_.emplace(dir_ / "map", dir_ / "mnt", std::vector<std::string>{"--prefetch", "0"});
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin);
  };
  make(1);
  const auto small = mount_in();
  const auto before = memory_of(*mount_);
  mount_.reset();
  make(2000);
  auto large = mount_in();
  for (int i = 0; i < 4; ++i) {
    mount_.reset();
    large = std::min(large, mount_in());
  }
  const double each = static_cast<double>(memory_of(*mount_) - before) / 200'000;
  std::cout << small.count() << " ms with 100 entries, " << large.count() << " ms with 200,001; "
            << each << " bytes an entry\n";
  if (!kSanitized) {
    EXPECT_LT(each, 200);
    EXPECT_LT((large - small).count(), 400);  // a quarter of that on an idle machine
  }
  EXPECT_EQ(status_of(served("package1999/module_98.py")).st_size, 1000);
}

TEST_F(TreeView, original_is_asked_for_each_directory_once_and_for_each_file_and_mib_a_few_times) {
  constexpr std::size_t kSize = (3U << 20) + 5;
  for (int i = 0; i < 50; ++i) add("a/b/p" + std::to_string(i) + "/m.py", "x");
  add("a/b/large", random_bytes(kSize, 3));
  SlowMount slow(source(), dir_ / "slow", dir_ / "counts");
  mount({}, slow.directory());
  (void)names_below(served(""));
  ASSERT_EQ(::access(served("a/b/none").c_str(), F_OK), -1);
  EXPECT_EQ(slow.counts().missing.size(), 0U);
  (void)slow.reset();
  {
    // Several at once ask for the same directories.
    std::vector<std::jthread> readers;
    for (int t = 0; t < 8; ++t)
      readers.emplace_back([&] {
        for (int i = 0; i < 50; ++i)
          EXPECT_EQ(read_file(served("a/b/p" + std::to_string(i) + "/m.py")).value_or(""), "x");
      });
  }
  EXPECT_EQ(value_or_throw(read_file(served("a/b/large"))), random_bytes(kSize, 3));
  ASSERT_EQ(mount_->unmount().status, 0);  // closes the files
  ASSERT_TRUE(wait_until(5s, [&] { return !is_running(mount_->pid()); }));
  const auto counts = slow.counts();
  EXPECT_EQ(counts.directories.size(), 52U);
  EXPECT_EQ(SlowCounts::most(counts.directories).first, 1U);
  EXPECT_EQ(counts.missing.size(), 0U);
  EXPECT_EQ(counts.files.size(), 51U);
  for (const auto& [path, requests] : counts.files)
    EXPECT_LE(SlowCounts::sum(requests), path == "a/b/large" ? 4U + 4U : 4U + 1U)
        << path << " " << nlohmann::json(requests);
}

TEST_F(TreeView, original_of_a_library_is_asked_for_each_mib_once) {
  constexpr std::size_t kSize = (6U << 20) + 5;
  constexpr unsigned kParts = 7;
  add("liba.so.1", random_bytes(kSize, 3));
  SlowMount slow(source(), dir_ / "slow", dir_ / "counts");
  MapMaker maker;
  maker.add_name("v", "liba.so.1", slow.directory() + "/liba.so.1");
  maker.write(dir_ / "map");
  (void)slow.reset();
  mount_.emplace(dir_ / "map", dir_ / "mnt");
  mount_->wait_for_prefetch();
  EXPECT_EQ(value_or_throw(read_file(*mount_ / "liba.so.1")), random_bytes(kSize, 3));
  ASSERT_EQ(mount_->unmount().status, 0);  // closes the file
  ASSERT_TRUE(wait_until(5s, [&] { return !is_running(mount_->pid()); }));
  const auto counts = slow.counts();
  auto requests = counts.files.at("liba.so.1");
  // One may be asked for by two at once, or was reclaimed.
  EXPECT_LE(requests["READ"], kParts + 1U) << nlohmann::json(requests);
  // By the kernel each time that it is opened, and by the daemon to see that it is unchanged.
  EXPECT_LE(requests["GETATTR"], kParts + 4U) << nlohmann::json(requests);
  EXPECT_LE(SlowCounts::sum(requests) - requests["READ"] - requests["GETATTR"], 5U);
  EXPECT_EQ(counts.missing.size(), 0U);
}

TEST_F(TreeView, mounting_many_trees_looks_each_up_and_asks_nothing_else) {
  for (int i = 0; i < 20; ++i) add("t" + std::to_string(i) + "/m.py", "x");
  SlowMount slow(source(), dir_ / "slow", dir_ / "counts");
  MapMaker maker;
  for (int i = 0; i < 20; ++i) maker.add_tree(slow.directory() + "/t" + std::to_string(i));
  const auto map = maker.write(dir_ / "many.map");
  (void)slow.reset();
  const Mount mount(map, dir_ / "many", {"--prefetch", "0"});
  auto counts = slow.counts();
  EXPECT_EQ(counts.opcodes["LOOKUP"], 20U);
  EXPECT_EQ(counts.opcodes["STATFS"], 0U);
  EXPECT_LE(counts.opcodes["GETATTR"], 1U);  // of the root, by the kernel
}

TEST_F(TreeView, only_its_owner_reaches_a_tree_through_the_mount) {
  add("file", "x");
  mount();
  EXPECT_EQ(
      run({"setpriv", "--reuid=1511", "--regid=1511", "--clear-groups", "cat", served("file")})
          .status,
      1);
  EXPECT_EQ(status_of(*mount_ / ".t").st_mode & 07777U, 0500U);
  EXPECT_EQ(status_of(*mount_ / ".heddle/map").st_mode & 07777U, 0400U);
}

TEST_F(TreeView, excluded_directory_is_empty_and_mounts_over_it_show) {
  add("in/file", "x");
  add("out/file", "y");
  MapMaker maker;
  maker.add_tree(source(), {}, native("out"));
  mount_.emplace(maker.write(dir_ / "map"), dir_ / "mnt");
  EXPECT_EQ(names_below(served("")), (std::set<std::string>{"in", "in/file", "out"}));
  ASSERT_EQ(::mount(native("out").c_str(), served("out").c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_EQ(read_file(served("out/file")).value_or(""), "y");
  ::umount2(served("out").c_str(), MNT_DETACH);
}

/// What a user sees of a file, natively and in the mount: errno or 0 of reading it, and its owner.
std::string seen_of(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) return "no status";
  const auto text = read_file(path);
  return (text ? "read" : std::to_string(text.error().code())) + " " + std::to_string(st.st_uid) +
         ":" + std::to_string(st.st_gid);
}

/// Mounts in a user namespace, sends the device, and then exits with the number of `names` that
/// look other than natively.
int compare_in_user_namespace(int socket, const std::string& mount_point, const std::string& native,
                              const std::vector<std::string>& names) {
  if (!enter_private_namespace(NamespaceKind::user_and_mount)) return 101;
  {
    const auto device = open_fuse_device();
    if (!device || !mount_fuse_device(device->get(), mount_point, Writes::refused_by_daemon) ||
        !send_fd(socket, device->get()))
      return 102;
  }
  char go = 0;
  if (::read(socket, &go, 1) != 1) return 103;
  int wrong = 0;
  for (const auto& name : names) {
    const auto a = seen_of(native + "/" + name), b = seen_of(mount_point + "/.t/0/" + name);
    if (a != b) std::cerr << name << ": natively " << a << ", served " << b << "\n", ++wrong;
  }
  return wrong;
}

TEST_F(TreeView, user_namespace_shows_owners_and_grants_reads_as_natively) {
  constexpr unsigned kUser = 1511, kGroup = 1600;
  const std::vector<std::string> names = {
      "own",    "of the group",          "not of the group",      "closed",
      "public", "closed directory/file", "group's directory/file"};
  for (const auto& name : names) add(name, "content");
  const auto give = [&](const std::string& name, unsigned owner, unsigned group, unsigned mode) {
    ASSERT_EQ(::chown(native(name).c_str(), owner, group), 0);
    ASSERT_EQ(::chmod(native(name).c_str(), mode), 0);
  };
  give("own", kUser, kUser, 0600);
  give("of the group", 0, kGroup, 0640);
  give("not of the group", 0, kGroup, 0604);
  give("closed", 0, 0, 0600);
  give("closed directory", 0, 0, 0700);
  give("group's directory", 0, kGroup, 0750);
  MapMaker maker;
  maker.add_tree(source());
  maker.write(dir_ / "map");
  fs::create_directory(dir_ / "mnt");
  fs::copy_file(fs_mount(), dir_ / "fs-mount");
  const pid_t user = ::fork();
  if (user == 0) {
    // /dev/fuse is open to all, as on most nodes.
    const auto node = dir_ / "fuse";
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mknod(node.c_str(), S_IFCHR | 0666, ::makedev(10, 229)) != 0 ||
        ::chmod(node.c_str(), 0666) != 0 ||
        ::mount(node.c_str(), "/dev/fuse", nullptr, MS_BIND, nullptr) != 0)
      ::_exit(96);
    const gid_t groups[] = {kGroup};
    if (::setgroups(1, groups) != 0 || ::setgid(kUser) != 0 || ::setuid(kUser) != 0 ||
        ::prctl(PR_SET_DUMPABLE, 1) != 0)
      ::_exit(99);
    auto mounting = value_or_throw(make_socket_pair());
    const pid_t inside = ::fork();
    if (inside == 0)
      ::_exit(compare_in_user_namespace(mounting.other.get(), dir_ / "mnt", source(), names));
    mounting.other.reset();
    const auto device = receive_fd(mounting.one.get());
    if (!device) ::_exit(98);
    auto ready = value_or_throw(make_socket_pair());
    SpawnOptions options;
    options.fds = {{device->get(), 7}, {ready.other.get(), 9}};
    auto daemon = value_or_throw(spawn(dir_ / "fs-mount",
                                       {"fs-mount", "--fuse-fd", "7", "--ready-fd", "9",
                                        "--mount-point", dir_ / "mnt", dir_ / "map"},
                                       options));
    ready.other.reset();
    if (!await_ready(ready.one.get())) ::_exit(97);
    (void)!::write(mounting.one.get(), "+", 1);
    int status = 0;
    ::waitpid(inside, &status, 0);
    (void)daemon.release();
    ::_exit(WEXITSTATUS(status));
  }
  int status = 0;
  ::waitpid(user, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(TreeView, program_that_lies_in_a_tree_is_guided) {
  HEDDLE_STAGED(auditor, "libheddle-audit.so");
  const auto library = build_library({.output = dir_ / "elsewhere/libword.so.1",
                                      .source = "int word(void){return 42;}",
                                      .flags = {"-Wl,-soname,libword.so.1"}});
  build_program({.output = native("v1/app"),
                 .source = "int word(void);int main(void){return word();}",
                 .flags = {library}});
  fs::create_directory_symlink("v1", native("current"));
  MapMaker maker;
  maker.add_tree(source());
  maker.add_name("v", "libword.so.1", library);
  maker.add_file(native("current/app"));
  auto content = maker.content();
  const auto id_of = [&](const std::string& path) { return *find_name(content.paths, path); };
  MapProgram program;
  program.path = native("current/app");
  program.object = id_of(program.path);
  program.guided = {{"libword.so.1", id_of(library)}};
  content.programs.push_back(program);
  value_or_throw(heddle::write_map(content, dir_ / "map"));
  mount_.emplace(dir_ / "map", dir_ / "mnt");
  const auto start = [&](const std::string& before) {
    return run({"unshare", "-m", "sh", "-c", before + "exec \"$0\"", native("current/app")},
               {.env = {"LD_AUDIT=" + auditor, "HEDDLE_INDEX=" + (*mount_ / ".heddle/index")}});
  };
  const auto original = start("");
  EXPECT_EQ(original.status, 42) << original.err;
  const auto inside = start("mount --bind " + served("") + " " + source() + " && ");
  EXPECT_EQ(inside.status, 42) << inside.err;
}

TEST_F(TreeView, objects_in_hundreds_of_trees_cost_little_time) {
  constexpr int kTrees = 1000, kLibraries = 1000;
  for (int i = 0; i < kLibraries; ++i) write_text_file(dir_ / "lib/n" + std::to_string(i), "x");
  for (int i = 0; i < kTrees; ++i) add("t" + std::to_string(i) + "/file", "x");
  const auto best_of = [&](int trees) {
    MapMaker maker;
    maker.add_directory("v", dir_ / "lib");
    for (int i = 0; i < trees; ++i) maker.add_tree(native("t" + std::to_string(i)));
    maker.write(dir_ / "map");
    auto best = 1e9;
    for (int i = 0; i < 5; ++i) {
      mount_.reset();
      const auto begin = std::chrono::steady_clock::now();
      mount_.emplace(dir_ / "map", dir_ / "mnt", std::vector<std::string>{"--prefetch", "0"});
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count());
    }
    return best;
  };
  const auto without = best_of(0), with = best_of(kTrees);
  std::cout << without << " ms without trees, " << with << " ms with " << kTrees << "\n";
  if (!kSanitized) {
    EXPECT_LT(with - without, 300);  // a tenth of that on an idle machine
  }
}

}  // namespace
}  // namespace heddle::test
