// SPDX-License-Identifier: MIT
// fs-resolve on input of any kind: it ends in time with 0, 1 or 3 and writes one line for each bad
// file.

#include "tests/resolve/corpus.hpp"
#include "tests/resolve/resolve_fixture.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

using Json = nlohmann::json;

class BadInput : public ResolveFixture {
 protected:
  /// Ended in time with 0, 1 or 3, with a printable message.
  void expect_clean_end(const RunResult& result, const std::string& what) {
    EXPECT_FALSE(result.timed_out) << what;
    EXPECT_TRUE(result.status == 0 || result.status == 1 || result.status == 3)
        << what << ": " << result.status << result.err;
    if (result.status == 3) {
      EXPECT_TRUE(result.err.starts_with("fs-resolve: ")) << what << result.err;
    }
    for (const unsigned char c : result.err)
      EXPECT_TRUE(c == '\n' || (c >= 0x20 && c != 0x7f)) << what << ": a raw byte in a message";
    ++statuses_[result.status];
  }
  /// A program and its one library, in lib/.
  std::string make_app() const {
    const auto library = build_library({.output = dir_ / "lib/libone.so.1",
                                        .source = "__thread int t; int one(void){return t;}",
                                        .flags = {"-Wl,-soname,libone.so.1"}});
    return build_program({.output = dir_ / "app",
                          .source = "int one(void);int main(){return one();}",
                          .flags = {library, "-Wl,-rpath," + dir_ / "lib"}});
  }

  std::map<int, std::size_t> statuses_;
};

TEST_F(BadInput, directory_of_damaged_programs_makes_a_map) {
  const auto app = value_or_throw(read_file(make_app()));
  const auto library = value_or_throw(read_file(dir_ / "lib/libone.so.1"));
  Corpus programs(app, 1);
  Corpus libraries(library, 2);
  constexpr int kEach = 1500;
  for (int i = 0; i < kEach; ++i) {
    write_text_file(dir_ / ("many/p" + std::to_string(i)), programs.next(), 0755);
    write_text_file(dir_ / ("many/l" + std::to_string(i) + ".so"), libraries.next());
  }
  options_.deadline = std::chrono::seconds(120);
  const auto built = resolve({"build", "--allow-missing", "-o", map_, dir_ / "many"});
  expect_clean_end(built, "build");
  EXPECT_EQ(built.status, 0) << built.err;
  // Some are intact enough; each other one is named.
  EXPECT_GT(lines_of(built.err).size(), 200U);
  EXPECT_LT(lines_of(built.err).size(), 4U * kEach);
  EXPECT_GT(shown()["programs"].size(), 200U);
  EXPECT_EQ(resolve({"verify", map_}).status, 0);
}

TEST_F(BadInput, programs_of_another_class_or_machine_are_refused) {
  const auto narrow = build_library(
      {.output = dir_ / "lib32.so", .flags = {"-m32", "-nostdlib", "-Wl,-soname,lib32.so"}});
  auto bytes = value_or_throw(read_file(make_app()));
  bytes[18] = static_cast<char>(183);  // EM_AARCH64
  const auto foreign = write_text_file(dir_ / "foreign", bytes, 0755);
  for (const auto& path : {narrow, foreign}) {
    const auto result = resolve({"build", "-o", map_, path});
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_THAT(result.err, HasSubstr("not for the machine of"));
    EXPECT_FALSE(fs::exists(map_));
  }
}

TEST_F(BadInput, symlink_loops_end_the_walk) {
  const auto app = make_app();
  fs::create_directories(dir_ / "tree/deep");
  fs::create_directory_symlink(".", dir_ / "tree/self");
  fs::create_directory_symlink("../..", dir_ / "tree/deep/up");
  fs::create_symlink("b", dir_ / "tree/a");
  fs::create_symlink("a", dir_ / "tree/b");
  fs::copy(app, dir_ / "tree/deep/app");
  const auto directory = resolve({"build", "-o", map_, dir_ / "tree"});
  EXPECT_EQ(directory.status, 0) << directory.err;
  EXPECT_EQ(shown()["programs"].size(), 1U);
  const auto plugins = resolve({"build", "-o", map_, app, "--plugins", dir_ / "tree"});
  EXPECT_EQ(plugins.status, 0) << plugins.err;
  EXPECT_EQ(resolve({"lookup", map_, "tree/deep/app"}).status, 0);
  for (const auto& path : {dir_ / "tree/a", dir_ / "tree/a/app"}) {
    const auto looped = resolve({"build", "-o", map_, path});
    EXPECT_EQ(looped.status, 3);
    EXPECT_THAT(looped.err, HasSubstr("Too many levels of symbolic links"));
  }
  // A loop in place of a library: the search continues.
  fs::create_symlink("libone.so.1", dir_ / "tree/libone.so.1");
  options_.env.push_back("LD_LIBRARY_PATH=" + (dir_ / "tree") + ":" + (dir_ / "tree/a"));
  EXPECT_EQ(resolve({"tree", app}).status, 0);
}

TEST_F(BadInput, names_of_any_bytes_stay_whole_in_every_output) {
  const std::string odd = "a b\t\n\xc3\xa4 \xff\\x\"";
  const auto library = build_library({.output = dir_ / (odd + "/lib" + odd + ".so"),
                                      .source = "int one(void){return 1;}",
                                      .flags = {"-Wl,-soname,lib" + odd + ".so"}});
  const auto app = build_program({.output = dir_ / (odd + "/app" + odd),
                                  .source = "int one(void);int main(){return one();}",
                                  .flags = {library, "-Wl,-rpath,$ORIGIN"}});
  const auto map = dir_ / (odd + ".map");
  ASSERT_EQ(resolve({"build", "-o", map, app, "--json"}).status, 0);
  for (const auto& words : std::vector<Words>{{"show", "--json", map},
                                              {"lookup", "--json", map, "lib" + odd + ".so"},
                                              {"lookup", "--json", map, library},
                                              {"why", "--json", app},
                                              {"tree", "--json", app},
                                              {"verify", "--json", map}}) {
    const auto result = resolve(words);
    EXPECT_EQ(result.status, 0) << words[0] << result.err;
    EXPECT_TRUE(Json::accept(result.out)) << words[0] << result.out;
    EXPECT_EQ(result.err, "");
  }
  // Text output: one line for each item, odd bytes escaped.
  for (const auto& words :
       std::vector<Words>{{"show", map}, {"lookup", map, library}, {"why", app}, {"tree", app}}) {
    const auto result = resolve(words);
    EXPECT_EQ(result.status, 0) << words[0] << result.err;
    EXPECT_THAT(result.out, HasSubstr("a b\\t\\n\xc3\xa4 \\xff\\\\x"));
    EXPECT_THAT(result.out, Not(HasSubstr("\t")));
  }
  fs::remove(library);
  const auto missing = resolve({"build", "-o", dir_ / "b.map", app});
  EXPECT_EQ(missing.status, 1);
  expect_clean_end(missing, "missing");
  EXPECT_EQ(json_of({"verify", "--json", map})["drift"].size(), 1U);
}

TEST_F(BadInput, unknown_commands_and_options_are_named) {
  const auto result = resolve({"biuld", "-o", map_, "/bin/true"});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.err, "fs-resolve: unknown command 'biuld'\nhint: see fs-resolve --help\n");
  EXPECT_THAT(resolve({"--verison"}).err, HasSubstr("unknown option '--verison'"));
  EXPECT_THAT(resolve({}).err, HasSubstr("subcommand is required"));
  EXPECT_EQ(resolve({"show", map_, "--ot"}).err,
            "fs-resolve: unknown option '--ot'\nhint: see fs-resolve show --help\n");
}

TEST_F(BadInput, commands_start_only_elf_workers) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const auto app = make_app();
  const auto script = write_text_file(dir_ / "script", "#!/usr/bin/env perl\n", 0755);
  ASSERT_EQ(resolve({"build", "-o", map_, app}).status, 0);
  for (const auto& words : std::vector<Words>{{"build", "-o", map_, script},
                                              {"build", "-o", map_, dir_ / "lib"},
                                              {"why", app},
                                              {"tree", app},
                                              {"verify", map_},
                                              {"show", map_}}) {
    fs::remove_all(dir_ / "cache");  // a warm cache needs no worker at all
    Words command = {fs_resolve_};
    command.insert(command.end(), words.begin(), words.end());
    const auto traced = strace_counts(command, options_);
    EXPECT_EQ(traced.run.status, 0) << words[0] << traced.run.err;
    for (const auto& start : traced.starts)
      EXPECT_TRUE(start.program == fs_resolve_ || start.program.ends_with("/elf-worker"))
          << words[0] << ": " << start.program;
  }
}

}  // namespace
}  // namespace heddle::test
