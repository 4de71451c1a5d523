// SPDX-License-Identifier: MIT
//
// compat-gen and compat-check as users run them.

#include <elf.h>

#include <nlohmann/json.hpp>

#include "tests/support/prelude.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;

class CompatTools : public ::testing::Test {
 protected:
  void SetUp() override {
    gen_ = staged_program("compat-gen");
    check_ = staged_program("compat-check");
    resolve_ = staged_program("fs-resolve");
    if (gen_.empty() || check_.empty()) HEDDLE_SKIP("compat-gen is not installed in $HEDDLE_STAGE");
    make_far();
  }

  /// A private program beside the staged ones.
  std::string helper(const std::string& name) const {
    return check_.substr(0, check_.rfind("/bin/")) + "/libexec/heddle/" + name;
  }
  RunResult go(std::vector<std::string> argv, const std::string& input = "") {
    return run(argv,
               {.env = {"XDG_CACHE_HOME=" + dir_ / "cache", "LD_LIBRARY_PATH"}, .input = input});
  }
  std::string generate(const std::vector<std::string>& words) {
    std::vector<std::string> argv = {gen_};
    argv.insert(argv.end(), words.begin(), words.end());
    const auto done = go(argv);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out;
  }
  static void expect_missing(const RunResult& checked, const std::string& soname) {
    EXPECT_EQ(checked.status, 1) << checked.err;
    std::map<std::string, std::string> kinds;
    const auto json = Json::parse(checked.out);
    for (const auto& reason : json["reasons"]) kinds[reason["subject"]] = reason["kind"];
    EXPECT_EQ(kinds[soname], "library_missing") << checked.out;
  }
  void make_far(const std::string& source = "int far() { return 1; }") {
    build_library({.output = dir_ / "lib/libfar.so.1",
                   .source = source,
                   .flags = {"-Wl,-soname,libfar.so.1"}});
  }
  /// A program that needs libfar.so.1 of its RUNPATH.
  std::string program(const std::string& main = "int far(); int main() { return far(); }") {
    return build_program({.output = dir_ / "bin/app",
                          .source = main,
                          .flags = {dir_ / "lib/libfar.so.1", "-Wl,-rpath," + dir_ / "lib"}});
  }

  TestDir dir_;
  std::string gen_, check_, resolve_;
};

TEST_F(CompatTools, helpers_say_their_own_name_and_version) {
  for (const std::string name : {"oci-client", "compat-client"}) {
    const auto version = go({helper(name), "--version"});
    EXPECT_EQ(version.status, 0);
    EXPECT_EQ(version.out, name + " (heddle) " HEDDLE_VERSION "\n");
    EXPECT_THAT(go({helper(name), "--odd"}).err, ::testing::StartsWith(name + ": "));
  }
}

TEST_F(CompatTools, describe_xz_reproducibly) {
  const auto first = generate({"/usr/bin/xz"});
  EXPECT_EQ(generate({"/usr/bin/xz"}), first);
  const auto json = Json::parse(first);
  EXPECT_EQ(json["attributes"].dump(), R"({"llnl.compatlib.executable-name":"xz",)"
                                       R"("llnl.compatlib.library-name.0":"ld-linux-x86-64.so.2",)"
                                       R"("llnl.compatlib.library-name.1":"liblzma.so.5",)"
                                       R"("llnl.compatlib.library-name.2":"libc.so.6"})");
  EXPECT_EQ(json["version"], "0.0.1");
  // From a cold cache and by PATH.
  const auto cold =
      run({gen_, "xz"}, {.env = {"XDG_CACHE_HOME=" + dir_ / "cold", "LD_LIBRARY_PATH"}});
  EXPECT_EQ(cold.out, first);
}

TEST_F(CompatTools, accept_programs_of_this_node) {
  const auto fixed = build_program(
      {.output = dir_ / "bin/fixed", .source = "int main() { return 0; }", .flags = {"-static"}});
  const auto library =
      build_library({.output = dir_ / "lib/libme.so",
                     .source = "int puts(const char*); int me() { return puts(\"\"); }"});
  const auto odd = build_program(
      {.output = dir_ / "a b\tc\nd \xc3\xa9/pr og", .source = "int main() { return 0; }"});
  for (const auto& name : {std::string("/usr/bin/xz"), std::string("/bin/bash"),
                           std::string("/usr/bin/python3"), fixed, library, odd}) {
    const auto out = dir_ / "o ut.json";
    ASSERT_EQ(go({gen_, "-o", out, name}).status, 0) << name;
    const auto done = go({check_, out});
    EXPECT_EQ(done.status, 0) << name << "\n" << done.out << done.err;
    EXPECT_EQ(done.out, "compatible\n") << name;
  }
}

TEST_F(CompatTools, report_a_missing_library) {
  const auto app = program();
  ASSERT_EQ(::unlink((dir_ / "lib/libfar.so.1").c_str()), 0);
  const auto done = go({gen_, app});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("libfar.so.1: "));
  const auto json = Json::parse(done.out);
  const auto& lost = json["heddle"]["programs"][0]["libraries"].back();
  EXPECT_EQ(lost["soname"], "libfar.so.1");
  EXPECT_EQ(lost["resolved"], false);
  expect_missing(go({check_, "--json", "-"}, done.out), "libfar.so.1");
}

TEST_F(CompatTools, name_a_missing_function) {
  make_far("int far() { return 1; } int gone() { return 2; }");
  const auto app = program("int far(); int gone(); int main() { return far() + gone(); }");
  const auto artifact = generate({app});
  EXPECT_EQ(go({check_, "-"}, artifact).status, 0);
  make_far();
  const auto checked = go({check_, "--json", "-"}, artifact);
  EXPECT_EQ(checked.status, 1);
  const auto json = Json::parse(checked.out);
  EXPECT_EQ(json["verdict"], "incompatible");
  ASSERT_EQ(json["reasons"].size(), 1U);
  EXPECT_EQ(json["reasons"][0]["kind"], "symbol_missing");
  EXPECT_EQ(json["reasons"][0]["subject"], "gone");
}

/// The program has a copy of the library's data, whose name its own symbol table defines.
TEST_F(CompatTools, name_missing_data_of_which_the_program_has_a_copy) {
  make_far("int far() { return 1; } int data[4] = {1};");
  const auto app = build_program(
      {.output = dir_ / "bin/app",
       .source = "extern int data[4]; int far(); int main() { return data[1] * far(); }",
       .flags = {dir_ / "lib/libfar.so.1", "-Wl,-rpath," + dir_ / "lib", "-fno-pic", "-no-pie"}});
  const auto artifact = generate({app});
  EXPECT_EQ(go({check_, "-"}, artifact).out, "compatible\n");
  EXPECT_EQ(go({app}).status, 0);
  make_far();
  EXPECT_EQ(go({app}).status, 127) << "ld.so";
  const auto checked = go({check_, "-"}, artifact);
  EXPECT_EQ(checked.status, 1);
  EXPECT_THAT(checked.out, HasSubstr(": data: symbol missing"));
}

/// ld.so warns of a library that defines no versions, and ends the program where the library has no
/// DT_VERSYM either.
TEST_F(CompatTools, library_without_a_version_table_does_not_start) {
  const auto script = write_text_file(dir_ / "script", "V1 { global: far; local: *; };");
  build_library({.output = dir_ / "lib/libfar.so.1",
                 .source = "int far() { return 0; }",
                 .flags = {"-Wl,-soname,libfar.so.1", "-Wl,--version-script," + script}});
  const auto app = program();
  const auto artifact = generate({app});
  const auto expect = [&](const std::string& source, int run, const std::string& verdict,
                          std::vector<std::string> flags) {
    flags.push_back("-Wl,-soname,libfar.so.1");
    build_library({.output = dir_ / "lib/libfar.so.1", .source = source, .flags = flags});
    EXPECT_EQ(go({app}).status, run) << verdict;
    EXPECT_THAT(go({check_, "-"}, artifact).out, ::testing::StartsWith(verdict + "\n"));
  };
  expect("int puts(const char*); int far() { puts(\"\"); return 0; }", 0, "degraded", {});
  expect("int far() { return 0; }", 127, "incompatible", {"-nostdlib"});
}

TEST_F(CompatTools, refuse_programs_of_another_machine_in_any_root) {
  auto artifact = Json::parse(generate({program()}));
  auto fixed = Json::parse(generate({build_program({.output = dir_ / "bin/fixed",
                                                    .source = "int main() { return 0; }",
                                                    .flags = {"-static"}})}));
  for (auto* one : {&artifact, &fixed}) {
    (*one)["heddle"]["programs"][0]["elf"]["machine"] = EM_AARCH64;
    for (const auto& root : {std::vector<std::string>{}, {"--rootfs", "/"}}) {
      std::vector<std::string> argv = {check_, "--json"};
      argv.insert(argv.end(), root.begin(), root.end());
      argv.emplace_back("-");
      const auto checked = go(argv, one->dump());
      EXPECT_EQ(checked.status, 1) << checked.out << checked.err;
      EXPECT_THAT(checked.out, HasSubstr("machine_differs"));
    }
  }
}

TEST_F(CompatTools, run_neither_the_program_nor_its_loader) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const auto log = dir_ / "strace";
  const auto done =
      go({"strace", "-f", "-qq", "-e", "trace=execve", "-o", log, gen_, "/usr/bin/xz"});
  ASSERT_EQ(done.status, 0) << done.err;
  for (const auto& [pid, call] : strace_calls(value_or_throw(read_file(log))))
    EXPECT_TRUE(!call.starts_with("execve(") || call.find("compat-gen") != call.npos ||
                call.find("elf-worker") != call.npos)
        << call;
}

TEST_F(CompatTools, take_a_map_as_target_and_as_source) {
  const auto app = program();
  const auto map = dir_ / "m.map";
  ASSERT_EQ(go({resolve_, "build", "-o", map, app}).status, 0);
  const auto artifact = generate({app});
  auto checked = go({check_, "--map", map, "-"}, artifact);
  EXPECT_EQ(checked.status, 0) << checked.out << checked.err;
  // Without BINARY: the map's programs.
  const auto from_map = Json::parse(generate({"--from-map", map}));
  EXPECT_EQ(from_map["attributes"], Json::parse(artifact)["attributes"]);
  checked = go({check_, "--json", "--map", map, "-"}, generate({"/usr/bin/xz"}));
  expect_missing(checked, "liblzma.so.5");
}

TEST_F(CompatTools, add_dlopened_libraries_of_a_trace) {
  const auto app = program();
  const auto plugin = build_library(
      {.output = dir_ / "plug in/libplugin.so", .source = "int plugin() { return 3; }"});
  const auto trace =
      write_text_file(dir_ / "run.txt",
                      "2024/11/21 18:34:47 logger.go:63: 1732214087012379646 Open      " + plugin +
                          "\t7\n2024/11/21 18:34:47 logger.go:63: 1732214087012379647 Open      " +
                          (dir_ / "lib/libfar.so.1") + "\t8\n");
  const auto artifact = generate({"--from-trace", trace, app});
  const auto json = Json::parse(artifact);
  const auto& libraries = json["heddle"]["programs"][0]["libraries"];
  EXPECT_EQ(libraries.back()["soname"], "libplugin.so");
  EXPECT_EQ(libraries.back()["dlopened"], true);
  EXPECT_EQ(std::count_if(libraries.begin(), libraries.end(),
                          [](const Json& l) { return l["soname"] == "libfar.so.1"; }),
            1);
  EXPECT_EQ(go({check_, "-"}, artifact).out, "compatible\n");
  ASSERT_EQ(::unlink(plugin.c_str()), 0);
  const auto checked = go({check_, "-"}, artifact);
  EXPECT_EQ(checked.status, 0);
  EXPECT_THAT(checked.out, HasSubstr("degraded\n"));
}

TEST_F(CompatTools, resolve_links_inside_a_root_file_system) {
  // A root with merged /usr: this machine's loader is behind absolute links.
  const auto root = dir_ / "root";
  run_checked({"mkdir", "-p", root + "/usr/lib64", root + "/usr/lib", root + "/usr/bin"});
  run_checked({"ln", "-s", "/usr/lib64", root + "/lib64"});
  run_checked({"ln", "-s", "/usr/lib", root + "/lib"});
  run_checked({"cp", "-L", "/lib64/ld-linux-x86-64.so.2", root + "/usr/lib64/"});
  run_checked({"cp", "-L", "/lib/x86_64-linux-gnu/libc.so.6", root + "/usr/lib/"});
  const auto app =
      build_program({.output = root + "/usr/bin/small", .source = "int main() { return 0; }"});
  const auto artifact = generate({"--rootfs", root, "/usr/bin/small"});
  EXPECT_THAT(artifact, HasSubstr("\"path\": \"/lib/libc.so.6\""));
  EXPECT_EQ(go({check_, "--rootfs", root, "-"}, artifact).out, "compatible\n");
  // That root has no liblzma.
  expect_missing(go({check_, "--json", "--rootfs", root, "-"}, generate({"/usr/bin/xz"})),
                 "liblzma.so.5");
}

TEST_F(CompatTools, report_errors_by_exit_status) {
  EXPECT_EQ(go({gen_}).status, 2);
  EXPECT_EQ(go({check_}).status, 2);
  EXPECT_EQ(go({gen_, "--nonsense"}).status, 2);
  // An unset variable of a script must not mean "this node".
  for (const auto& argv :
       std::vector<std::vector<std::string>>{{gen_, "--rootfs", "", "xz"},
                                             {gen_, ""},
                                             {check_, "--server", "", "-"},
                                             {check_, "--server", "here", "-"},
                                             {check_, "--nodes", "", "-"},
                                             {check_, "--map", "", "-"},
                                             {check_, "--ca", "x", "-"},
                                             {check_, "--token-file", "x", "-"},
                                             {check_, "--server-port", "1", "-"},
                                             {check_, "--server", "h:1", "--server-port", "1", "-"},
                                             {check_, "--server", "h:65536", "-"},
                                             {check_, "--server", "h:", "-"},
                                             {check_, "--nodes", "h,h:0", "-"},
                                             {check_, "--nodes", "[::1]:65536", "-"},
                                             {check_, "--nodes", "h:x", "-"}})
    EXPECT_EQ(go(argv).status, 2) << to_shell(argv);
  const auto text = write_text_file(dir_ / "text", "no ELF\n");
  for (const auto& argv :
       std::vector<std::vector<std::string>>{{gen_, "/nonexistent"},
                                             {gen_, text},
                                             {check_, "/nonexistent"},
                                             {check_, text},
                                             {check_, "--map", text, text},
                                             {check_, "--rootfs", "/nonexistent", "-"}}) {
    const auto done = go(argv);
    EXPECT_EQ(done.status, 3) << to_shell(argv);
    EXPECT_TRUE(done.out.empty());
    EXPECT_THAT(done.err, ::testing::StartsWith("compat-"));
  }
  EXPECT_EQ(go({gen_, "-o", "/nonexistent/dir/f", "/usr/bin/xz"}).status, 3);
}

}  // namespace
}  // namespace heddle::test
