// SPDX-License-Identifier: MIT
// The search on a file system in memory: its requests, and rules of other glibc versions than this
// machine's.

#include "resolver/search/search.hpp"
#include "resolver/search/search_path.hpp"
#include "tests/search/cache_bytes.hpp"
#include "tests/search/fake_world.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using Kind = Dependency::Kind;
using testing::Test;

struct Search : Test {
  Search() {
    loader.default_directories = {"/lib/"};
    TinyElf ld_so;
    ld_so.soname = loader.soname;
    world.add(loader.interpreter, ld_so);
  }

  static TinyElf needing(const std::vector<std::string>& names) {
    TinyElf elf;
    for (const auto& name : names) elf.dependencies.push_back({Kind::needed, name});
    return elf;
  }
  void program(TinyElf elf, const std::string& path = "/app") {
    elf.interp = loader.interpreter;
    world.add(path, elf);
  }
  Closure run(const std::string& path = "/app") {
    options.explain = true;
    return value_or_throw(resolve(world, loader, path, options));
  }
  std::vector<std::string> probes(const Closure& closure, std::size_t search = 0) {
    std::vector<std::string> out;
    for (const auto& probe : closure.searches.at(search).probes) out.push_back(probe.path);
    return out;
  }
  static std::vector<std::string> paths(const Closure& closure) {
    std::vector<std::string> out;
    for (const auto& object : closure.objects) out.push_back(object.path);
    return out;
  }

  FakeWorld world;
  LoaderProfile loader;
  SearchOptions options;
};
using Paths = std::vector<std::string>;

TEST_F(Search, search_reads_each_directory_once_and_opens_only_listed_files) {
  auto app = needing({"liba.so", "libb.so", "libc-mine.so"});
  app.rpath = "/one:/two:/gone";
  program(app);
  world.add("/two/liba.so", needing({"libb.so"}));
  world.add("/two/libb.so", {});
  world.add("/one/libc-mine.so", {});
  const auto closure = run();
  EXPECT_EQ(paths(closure), (Paths{"/app", "/two/liba.so", "/two/libb.so", "/one/libc-mine.so"}));
  // Everything is found before "/gone/".
  EXPECT_EQ(world.asked, (Paths{"/one/", "/two/"}));
  EXPECT_EQ(world.opened, (Paths{"/app", loader.interpreter, "/two/liba.so", "/two/libb.so",
                                 "/one/libc-mine.so"}));
  EXPECT_EQ(probes(closure), (Paths{"/one/liba.so", "/two/liba.so"}));
  EXPECT_EQ(closure.probes.opens_failed, 2U);
  EXPECT_EQ(closure.probes.opens_done, 3U);
  EXPECT_EQ(closure.probes.stats_done, 1U);
}

TEST_F(Search, search_prefetches_the_dependencies_of_an_object) {
  auto app = needing({"liba.so", "libgone.so", "./libb.so", "libcached.so"});
  app.runpath = "/one";
  program(app);
  world.add("/one/liba.so", {});
  world.add("./libb.so", {});
  world.add("/cached/libcached.so", {});
  world.add_text(loader.cache_path, new_cache({{"libcached.so", "/cached/libcached.so"}}));
  run();
  EXPECT_EQ(world.prefetched, (Paths{"/one/liba.so", "./libb.so", "/cached/libcached.so"}));
}

TEST_F(Search, skipped_files_are_among_the_probes) {
  auto app = needing({"liba.so"});
  app.rpath = "/thirty-two:/denied:/right";
  program(app);
  TinyElf other;
  other.elf_class = ELFCLASS32;
  other.machine = EM_386;
  world.add("/thirty-two/liba.so", other);
  world.fail_with("/denied/liba.so", EACCES);
  world.add("/right/liba.so", {});
  const auto closure = run();
  using Outcome = Probe::Outcome;
  std::vector<Outcome> outcomes;
  for (const auto& probe : closure.searches[0].probes) outcomes.push_back(probe.outcome);
  EXPECT_EQ(outcomes,
            (std::vector<Outcome>{Outcome::wrong_class, Outcome::unreadable, Outcome::found}));
  EXPECT_EQ(closure.probes.opens_done, 2U);
  EXPECT_EQ(closure.probes.opens_failed, 1U);
}

TEST_F(Search, file_in_place_of_a_relative_directory_ends_the_list_until_2_38_only) {
  program(needing({"liba.so"}));
  world.add_text("file", "no directory");
  world.add("sub/liba.so", {});
  options.ld_library_path = "file:sub";
  loader.glibc_minor = 38;
  EXPECT_EQ(run().missing.size(), 1U);
  loader.glibc_minor = 39;
  EXPECT_EQ(run().missing.size(), 0U);
}

TEST_F(Search, root_directory_is_searched_again_since_2_38) {
  auto app = needing({"liba.so", "libb.so"});
  app.rpath = "/";
  program(app, "/bin/app");
  world.add("/libb.so", {});
  loader.glibc_minor = 37;
  EXPECT_EQ(run("/bin/app").missing.size(), 2U);
  loader.glibc_minor = 38;
  EXPECT_EQ(run("/bin/app").missing.size(), 1U);
}

TEST_F(Search, ld_so_that_nothing_needs_is_listed_last_since_2_41) {
  program(needing({"liba.so"}));
  world.add("/lib/liba.so", {});
  loader.glibc_minor = 40;
  EXPECT_EQ(paths(run()), (Paths{"/app", "/lib/liba.so"}));
  loader.glibc_minor = 41;
  EXPECT_EQ(paths(run()), (Paths{"/app", "/lib/liba.so", loader.interpreter}));
}

TEST_F(Search, shortage_of_descriptors_is_reported_and_ends_the_search) {
  auto app = needing({"liba.so"});
  app.rpath = "/one:/two";
  program(app);
  world.fail_with("/one/liba.so", EMFILE);
  world.add("/two/liba.so", {});
  const auto closure = run();
  ASSERT_EQ(closure.missing.size(), 1U);
  EXPECT_THAT(closure.missing[0].reason, HasSubstr("Too many open files"));
}

}  // namespace
}  // namespace heddle::test
