// SPDX-License-Identifier: MIT
//
// Damaged input on a hook's stdin, in a bundle or in a decision costs one error line. Also the
// files that fs-hook writes for runtimes.

#include <nlohmann/json.hpp>

#include "base/trusted_path.hpp"
#include "container-hooks/cache/decision.hpp"
#include "container-hooks/oci/container_program.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using hook::Decision;
using hook::parse_decision;

using Json = nlohmann::json;

class HookInput : public ::testing::Test {
 protected:
  void SetUp() override {
    hook_ = staged_program("fs-hook");
    if (hook_.empty()) HEDDLE_SKIP("fs-hook is not installed in $HEDDLE_STAGE");
  }
  RunResult oci(const std::string& state) const {
    return run({hook_, "oci", "--allow-annotations", allowed_, "--cache", dir_ / "cache", "--log",
                dir_ / "log"},
               {.input = state, .deadline = 10s});
  }
  RunResult edit(const Strings& arguments) const { return run(Strings{hook_} + arguments); }
  /// Expects one error line and a failing status.
  void expect_refused(const std::string& state, const std::string& words = "") const {
    const auto ran = oci(state);
    EXPECT_EQ(ran.status, 3) << state.substr(0, 200);
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_THAT(ran.err, AllOf(StartsWith("fs-hook: "), HasSubstr(words)));
    EXPECT_EQ(ran.out, "");
  }
  Json state() const {
    return {{"ociVersion", "1.0"},
            {"id", "c"},
            {"pid", 999999999},
            {"bundle", dir_.path()},
            {"annotations", {{"heddle.mpi", "host"}}}};
  }

  TestDir dir_;
  std::string hook_;
  std::string allowed_ = "/";  ///< the directory below which annotations count
};

/// The host's MPI must be able to serve it: a container is refused for the program that it is for,
/// not for the shell, env or init that it begins with.
TEST(ContainerProgram, is_looked_for_behind_those_that_only_start_it) {
  const TestDir root;
  for (const char* directory : {"bin", "opt/directory", "opt/d=1"})
    fs::create_directories(root / directory);
  for (const char* name : {"bin/sh", "bin/bash", "bin/env", "bin/tini", "bin/gosu", "opt/text"})
    std::ofstream(root / name) << "x";
  for (const char* name : {"opt/app", "opt/plain", "opt/d=1/app", "bin/python3"})
    fs::copy_file("/bin/true", root / name);
  std::ofstream(root / "opt/script") << "#!/bin/env python3\n";
  for (const auto& entry : fs::recursive_directory_iterator(root.path()))
    fs::permissions(entry, fs::perms(entry.path().filename() == "plain" ? 0644 : 0755));
  hook::ContainerConfig config;
  config.rootfs = root.path();
  config.cwd = "/opt";
  config.environment = {"PATH=/opt:/bin"};
  const auto found = [&](const Strings& args) {
    config.args = args;
    return hook::container_program(config);
  };
  for (const Strings& args : {
           Strings{"app"},
           {"../opt/app", "-x"},
           {"env", "app"},
           {"/bin/env", "A=b", "OMP_NUM_THREADS=1", "/opt/app", "LD_x=1"},
           {"sh", "-c", "app"},
           {"bash", "-ec", "exec app --in 'a b' >/dev/null 2>&1 $HOME"},
           {"sh", "-c", " A=b /opt/app", "name"},
           {"sh", "-c", "/opt/d=1/app /opt/plain"},
           {"tini", "--", "app"},
           {"tini", "-p", "SIGTERM", "-s", "-e", "143", "--", "env", "sh", "-c", "app"},
           {"tini", "app", "--", "text"},
           {"gosu", "root", "app"},
           {"sh", "-c", "gosu root app"},
       })
    EXPECT_THAT(found(args), testing::EndsWith("/app")) << args.back();
  EXPECT_EQ(found({"sh", "-c", "script"}), "/opt/script");
  for (const char* command : {"app; app",
                              "cd / && app",
                              "app | cat",
                              "app &",
                              "app &>/dev/null",
                              "$APP",
                              "'app'",
                              "`app`",
                              "app $(app)",
                              "PATH=/ app",
                              "LD_LIBRARY_PATH=/x app",
                              "{ app; }",
                              "app\napp",
                              "",
                              "exec",
                              "A=b",
                              "exec -a x app",
                              "plain",
                              "directory",
                              "nothing",
                              "~/app",
                              "app*",
                              "text",
                              "env text"})
    EXPECT_EQ(found({"sh", "-c", command}), "/bin/sh") << command;
  EXPECT_EQ(found({"bash", "-lc", "app"}), "/bin/bash") << "a profile may set anything";
  for (const char* word : {"-i", "-u", "LD_PRELOAD=/x.so", "PATH=/x"})
    EXPECT_EQ(found({"env", word, "app"}), "/bin/env") << word;
  for (const Strings& args : {Strings{}, {""}, {"plain"}, {"directory"}, {"/opt"}, {"nothing"}})
    EXPECT_EQ(found(args), "");
  EXPECT_EQ(found({"text"}), "/opt/text") << "the runtime says what is wrong";
  config.environment.push_back("BASH_ENV=/opt/environment");
  EXPECT_EQ(found({"bash", "-c", "app"}), "/bin/bash");
}

TEST_F(HookInput, damaged_state_is_one_error_line) {
  for (const std::string text : {"", "{", "[]", "null", "7", "{}", "\"x\"", "{\"bundle\":7}",
                                 "{\"bundle\":\"relative\"}", "{\"bundle\":\"/a\\u0000b\"}",
                                 "\xff\xfe", "{\"bundle\":\"/nonexistent\",\"annotations\":7} x"})
    expect_refused(text);
  expect_refused(std::string(2U << 20, ' '));
  expect_refused(std::string(500000, '['));
  expect_refused(std::string(150000, '{'), "cannot read");
}

TEST_F(HookInput, damaged_config_is_one_error_line) {
  const Json config = {{"root", {{"path", dir_.path()}}},
                       {"process", {{"args", {"/bin/app"}}, {"env", {"PATH=/bin"}}, {"cwd", "/"}}},
                       {"annotations", {{"heddle.mpi", "host"}}}};
  const auto text = config.dump();
  const auto check = [&](const std::string& damaged) {
    write_text_file(dir_ / "config.json", damaged);
    expect_refused(state().dump());
  };
  for (const std::string damaged :
       {"", "[]", "{\"root\":7}", "{\"root\":{\"path\":[]}}", "{\"root\":{\"path\":\"\"}}",
        "{\"root\":{\"path\":\"/a\\u0000\"}}"})
    check(damaged);
  check(text.substr(0, text.size() / 2));
}

TEST_F(HookInput, pid_of_another_namespace_is_refused_with_a_hint) {
  write_text_file(dir_ / "config.json", Json{{"root", {{"path", dir_.path()}}}}.dump());
  for (const int pid : {0, 1, -5}) {
    auto with_pid = state();
    with_pid["pid"] = pid;
    expect_refused(with_pid.dump(), "install the hook for this stage: --stage createContainer");
  }
}

TEST_F(HookInput, hook_without_annotation_does_nothing) {
  auto without = state();
  for (const Json& annotations :
       {Json(nullptr), Json::object(), Json{{"heddle.mpi", "off"}}, Json{{"heddle.mpi", 7}}}) {
    without["annotations"] = annotations;
    const auto ran = oci(without.dump());
    EXPECT_EQ(ran.status, 0);
    EXPECT_EQ(ran.err + ran.out, "");
  }
  EXPECT_FALSE(fs::exists(dir_ / "log"));
  EXPECT_FALSE(fs::exists(dir_ / "cache"));
}

/// An image can set annotations: podman copies those of its manifest to the container.
TEST_F(HookInput, annotations_count_only_below_allowed_directories) {
  const auto text = state().dump();
  for (const std::string elsewhere : {"/nonexistent", "", "-x"}) {
    allowed_ = dir_.path() + elsewhere;
    const auto ran = oci(text);
    EXPECT_EQ(ran.status, 0) << allowed_;
    EXPECT_THAT(ran.err, HasSubstr("warning: annotations (heddle.*) are ignored"));
    EXPECT_FALSE(fs::exists(dir_ / "cache"));
  }
  // Also where they would turn off what the hook's own arguments ask for.
  auto off = state();
  off["annotations"] = {{"heddle.mpi", "off"}};
  const auto always = run({hook_, "oci", "--always", "--cache", dir_ / "cache"},
                          {.input = off.dump(), .deadline = 10s});
  EXPECT_THAT(always.err, HasSubstr("warning: annotations (heddle.*) are ignored"));
  // The bundle's parent, also by a link and with a slash.
  fs::create_directory_symlink(fs::path(dir_.path()).parent_path(), dir_ / "link");
  for (const auto& parent : {dir_ / "..", dir_ / "../", dir_ / "link"}) {
    allowed_ = parent;
    expect_refused(text, "config.json: cannot open");
  }
}

/// An ordered object compares each new key with all before.
TEST_F(HookInput, documents_of_any_shape_cost_little_time) {
  Json many;
  for (int i = 0; i < 80'000; ++i) many[std::to_string(i)] = 0;
  const auto start = std::chrono::steady_clock::now();
  expect_refused(many.dump(), "too many members");
  EXPECT_FALSE(parse_decision(many.dump(), "x"));
  const auto deep = "{\"a\":" + std::string(500'000, '[');
  expect_refused(deep, "nested too deep");
  EXPECT_FALSE(parse_decision(deep, "x"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

TEST_F(HookInput, damaged_decision_is_refused) {
  const Json good = {{"format", "heddle-container"},
                     {"version", 1},
                     {"outcome", "swap"},
                     {"mount_point", "/dev/heddle"},
                     {"binds", Json::array({{{"source", "a"}, {"target", "/b"}}})},
                     {"directories", Json::array()},
                     {"verdict", Json::array()}};
  ASSERT_TRUE(parse_decision(good.dump(), "x"));
  const std::vector<std::pair<const char*, Strings>> damages = {
      {"/binds/0/target", {"", "b", "/../b", "/b/..", "/a/../b"}},
      {"/binds/0/source", {"", "/a", "..", "../a", "a/../../b"}},
      {"/mount_point", {"", "/", "dev", "/dev/../x"}}};
  for (const auto& [place, values] : damages)
    for (const auto& value : values) {
      auto bad = good;
      bad[Json::json_pointer(place)] = value;
      EXPECT_FALSE(parse_decision(bad.dump(), "x")) << place << ": " << value;
    }
  const auto text = good.dump();
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_FALSE(parse_decision(text.substr(0, size), "x"));
}

TEST(ContainerDecision, is_read_as_it_was_written_and_only_with_values_of_the_right_kind) {
  heddle::ContainerDecision made;
  made.outcome = heddle::Outcome::swap;
  made.programs = {"/app/solver"};
  made.mount_point = "/dev/heddle";
  made.mpi =
      made.container_mpi = {{"mpich", "4.0.2", "mpich-12", "libmpi.so.12", "/lib/libmpi.so"}};
  made.glibc = heddle::Side::host;
  made.binds = {{"libmpi.so.12", "/usr/lib/libmpi.so.12", "part of MPI"}};
  made.changed = {{"/lib/libmpi.so", "/etc", "/dev/heddle"}};
  made.directories = {{"plugins", "/usr/lib/plugins", true, "its plugins"}};
  made.environment = {{"NAME", "/dev/heddle/plugins"}};
  made.choices = {{"libmpi.so.12", heddle::Side::host, "/a", "/b", heddle::Rule::mpi_stack, "MPI"}};
  made.loads = {{"libmpi.so.12", "/dev/heddle/libmpi.so.12"}};
  made.warnings = {"one"};
  made.asked = {"/usr/lib/"};
  made.contents = made.map_id = "12ab";
  const auto text = heddle::to_json(made);
  const auto again = parse_decision(text, "x");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(heddle::to_json(*again), text);
  const auto json = Json::parse(text);
  const auto values = json.flatten();
  for (const auto& [place, value] : values.items()) {
    auto bad = json;
    bad[Json::json_pointer(place)] = value.is_string() ? Json(7) : Json("seven");
    EXPECT_FALSE(parse_decision(bad.dump(), "x")) << place;
  }
}

TEST_F(HookInput, installed_hook_file_follows_oci_hooks_5) {
  Strings install{"install", "--dir", dir_ / "a/hooks.d", "--cache", "/c", "--log", dir_ / "l/x"};
  const auto unsaid = edit(install);
  EXPECT_EQ(unsaid.status, 3);
  EXPECT_THAT(unsaid.err, HasSubstr("no option says which containers get it"));
  install.insert(install.end(), {"--allow-annotations", "/srv/trusted"});
  const auto ran = edit(install);
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.out, dir_ / "a/hooks.d/50-heddle-mpi.json\n");
  const auto json = Json::parse(value_or_throw(read_file(dir_ / "a/hooks.d/50-heddle-mpi.json")));
  EXPECT_EQ(json.at("version"), "1.0.0");
  EXPECT_EQ(json.at("stages"), Json::array({"createRuntime"}));
  EXPECT_EQ(json.at("hook").at("path"), fs::canonical(hook_).string());
  EXPECT_EQ(json.at("hook").at("env"), Json::array({"PATH=/usr/bin:/bin"}));
  EXPECT_EQ(json.at("when").at("annotations").size(), 1U);
  EXPECT_THAT(json.at("hook").at("args"), ::testing::Contains("/srv/trusted"));
  EXPECT_THAT(json.at("hook").at("args"), ::testing::Not(::testing::Contains("--always")));
  ASSERT_EQ(edit({"install", "--dir", dir_ / "b", "--always"}).status, 0);
  const auto always = Json::parse(value_or_throw(read_file(dir_ / "b/50-heddle-mpi.json")));
  EXPECT_EQ(always.at("when"), (Json{{"always", true}}));
  EXPECT_THAT(always.at("hook").at("args"), ::testing::Contains("--always"));
}

TEST_F(HookInput, cdi_specification_enables_the_hook_by_arguments) {
  const auto json = Json::parse(edit({"cdi"}).out);
  EXPECT_EQ(json.at("kind"), "heddle/mpi");
  const auto device = json.at("devices").at(0);
  EXPECT_EQ(device.at("name"), "host");
  const auto hook = device.at("containerEdits").at("hooks").at(0);
  EXPECT_EQ(hook.at("hookName"), "createRuntime");
  EXPECT_THAT(hook.at("args"), ::testing::Contains("--always"));
}

TEST_F(HookInput, bundle_command_adds_the_hook_once) {
  write_text_file(dir_ / "config.json",
                  R"({"hooks":{"createRuntime":[{"path":"/other"}]},"annotations":{"a":"b"}})");
  for (int i = 0; i < 2; ++i) {
    const auto ran = edit({"bundle", "--program", "/app/x", "--policy", "warn", dir_.path()});
    ASSERT_EQ(ran.status, 0) << ran.err;
  }
  const auto json = Json::parse(value_or_throw(read_file(dir_ / "config.json")));
  EXPECT_EQ(json.at("hooks").at("createRuntime").size(), 2U);
  EXPECT_EQ(json.at("annotations"), (Json{{"a", "b"}}));
  for (const char* word : {"--always", "/app/x", "warn"})
    EXPECT_THAT(json.at("hooks").at("createRuntime").at(1).at("args"), ::testing::Contains(word));
  for (const char* odd : {"", "[]", "{\"hooks\":7}", "{\"hooks\":{\"createRuntime\":7}}"}) {
    write_text_file(dir_ / "config.json", odd);
    EXPECT_EQ(edit({"bundle", dir_.path()}).status, 3) << odd;
    EXPECT_EQ(value_or_throw(read_file(dir_ / "config.json")), odd);
  }
  EXPECT_EQ(edit({"bundle", dir_ / "none"}).status, 3);
  for (const auto& wrong : {Strings{},
                            {"--policy", "maybe", dir_.path()},
                            {"--program", "x", dir_.path()},
                            {"--at", "heddle", dir_.path()}})
    EXPECT_EQ(edit(Strings{"bundle"} + wrong).status, 2);
}

/// process.env may hold secrets.
TEST_F(HookInput, bundle_command_keeps_the_owner_and_mode_of_config_json) {
  const auto path = dir_ / "config.json";
  write_text_file(path, "{}");
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 1500, 1501), 0);
  }
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  const auto ran = edit({"bundle", "--cache", dir_ / "c", dir_.path()});
  ASSERT_EQ(ran.status, 0) << ran.err;
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_NE(before.st_ino, after.st_ino);
  EXPECT_EQ(before.st_mode, after.st_mode);
  EXPECT_EQ(before.st_uid, after.st_uid);
  EXPECT_EQ(before.st_gid, after.st_gid);
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(run({hook_, "bundle", dir_.path()}, {.deadline = 10s}).status, 3);
  EXPECT_EQ(run({hook_, "verify", "--bundle", dir_.path()}, {.deadline = 10s}).status, 3);
}

/// Each start would fail.
TEST_F(HookInput, unusable_settings_are_refused_when_a_hook_is_written) {
  write_text_file(dir_ / "config.json", "{}");
  write_text_file(dir_ / "file", "");
  fs::create_directories(dir_ / "open");
  ASSERT_EQ(::chmod((dir_ / "open").c_str(), 0777), 0);
  for (const auto& command : {Strings{"bundle", dir_.path()},
                              {"cdi"},
                              {"install", "--always", "--dir", dir_ / "hooks"}}) {
    for (const auto& cache : {dir_ / "file", dir_ / "open", std::string()})
      EXPECT_EQ(edit(command + Strings{"--cache", cache}).status, 3) << command[0] << cache;
    for (const char* at : {"/", "//", "/dev", "/dev/", "/proc/x", "/sys", "/a/../b", "/a//b", "a"})
      EXPECT_EQ(edit(command + Strings{"--at", at}).status, 2) << command[0] << at;
    const auto without_home =
        run(Strings{"env", "-u", "HOME", "-u", "XDG_CACHE_HOME", hook_} + command);
    EXPECT_EQ(without_home.status, is_systems_root() ? 0 : 3) << without_home.err;
  }
  EXPECT_EQ(edit({"run", "--rootfs", "/", "--engine=env", "--engine=--", "--", "true"}).status, 2);
}

/// The runtime starts the hook in another working directory.
TEST_F(HookInput, relative_directories_become_absolute) {
  const auto spec = edit({"cdi", "--cache", "here", "--log", "log", "--mpi", "opt"});
  const auto here = fs::current_path().string();
  for (const char* name : {"/here", "/log", "/opt"})
    EXPECT_THAT(spec.out, HasSubstr('"' + here + name + '"')) << spec.err;
}

TEST_F(HookInput, verify_refuses_invalid_pids) {
  EXPECT_EQ(edit({"verify", "some"}).status, 2);
  EXPECT_EQ(edit({"verify", "12345678901"}).status, 2);
  const auto nobody = edit({"verify", "999999999"});
  EXPECT_EQ(nobody.status, 3);
  EXPECT_THAT(nobody.err, StartsWith("fs-hook: 999999999: "));
}

}  // namespace
}  // namespace heddle::test
