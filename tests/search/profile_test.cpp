// SPDX-License-Identifier: MIT

#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"
#include "tests/search/fake_world.hpp"
#include "tests/search/plain_facts.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

constexpr auto kLoader = kNativeLoader;

/// `ld.so --list-diagnostics` (glibc 2.33 and newer) as name -> value.
std::map<std::string, std::string> diagnostics() {
  const auto text = run({kLoader, "--list-diagnostics"}).out;
  std::map<std::string, std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals == line.npos) continue;
    auto value = line.substr(equals + 1);
    if (value.starts_with('"') && value.ends_with('"') && value.size() > 1)
      value = value.substr(1, value.size() - 2);
    out[line.substr(0, equals)] = value;
  }
  return out;
}

TEST(LoaderProfile, profile_equals_the_diagnostics_of_this_ld_so) {
  const auto diagnosed = diagnostics();
  if (!diagnosed.contains("version.version")) HEDDLE_SKIP("ld.so has no --list-diagnostics");
  PlainFacts source;
  OsWorld world(source);
  const auto loader = value_or_throw(read_loader_profile(world, kLoader));
  EXPECT_EQ("2." + std::to_string(loader.glibc_minor), diagnosed.at("version.version"));
  EXPECT_EQ(loader.soname, diagnosed.at("dso.ld"));
  EXPECT_EQ(loader.lib, diagnosed.at("dl_dst_lib"));
  EXPECT_EQ(loader.platform, diagnosed.at("dl_platform"));
  EXPECT_EQ(loader.cache_path, diagnosed.at("path.sysconfdir") + "/ld.so.cache");
  EXPECT_EQ(loader.preload_path, "/etc/ld.so.preload");
  for (std::size_t i = 0; i < loader.default_directories.size(); ++i)
    EXPECT_EQ(loader.default_directories[i],
              diagnosed.at("path.system_dirs[0x" + std::string(1, "0123456789abcdef"[i]) + "]"));
  EXPECT_FALSE(diagnosed.contains("path.system_dirs[0x" +
                                  std::to_string(loader.default_directories.size()) + "]"));
  // A bit for each of the three levels, the best first.
  EXPECT_EQ((1U << loader.hwcaps.size()) - 1,
            std::stoul(diagnosed.at("dl_hwcaps_subdirs_active"), nullptr, 16));
  if (loader.glibc_minor < 37) {
    EXPECT_EQ(loader.legacy_bits, std::stoul(diagnosed.at("dl_hwcap"), nullptr, 16) &
                                      std::stoul(diagnosed.at("dl_hwcap_important"), nullptr, 16));
  }
}

TEST(LoaderProfile, musl_and_non_loaders_are_refused) {
  FakeWorld world;
  auto musl = TinyElf{}.bytes() + std::string("musl libc (x86_64)\0Version 1.2.3", 32);
  world.add_text("/lib/ld-musl-x86_64.so.1", musl);
  const auto loader = read_loader_profile(world, "/lib/ld-musl-x86_64.so.1");
  ASSERT_FALSE(loader);
  EXPECT_EQ(loader.error().code(), ENOTSUP);
  EXPECT_THAT(loader.error().message(), HasSubstr("/lib/ld-musl-x86_64.so.1"));
  world.add("/lib/libfoo.so", {});
  EXPECT_EQ(read_loader_profile(world, "/lib/libfoo.so").error().code(), ENOTSUP);
  EXPECT_EQ(read_loader_profile(world, "/nowhere").error().code(), ENOENT);
}

TEST(LoaderProfile, glibc_before_2_26_is_refused) {
  using namespace std::string_literals;
  FakeWorld world;
  for (const auto* minor : {"25", "26"})
    world.add_text("/ld-2."s + minor + ".so",
                   TinyElf{}.bytes() + "\0lib64\0/lib64/\0/usr/lib64/\0/etc/ld.so.cache\0"s);
  const auto old = read_loader_profile(world, "/ld-2.25.so");
  ASSERT_FALSE(old);
  EXPECT_EQ(old.error().code(), ENOTSUP);
  EXPECT_THAT(old.error().message(), HasSubstr("2.25"));
  EXPECT_EQ(value_or_throw(read_loader_profile(world, "/ld-2.26.so")).glibc_minor, 26);
}

TEST(LoaderProfile, strings_of_other_builds_are_found) {
  const auto make = [](const std::string& strings) { return TinyElf{}.bytes() + '\0' + strings; };
  using namespace std::string_literals;
  FakeWorld world;
  world.add_text("/fedora", make("lib64\0/proc/self/exe\0/lib64/\0/usr/lib64/\0/etc/ld.so.cache\0"
                                 "ld.so (GNU libc) stable release version 2.38.\n\0"s));
  const auto fedora = value_or_throw(read_loader_profile(world, "/fedora"));
  EXPECT_EQ(fedora.default_directories, (std::vector<std::string>{"/lib64/", "/usr/lib64/"}));
  EXPECT_EQ(fedora.lib, "lib64");
  EXPECT_EQ(fedora.glibc_minor, 38);
  EXPECT_TRUE(fedora.legacy_hwcaps.empty());
  world.add_text("/nix", make("lib\0/nix/store/abc-glibc-2.40-1/etc/ld.so.cache\0"
                              "/nix/store/abc-glibc-2.40-1/lib/\0/var/tmp\0"
                              "ld.so (GNU libc) stable release version 2.40.\n\0"s));
  const auto nix = value_or_throw(read_loader_profile(world, "/nix"));
  EXPECT_EQ(nix.default_directories,
            (std::vector<std::string>{"/nix/store/abc-glibc-2.40-1/lib/"}));
  EXPECT_EQ(nix.cache_path, "/nix/store/abc-glibc-2.40-1/etc/ld.so.cache");
  EXPECT_EQ(nix.lib, "lib");
  world.add_text("/x32", TinyElf{.elf_class = ELFCLASS32}.bytes() +
                             "\0libx32\0/libx32/\0/usr/libx32/\0/etc/ld.so.cache\0x86-64-v2\0"
                             "ld.so (GNU libc) stable release version 2.36.\n\0"s);
  const auto x32 = value_or_throw(read_loader_profile(world, "/x32"));
  EXPECT_EQ(x32.lib, "libx32");
  EXPECT_EQ(x32.hwcaps,
            std::vector<std::string>((read_cpu_levels().isa_levels & 2) != 0, "x86-64-v2"));
  EXPECT_EQ(x32.legacy_bits & 2, 2U);  // HWCAP_X86_64
  world.add_text("/lib/ld-2.31.so", make("/lib64/\0/usr/lib64/\0/etc/ld.so.cache\0"s));
  EXPECT_EQ(value_or_throw(read_loader_profile(world, "/lib/ld-2.31.so")).glibc_minor, 31);
}

}  // namespace
}  // namespace heddle::test
