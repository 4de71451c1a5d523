// SPDX-License-Identifier: MIT
// fs-resolve on ELF files built by the tests: maps, output, refusals.

#include <regex>

#include "tests/resolve/resolve_fixture.hpp"

namespace heddle::test {
namespace {

using Json = nlohmann::json;

class FsResolve : public ResolveFixture {
 protected:
  /// A program that needs libone.so.1, which needs libtwo.so.1; each in a directory of its own
  /// below `directory`, found by RUNPATH.
  std::string make_pair(const std::string& directory, const std::string& answer = "2") const {
    const auto two = build_library({.output = directory + "/two/libtwo.so.1",
                                    .source = "int two(void){return " + answer + ";}",
                                    .flags = {"-Wl,-soname,libtwo.so.1"}});
    const auto one = build_library(
        {.output = directory + "/one/libone.so.1",
         .source = "int two(void);int one(void){return two();}",
         .flags = {"-Wl,-soname,libone.so.1", two, "-Wl,-rpath," + directory + "/two"}});
    return build_program({.output = directory + "/app",
                          .source = "int one(void);int main(){return one();}",
                          .flags = {one, "-Wl,-rpath," + directory + "/one",
                                    "-Wl,-rpath-link," + directory + "/two"}});
  }
};

const Json* library(const Json& libraries, const std::string& soname) {
  for (const auto& entry : libraries)
    if (entry["soname"] == soname) return &entry;
  return nullptr;
}

TEST_F(FsResolve, map_records_finder_and_requester_of_each_library) {
  const auto app = make_pair(dir_ / "p");
  ASSERT_EQ(resolve({"build", "-o", map_, app}).status, 0);
  const auto map = shown();
  ASSERT_EQ(map["programs"].size(), 1U);
  const auto& libraries = map["programs"][0]["libraries"];
  const auto* one = library(libraries, "libone.so.1");
  const auto* two = library(libraries, "libtwo.so.1");
  const auto* libc = library(libraries, "libc.so.6");
  ASSERT_TRUE(one && two && libc);
  EXPECT_EQ((*one)["found_by"], "runpath");
  EXPECT_EQ((*one)["path"], dir_ / "p/one/libone.so.1");
  EXPECT_EQ((*one)["needed_by"], app);
  EXPECT_EQ((*two)["needed_by"], dir_ / "p/one/libone.so.1");
  EXPECT_EQ((*libc)["found_by"], "cache");
}

TEST_F(FsResolve, the_same_input_gives_the_same_bytes) {
  const auto app = make_pair(dir_ / "p");
  ASSERT_EQ(resolve({"build", "-o", dir_ / "1.map", app, "/bin/ls"}).status, 0);
  ASSERT_EQ(resolve({"build", "-o", dir_ / "2.map", "/bin/ls", app}).status, 0);
  const auto first = resolve({"show", "--json", dir_ / "1.map"}).out;
  EXPECT_EQ(first, resolve({"show", "--json", dir_ / "2.map"}).out);
  EXPECT_GT(first.size(), 1000U);
}

TEST_F(FsResolve, a_missing_library_is_named_with_its_requester) {
  const auto app = make_pair(dir_ / "p");
  fs::remove(dir_ / "p/two/libtwo.so.1");
  const auto refused = resolve({"build", "-o", map_, app});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("one/libone.so.1 needs libtwo.so.1"));
  EXPECT_THAT(refused.err, HasSubstr("hint:"));
  EXPECT_FALSE(fs::exists(map_));
  EXPECT_EQ(resolve({"build", "--allow-missing", "-o", map_, app}).status, 0);
  EXPECT_EQ(shown()["programs"][0]["missing"], Json::array({"libtwo.so.1"}));
  EXPECT_EQ(resolve({"tree", app}).status, 1);
}

TEST_F(FsResolve, two_programs_with_different_files_for_one_soname_get_two_views) {
  const auto a = make_pair(dir_ / "a", "11");
  const auto b = make_pair(dir_ / "b", "22");
  ASSERT_EQ(resolve({"build", "-o", map_, a, b}).status, 0);
  const auto map = shown();
  ASSERT_EQ(map["views"].size(), 2U);
  EXPECT_NE(map["views"][0]["names"]["libtwo.so.1"], map["views"][1]["names"]["libtwo.so.1"]);
  EXPECT_EQ(map["views"][0]["names"]["libc.so.6"], map["views"][1]["names"]["libc.so.6"]);
  const auto unclear = resolve({"lookup", map_, "libtwo.so.1"});
  EXPECT_EQ(unclear.status, 2);
  EXPECT_THAT(unclear.err, HasSubstr("hint: --view app, or one of 1 more"));
  const auto wrong = resolve({"lookup", map_, "libtwo.so.1", "--view", "nope"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("hint: --view app, or one of 1 more"));
  const auto view = map["views"][0]["name"].get<std::string>();
  EXPECT_EQ(resolve({"lookup", map_, "libtwo.so.1", "--view", view}).status, 0);
  EXPECT_EQ(resolve({"lookup", map_, "no.such.so", "--view", view}).status, 1);
  EXPECT_TRUE(json_of({"lookup", "--json", map_, "no.such.so", "--view", view}).is_null());
}

TEST_F(FsResolve, links_are_names_of_one_object_and_copies_are_two) {
  const auto app = make_pair(dir_ / "p");
  fs::create_symlink("libone.so.1", dir_ / "p/one/libone.so");
  const auto copy = dir_ / "q";
  fs::create_directory(copy);
  fs::copy(dir_ / "p/two/libtwo.so.1", copy + "/libtwo.so.1");
  const auto both =
      build_program({.output = dir_ / "both",
                     .source = "int one(void);int two(void);int main(){return one()-two();}",
                     .flags = {dir_ / "p/one/libone.so.1", dir_ / "p/two/libtwo.so.1",
                               "-Wl,-rpath," + dir_ / "p/one" + ":" + copy}});
  ASSERT_EQ(resolve({"build", "-o", map_, app, both}).status, 0);
  const auto map = shown();
  EXPECT_EQ(map["views"][0]["names"]["libone.so"], map["views"][0]["names"]["libone.so.1"]);
  std::size_t twos = 0;
  for (const auto& object : map["objects"]) twos += object["soname"] == "libtwo.so.1";
  EXPECT_EQ(twos, 2U) << "identical copies are different files to ld.so";
}

TEST_F(FsResolve, plugin_directories_keep_their_name_and_bring_dependencies) {
  const auto app = make_pair(dir_ / "p");
  const auto helper = build_library({.output = dir_ / "h/libhelper.so.1",
                                     .source = "int h(void){return 1;}",
                                     .flags = {"-Wl,-soname,libhelper.so.1"}});
  build_library({.output = dir_ / "p/one/plug ins/deep/mod.so",
                 .source = "int h(void);int m(void){return h();}",
                 .flags = {helper, "-Wl,-rpath," + dir_ / "h"}});
  write_text_file(dir_ / "p/one/plug ins/help.txt", "help\n");
  ASSERT_EQ(resolve({"build", "-o", map_, "--plugins", dir_ / "p/one/plug ins/", app}).status, 0);
  const auto names = shown()["views"][0]["names"];
  EXPECT_EQ(names["plug ins/deep/mod.so"], dir_ / "p/one/plug ins/deep/mod.so");
  EXPECT_EQ(names["plug ins/help.txt"], dir_ / "p/one/plug ins/help.txt");
  EXPECT_EQ(names["libhelper.so.1"], dir_ / "h/libhelper.so.1");
}

TEST_F(FsResolve, a_script_stands_for_its_interpreter_and_a_directory_for_its_programs) {
  const auto app = make_pair(dir_ / "directory/p");
  write_text_file(dir_ / "directory/run.sh", "#!" + app + " -x\n", 0755);
  write_text_file(dir_ / "directory/notes.txt", "nothing\n");
  write_text_file(dir_ / "directory/empty", "");
  ASSERT_EQ(resolve({"build", "-o", map_, dir_ / "directory/run.sh"}).status, 0);
  EXPECT_EQ(shown()["programs"][0]["path"], app);
  ASSERT_EQ(resolve({"build", "-o", map_, dir_ / "directory"}).status, 0);
  EXPECT_EQ(shown()["programs"].size(), 1U);
}

TEST_F(FsResolve, verify_names_what_changed_and_how) {
  const auto app = make_pair(dir_ / "p");
  ASSERT_EQ(resolve({"build", "-o", map_, app}).status, 0);
  EXPECT_EQ(resolve({"verify", map_}).status, 0);

  const auto two = dir_ / "p/two/libtwo.so.1";
  fs::last_write_time(two, fs::last_write_time(two) + std::chrono::hours(1));
  EXPECT_EQ(resolve({"verify", map_}).status, 0) << "a touched file has the same content";
  std::fstream(two, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1, std::ios::end)
      .put('\x7e');
  EXPECT_EQ(resolve({"verify", map_}).status, 1);
  auto drift = json_of({"verify", map_, "--json"})["drift"];
  ASSERT_EQ(drift.size(), 1U);
  EXPECT_EQ(drift[0]["path"], two);
  EXPECT_EQ(drift[0]["what"], "changed");

  fs::remove(dir_ / "p/one/libone.so.1");
  drift = json_of({"verify", map_, "--json"})["drift"];
  ASSERT_EQ(drift.size(), 2U);
  EXPECT_EQ(drift[0]["what"], "missing");
}

TEST_F(FsResolve, verify_names_a_shadowed_library) {
  make_pair(dir_ / "p");
  const auto two = dir_ / "p/two/libtwo.so.1";
  const auto app =
      build_program({.output = dir_ / "searching",
                     .source = "int two(void);int main(){return two();}",
                     .flags = {two, "-Wl,-rpath," + dir_ / "early" + ":" + dir_ / "p/two"}});
  fs::create_directory(dir_ / "early");
  ASSERT_EQ(resolve({"build", "-o", map_, app}).status, 0);
  EXPECT_EQ(resolve({"verify", map_}).status, 0);
  fs::copy(two, dir_ / "early/libtwo.so.1");
  const auto shadowed = resolve({"verify", map_});
  EXPECT_EQ(shadowed.status, 1);
  EXPECT_THAT(shadowed.out, HasSubstr(app + " finds " + dir_ / "early/libtwo.so.1" + " first\n"));
  const auto json = json_of({"verify", map_, "--json"})["drift"];
  ASSERT_EQ(json.size(), 1U);
  EXPECT_EQ(json[0]["path"], two);
  EXPECT_EQ(json[0]["what"], "passed over");
  EXPECT_EQ(resolve({"verify", "--files", map_}).status, 0);
  // A hard link is the same file.
  fs::remove(dir_ / "early/libtwo.so.1");
  fs::create_hard_link(two, dir_ / "early/libtwo.so.1");
  EXPECT_EQ(resolve({"verify", map_}).status, 0);
}

TEST_F(FsResolve, verify_searches_with_the_environment_of_the_map) {
  make_pair(dir_ / "p");
  const auto app = build_program({.output = dir_ / "searching",
                                  .source = "int two(void);int main(){return two();}",
                                  .flags = {dir_ / "p/two/libtwo.so.1"}});
  const auto preload = build_library({.output = dir_ / "libpre.so", .source = "int p;"});
  RunOptions with = options_;
  with.env.back() = "LD_LIBRARY_PATH=" + dir_ / "p/two";
  with.env.push_back("LD_PRELOAD=" + preload);
  ASSERT_EQ(run({fs_resolve_, "build", "-o", map_, app}, with).status, 0);
  const auto verified = resolve({"verify", map_});
  EXPECT_EQ(verified.status, 0) << verified.out;
}

TEST_F(FsResolve, env_script_resolves_to_its_interpreter) {
  const auto app = make_pair(dir_ / "p");
  RunOptions with = options_;
  with.env.push_back("PATH=" + dir_ / "p" + ":/usr/bin:/bin");
  write_text_file(dir_ / "script", "#!/usr/bin/env app\n", 0755);
  const auto tree = run({fs_resolve_, "tree", dir_ / "script"}, with);
  EXPECT_TRUE(tree.out.starts_with(app + "\n")) << tree.out << tree.err;
  EXPECT_EQ(run({fs_resolve_, "why", dir_ / "script", "libone.so.1"}, with).status, 0);
  const auto directory = resolve({"tree", dir_ / "p"});
  EXPECT_EQ(directory.status, 3);
  EXPECT_THAT(directory.err, HasSubstr("is a directory"));
}

TEST_F(FsResolve, why_lists_the_probes_that_ld_so_makes) {
  const auto app = make_pair(dir_ / "p");
  const auto why = resolve({"why", app, "libtwo.so.1", "--json"});
  EXPECT_EQ(why.status, 0);
  const auto searches = Json::parse(why.out);
  ASSERT_EQ(searches.size(), 1U);
  std::vector<std::string> ours;
  for (const auto& probe : searches[0]["probes"]) ours.push_back(probe["path"]);
  // The same search in ld.so's debug output.
  RunOptions debug = options_;
  debug.env.push_back("LD_DEBUG=libs");
  const auto real = run({app}, debug).err;
  std::vector<std::string> theirs;
  const std::regex trying("trying file=(\\S+/libtwo\\.so\\.1)");
  for (std::sregex_iterator at(real.begin(), real.end(), trying), end; at != end; ++at)
    theirs.push_back((*at)[1]);
  EXPECT_EQ(ours, theirs);
  EXPECT_EQ(resolve({"why", app, "libnone.so"}).status, 1);
}

TEST_F(FsResolve, tree_shows_each_library_below_its_requester) {
  const auto app = make_pair(dir_ / "p");
  const auto tree = resolve({"tree", app});
  EXPECT_EQ(tree.status, 0);
  EXPECT_THAT(tree.out, HasSubstr("├── libone.so.1 [runpath]\n│   └── libtwo.so.1 [runpath]\n"));
}

TEST_F(FsResolve, input_that_is_no_program_is_one_clear_error) {
  const auto text = write_text_file(dir_ / "a\tb\n\xc3\xa4.txt", "just text\n", 0755);
  const auto secret = write_text_file(dir_ / "secret", "x");
  fs::create_symlink("loop", dir_ / "loop");
  ::mkfifo((dir_ / "fifo").c_str(), 0644);
  const auto truncated = dir_ / "truncated";
  fs::copy("/bin/ls", truncated);
  fs::resize_file(truncated, 1000);
  for (const auto& path : {text, dir_ / "loop", dir_ / "nothing", dir_ / "fifo", truncated}) {
    const auto result = resolve({"build", "-o", map_, path});
    EXPECT_EQ(result.status, 3) << path << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_FALSE(fs::exists(map_));
  }
  EXPECT_THAT(resolve({"build", "-o", map_, text}).err,
              HasSubstr("a\\tb\\n\xc3\xa4.txt: not a program"));
}

TEST_F(FsResolve, unwritable_map_is_one_error) {
  const auto app = make_pair(dir_ / "p");
  fs::create_directory(dir_ / "full");
  const auto full = "mount -t tmpfs -o size=8k none " + (dir_ / "full") +
                    " || exit 9; \"$@\"; s=$?; ls -A " + (dir_ / "full") + "; exit $s";
  for (const auto& result : {resolve({"build", "-o", app + "/x.map", app}),
                             run({"unshare", "-m", "sh", "-c", full, "sh", fs_resolve_, "build",
                                  "-o", dir_ / "full/x.map", app},
                                 options_)}) {
    if (result.status == 9 || result.status == 1) HEDDLE_SKIP("cannot mount a tmpfs");
    EXPECT_EQ(result.status, 3);
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_EQ(result.out, "") << "left on the full disk";
  }
}

}  // namespace
}  // namespace heddle::test
