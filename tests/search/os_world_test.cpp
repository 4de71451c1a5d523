// SPDX-License-Identifier: MIT
#include "resolver/search/os_world.hpp"

#include <elf.h>
#include <sys/wait.h>

#include "resolver/search/search.hpp"
#include "tests/search/plain_facts.hpp"
#include "tests/search/tiny_elf.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/prelude.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

using Presence = World::Presence;
constexpr auto kLoader = kNativeLoader;

TEST(OsWorld, directories_files_and_missing_names_differ) {
  const TestDir dir;
  write_text_file(dir / "directory/a b\n", "x");
  std::filesystem::create_symlink("nowhere", dir / "directory/dangling");
  std::filesystem::create_symlink("loop", dir / "loop");
  PlainFacts source;
  OsWorld world(source);
  const auto directory = world.directory(dir / "directory/");
  EXPECT_TRUE(world.state(directory).is_directory);
  EXPECT_EQ(world.entry(directory, EntryName("a b\n")), Presence::present);
  EXPECT_EQ(world.entry(directory, EntryName("dangling")), Presence::present);
  EXPECT_EQ(world.entry(directory, EntryName("c")), Presence::absent);
  EXPECT_EQ(world.state(world.directory(dir / "gone/")).stat_error, ENOENT);
  const auto file = world.state(world.directory(dir / "directory/a b\n/"));
  EXPECT_FALSE(file.is_directory);
  EXPECT_EQ(file.stat_error, 0);
  EXPECT_EQ(file.open_error(), ENOTDIR);
  EXPECT_EQ(world.state(world.directory(dir / "directory/a b\n/below/")).stat_error, ENOTDIR);
  EXPECT_EQ(world.state(world.directory(dir / "loop/")).stat_error, ELOOP);
  EXPECT_EQ(world.state(world.subdirectory(directory, "tls/x86_64/")).stat_error, ENOENT);
  EXPECT_TRUE(world.state(world.directory("")).is_directory);
}

TEST(OsWorld, directory_of_thousands_is_listed) {
  const TestDir dir;
  for (int i = 0; i < 3000; ++i)
    write_text_file(dir / ("directory/library-number-" + std::to_string(i)), "");
  PlainFacts source;
  OsWorld world(source);
  const auto directory = world.directory(dir / "directory/");
  for (int i = 0; i < 3000; ++i) {
    const auto name = "library-number-" + std::to_string(i);
    ASSERT_EQ(world.entry(directory, EntryName(name)), Presence::present);
  }
  EXPECT_EQ(world.entry(directory, EntryName("library-number-3000")), Presence::absent);
}

TEST(OsWorld, unlistable_directory_is_probed_by_name) {
  if (::geteuid() != 0) HEDDLE_SKIP("drops root's rights for the test");
  const TestDir dir;
  write_elf(dir / "directory/liba.so", {});
  write_elf(dir / "directory/glibc-hwcaps/x86-64-v2/libb.so", {});
  ::chmod(dir.path().c_str(), 0755);
  ::chmod((dir / "directory").c_str(), 0711);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setegid(65534) != 0 || ::seteuid(65534) != 0) ::_exit(9);
    PlainFacts source;
    OsWorld world(source);
    const auto directory = world.directory(dir / "directory/");
    if (!world.state(directory).is_directory) ::_exit(1);
    if (world.entry(directory, EntryName("liba.so")) != Presence::present) ::_exit(2);
    if (world.entry(directory, EntryName("libz.so")) != Presence::absent) ::_exit(3);
    if (!world.facts(dir / "directory/liba.so")) ::_exit(4);
    const auto below = world.subdirectory(directory, "glibc-hwcaps/x86-64-v2/");
    if (world.entry(below, EntryName("libb.so")) != Presence::present) ::_exit(5);
    if (world.state(world.subdirectory(directory, "tls/")).is_directory) ::_exit(6);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(OsWorld, below_another_root_links_and_dots_stay_inside) {
  const TestDir dir;
  TinyElf app{.machine = kNativeMachine};
  app.interp = kLoader;
  app.dependencies = {{Dependency::Kind::needed, "liba.so"}, {Dependency::Kind::needed, "libb.so"}};
  app.runpath = "$ORIGIN/../lib:/../../../up";
  write_elf(dir / "root/usr/bin/app", app);
  write_elf(dir / "root/opt/liba.so", {.machine = kNativeMachine});
  write_elf(dir / "root/up/libb.so", {.machine = kNativeMachine});
  std::filesystem::create_symlink("/opt", dir / "root/usr/lib");
  std::filesystem::create_symlink("usr/bin", dir / "root/bin");
  const auto loader_copy = std::filesystem::path(dir / "root") += kLoader;
  std::filesystem::create_directories(loader_copy.parent_path());
  std::filesystem::copy_file(kLoader, loader_copy);
  PlainFacts source;
  source.root = value_or_throw(open_file(dir / "root", O_PATH | O_DIRECTORY));
  auto world = value_or_throw(OsWorld::below(source, dir / "root"));
  EXPECT_EQ(world.real_path("/bin/app"), "/usr/bin/app");
  EXPECT_EQ(world.real_path("/nothing"), "");
  const auto loader = value_or_throw(read_loader_profile(world, kLoader));
  const auto closure = value_or_throw(resolve(world, loader, "/bin/app", {}));
  ASSERT_TRUE(closure.missing.empty());
  EXPECT_EQ(closure.objects[1].path, "/usr/bin/../lib/liba.so");
  EXPECT_EQ(closure.objects[2].path, "/../../../up/libb.so");
  EXPECT_FALSE(OsWorld::below(source, dir / "nothing"));
}

TEST(OsWorld, search_directories_are_listed_once_and_not_probed) {
  if (!strace_works()) HEDDLE_SKIP("no strace");
  const TestDir dir;
  const auto farm = ElfFarm::build(dir / "farm", {.libraries = 60});
  const auto log = dir / "strace.log";
  run_checked({"strace", "-f", "-o", log, "-s", "4096", "-e", "trace=file,getdents64",
               HEDDLE_SEARCH_TOOL, farm.program});
  const auto text = value_or_throw(read_file(log));
  const auto directory = farm.directories[0].substr(0, farm.directories[0].rfind('/'));
  std::size_t failed = 0;
  std::size_t listed = 0;
  for (const auto& [pid, call] : strace_calls(text)) {
    if (call.find(directory) == call.npos) continue;
    failed += call.find(" = -1 ") != call.npos ? 1 : 0;
    listed += call.find("O_DIRECTORY") != call.npos ? 1 : 0;
  }
  EXPECT_EQ(failed, 0U);
  EXPECT_EQ(listed, farm.directories.size());
}

TEST(OsWorld, answers_record_the_paths_they_depend_on) {
  const TestDir dir;
  write_text_file(dir / "lib/liba.so", "x");
  PlainFacts source;
  auto world = value_or_throw(OsWorld::below(source, dir.path()));
  const auto directory = world.directory("/lib/");
  (void)world.entry(directory, EntryName("liba.so"));
  (void)world.entry(directory, EntryName("libb.so"));
  const auto missing = world.subdirectory(directory, "tls/x86_64/");
  (void)world.entry(missing, EntryName("libc.so"));
  (void)world.entry(world.directory(""), EntryName("libd.so"));
  (void)world.directory("/none/");
  (void)world.facts("/lib/liba.so");
  (void)world.read("/etc/ld.so.cache");
  (void)world.real_path("/opt/odd");
  EXPECT_EQ(world.asked(), (std::vector<std::string>{".", "/etc/ld.so.cache", "/lib",
                                                     "/lib/liba.so", "/lib/libb.so", "/lib/tls",
                                                     "/libd.so", "/none", "/opt/odd"}));
  for (int i = 0; i < 100; ++i) {
    const auto name = "lib" + std::to_string(i) + ".so";
    (void)world.entry(directory, EntryName(name));
  }
  EXPECT_EQ(world.asked(),
            (std::vector<std::string>{".", "/etc/ld.so.cache", "/lib", "/lib/", "/lib/liba.so",
                                      "/libd.so", "/none", "/opt/odd"}));
}

constexpr const char* kConstant = "Wool Version: 4.0.2";
constexpr const char* kVariable = "a word that may change";
constexpr const char* kCode = "these are instructions";

class ReadData : public testing::Test {
 protected:
  std::string library(const std::string& flag) const {
    return build_library({.output = dir_ / "liba.so",
                          .source = std::string("const char* constant(void) { return \"") +
                                    kConstant + "\"; }\nchar variable[] = \"" + kVariable +
                                    "\";\n__asm__(\".text\\n.ascii \\\"" + kCode + "\\\"\\n\");\n",
                          .flags = {"-Wl,-z," + flag}});
  }
  static std::string data_of(const std::string& path) {
    PlainFacts source;
    return value_or_throw(OsWorld(source).read_data(path));
  }
  static bool holds(const std::string& bytes, const char* text) {
    return bytes.find(text) != bytes.npos;
  }
  TestDir dir_;
};

TEST_F(ReadData, data_excludes_only_the_code) {
  const auto data = data_of(library("separate-code"));
  EXPECT_TRUE(holds(data, kConstant));
  EXPECT_TRUE(holds(data, kVariable));
  EXPECT_FALSE(holds(data, kCode));
  const auto mixed = data_of(library("noseparate-code"));
  EXPECT_TRUE(holds(mixed, kConstant)) << "constants that the linker put beside the code";
  EXPECT_TRUE(holds(mixed, kVariable));
}

TEST_F(ReadData, data_of_a_non_elf_file_is_all_of_it) {
  for (const std::string text : {"", "\177ELF", "a linker script, perhaps"}) {
    write_text_file(dir_ / "text", text);
    EXPECT_EQ(data_of(dir_ / "text"), text);
  }
}

TEST_F(ReadData, wrong_headers_do_not_lead_outside_the_file) {
  auto bytes = value_or_throw(read_file(library("separate-code")));
  auto* header = reinterpret_cast<Elf64_Ehdr*>(bytes.data());
  auto* segments = reinterpret_cast<Elf64_Phdr*>(bytes.data() + header->e_phoff);
  for (int i = 0; i < header->e_phnum; ++i) segments[i].p_filesz = ~0ULL;
  write_text_file(dir_ / "long.so", bytes);
  EXPECT_TRUE(holds(data_of(dir_ / "long.so"), kConstant));
  for (int i = 0; i < header->e_phnum; ++i) segments[i].p_offset = ~0ULL - 1;
  write_text_file(dir_ / "far.so", bytes);
  EXPECT_EQ(data_of(dir_ / "far.so"), "");
}

}  // namespace
}  // namespace heddle::test
