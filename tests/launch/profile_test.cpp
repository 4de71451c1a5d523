// SPDX-License-Identifier: MIT
#include "launch/profile.hpp"

#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "launch/sub_commands.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using launch::Profile;
using launch::ProfileDirectory;
using launch::selected_profile;
using Json = nlohmann::json;

struct Profiles : ::testing::Test {
  Profiles() { fs::permissions(dir_.path(), fs::perms(0755)); }
  std::string file(const std::string& name) const { return directory_.path() + "/" + name; }
  /// load("x") with this file; the message of its failure.
  std::string refusal(const std::string& text) const {
    write_text_file(file("x.json"), text);
    const auto loaded = directory_.load("x");
    return loaded ? "loaded" : loaded.error().message();
  }

  TestDir dir_;
  ProfileDirectory directory_{dir_ / "profiles", false};
};

std::string with(const std::string& more) { return "{\"heddle_profile\": 1, " + more + "}"; }

/// What is no profile, and a part of the message.
const std::pair<std::string, const char*> kDamaged[] = {
    {"[]", "the file is not an object"},
    {"{}", "heddle_profile is missing"},
    {"{\"heddle_profile\": 2}", "heddle_profile is not 1, the format known here"},
    {with("\"Map\": \"/x\""), "Map is no field of a profile"},
    {with("\"mpi\": {\"libs\": []}"), "mpi.libs is no field of a profile"},
    {with("\"\\u001b[2J\": 1"), "\\x1b[2J is no field of a profile"},
    {with("\"map\": 7"), "map is not a text"},
    {with("\"map\": \"x.map\""), "map 'x.map' is no absolute path"},
    {with("\"map\": \"/x\\u0000y\""), "is no absolute path"},
    {with("\"mpi\": []"), "mpi is not an object"},
    {with("\"files\": {}"), "files is not a list"},
    {with("\"files\": [[]]"), "files is not a text"},
    {with("\"files\": [\"/a:b\"]"), "files '/a:b' is neither PATH nor PATH:PATH_IN_CONTAINER"},
    {with("\"files\": [\"/a:/b:/c\"]"), "is neither PATH nor"},
    {with("\"environment\": []"), "environment is not an object"},
    {with("\"environment\": {\"A=B\": \"\"}"), "environment 'A=B' is no variable"},
    {with("\"environment\": {\"A\": null}"), "environment.A is not a text"},
    {with("\"container\": {\"backend\": \"rkt\"}"), "container.backend 'rkt' is unknown"},
    {with("\"container\": {\"image\": \"--privileged\"}"), "'--privileged' is no image"},
    {with("\"container\": {\"source\": \"x.sh\"}"), "is no absolute path"},
    {with("\"map\": \"\xff\""), "no JSON at line 1"},
    {std::string(100'000, '['), "it is nested too deep"},
    {with("\"map\": \"/" + std::string(5'000'000, 'x') + "\""), "x.json"}};

Profile full_profile() {
  Profile out;
  out.map = "/apps/x.bundle";
  out.mpi = {"openmpi", "4.1.4", "/usr/lib/libmpi.so.40.30.4"};
  out.files = {"/etc/libibverbs.d", "/opt/licence:/etc/licence"};
  out.environment = {{"UCX_TLS", "tcp,self"}, {"EMPTY", ""}, {"LINES", "a\nb \"c\" $d"}};
  out.container = {"podman", "docker.io/library/debian:12", "/home/u/set-up.sh"};
  return out;
}

TEST_F(Profiles, are_read_as_they_were_written_and_are_their_owners_alone) {
  ASSERT_TRUE(directory_.create({{"Open_MPI@4.1.4", full_profile()}, {"b", {}}}));
  EXPECT_EQ(directory_.load("Open_MPI@4.1.4").value(), full_profile());
  EXPECT_EQ(directory_.load("b").value(), Profile());
  EXPECT_EQ(directory_.names().value(), (Strings{"Open_MPI@4.1.4", "b"}));
  EXPECT_EQ(fs::status(directory_.path()).permissions(), fs::perms(0700));
  for (const auto* name : {"b.json", ".lock"})
    EXPECT_EQ(fs::status(file(name)).permissions(), fs::perms(0600)) << name;
  EXPECT_EQ(directory_.create({{"a", {}}, {"b", {}}}).error().code(), EEXIST);
  EXPECT_EQ(directory_.load("a").error().code(), ENOENT);
  ASSERT_TRUE(directory_.remove({"b"}));
  EXPECT_EQ(directory_.load("b").error().code(), ENOENT);
  EXPECT_EQ(directory_.remove({"Open_MPI@4.1.4", "b"}).error().code(), ENOENT);
  EXPECT_TRUE(directory_.load("Open_MPI@4.1.4"));
}

TEST_F(Profiles, names_that_are_no_file_names_are_refused) {
  for (const auto& name : {""s, "."s, ".."s, ".lock"s, "-n"s, "a/b"s, "../a"s, "a b"s, "a\n"s,
                           "a\0b"s, "\xc3\xa9"s, std::string(65, 'a')}) {
    EXPECT_EQ(directory_.create({{name, {}}}).error().code(), EINVAL) << name;
    EXPECT_EQ(directory_.load(name).error().code(), EINVAL) << name;
    EXPECT_EQ(directory_.remove({name}).error().code(), EINVAL) << name;
    EXPECT_EQ(directory_.edit(name, [](auto&) { return Result<void>(); }).error().code(), EINVAL);
  }
  EXPECT_FALSE(fs::exists(directory_.path()));
}

TEST_F(Profiles, damaged_files_are_refused_with_the_place) {
  ASSERT_TRUE(directory_.create({{"full", full_profile()}}));
  const auto text = value_or_throw(read_file(file("full.json")));
  EXPECT_EQ(refusal(text), "loaded");
  for (std::size_t size = 0; size + 2 < text.size(); ++size)
    EXPECT_THAT(refusal(text.substr(0, size)), HasSubstr("x.json: no profile: no JSON at line "));
  for (const auto& [content, message] : kDamaged)
    EXPECT_THAT(refusal(content), HasSubstr(message)) << content.substr(0, 100);
}

TEST_F(Profiles, hint_for_a_damaged_one_is_to_delete_it) {
  ASSERT_TRUE(directory_.create({{"a", full_profile()}}));
  const auto hint = [&] { return directory_.check_free("a").error().hint(); };
  EXPECT_EQ(hint(), "fs-launch profile edit a, or delete a");
  std::ofstream(file("a.json")) << "{";
  EXPECT_EQ(hint(), "fs-launch profile delete a");
  EXPECT_TRUE(directory_.remove({"a"}));
}

TEST_F(Profiles, schema_takes_and_refuses_what_fs_launch_does) {
  const auto source = std::getenv("HEDDLE_SOURCE");
  if (!source || run({"python3", "-c", "import jsonschema"}).status != 0)
    HEDDLE_SKIP("python3-jsonschema is not installed, or $HEDDLE_SOURCE is not set");
  ASSERT_TRUE(directory_.create({{"0-full", full_profile()}, {"0-empty", {}}}));
  for (const auto* backend : launch::kBackends) {
    auto profile = full_profile();
    profile.container.backend = backend;
    ASSERT_TRUE(directory_.create({{"0-" + std::string(backend), profile}}));
  }
  int number = 0;
  for (const auto& [content, message] : kDamaged)
    // The others are no JSON, or about sizes, of which a schema knows nothing.
    if (Json::accept(content) && content.size() < 10'000)
      std::ofstream(file(std::to_string(++number) + ".json")) << content;
  EXPECT_GT(number, 15);
  const auto checked =
      run({"python3", "-c",
           "import json, jsonschema, pathlib, sys\n"
           "schema = json.load(open(sys.argv[1]))\n"
           "jsonschema.Draft202012Validator.check_schema(schema)\n"
           "check = jsonschema.Draft202012Validator(schema).is_valid\n"
           "for f in sorted(pathlib.Path(sys.argv[2]).glob('*.json')):\n"
           "    if check(json.loads(f.read_bytes())) != f.name.startswith('0-'): print(f.name)\n",
           source + "/docs/formats/profile.schema.json"s, directory_.path()});
  EXPECT_EQ(checked.out + checked.err, "");
}

TEST_F(Profiles, links_are_followed_to_regular_files) {
  ASSERT_TRUE(directory_.create({{"real", full_profile()}}));
  fs::rename(file("real.json"), dir_ / "elsewhere.json");
  fs::create_symlink(dir_ / "elsewhere.json", file("linked.json"));
  ASSERT_TRUE(directory_.edit("linked", [](Profile& profile) {
    profile.map = "/y";
    return Result<void>();
  }));
  EXPECT_TRUE(fs::is_symlink(file("linked.json")));
  EXPECT_EQ(directory_.load("linked").value().map, "/y");
  fs::create_symlink("loop.json", file("loop.json"));
  fs::create_symlink("nowhere", file("dangling.json"));
  fs::create_symlink("/dev/zero", file("zero.json"));
  ASSERT_EQ(::mkfifo(file("fifo.json").c_str(), 0600), 0);
  fs::create_directory(file("directory.json"));
  for (const auto* name : {"loop", "dangling", "zero", "fifo", "directory"}) {
    EXPECT_FALSE(directory_.load(name)) << name;
    EXPECT_EQ(directory_.create({{name, {}}}).error().code(), EEXIST) << name;
  }
  ASSERT_TRUE(directory_.remove({"linked", "loop", "dangling", "fifo"}));
  EXPECT_TRUE(fs::exists(dir_ / "elsewhere.json"));
}

TEST_F(Profiles, others_files_and_directories_are_refused) {
  if (::geteuid() != 0) HEDDLE_SKIP("files of other users need root");
  ASSERT_TRUE(directory_.create({{"x", {}}}));
  const auto is_refused = [&] {
    const auto loaded = directory_.load("x");
    return !loaded && loaded.error().message().find("cannot be trusted") != std::string::npos;
  };
  fs::permissions(file("x.json"), fs::perms(0622));
  EXPECT_TRUE(is_refused());
  fs::permissions(file("x.json"), fs::perms(0644));
  EXPECT_FALSE(is_refused());
  ASSERT_EQ(::chown(file("x.json").c_str(), 65534, 65534), 0);
  EXPECT_TRUE(is_refused());
  ASSERT_EQ(::chown(file("x.json").c_str(), 0, 0), 0);
  fs::permissions(directory_.path(), fs::perms(0777));
  EXPECT_TRUE(is_refused());
  EXPECT_FALSE(directory_.create({{"y", {}}}));
  EXPECT_FALSE(directory_.select("x"));
}

TEST_F(Profiles, of_the_system_are_roots_alone) {
  if (::geteuid() != 0) HEDDLE_SKIP("files of other users need root");
  const ProfileDirectory system(dir_ / "profiles", true);
  ASSERT_TRUE(system.create({{"x", full_profile()}}));
  ASSERT_EQ(::seteuid(65534), 0);
  const auto seen = system.load("x");
  const auto refused = system.create({{"y", {}}});
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(seen.value(), full_profile());
  EXPECT_EQ(refused.error().code(), EACCES);
  // Its reader's own, where an administrator gave a file away.
  ASSERT_EQ(::chown(file("x.json").c_str(), 65534, 65534), 0);
  ASSERT_EQ(::seteuid(65534), 0);
  const auto own = system.load("x");
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_FALSE(own);
  EXPECT_THAT(own.error().message(), HasSubstr("does not belong to root alone"));
  ASSERT_EQ(::chown(file("x.json").c_str(), 0, 0), 0);
  fs::permissions(file("x.json"), fs::perms(0664));
  EXPECT_FALSE(system.load("x"));
}

TEST_F(Profiles, of_the_system_are_for_all_whatever_the_umask) {
  for (const mode_t mask : {077, 0}) {
    const ProfileDirectory system(dir_ / "site" + std::to_string(mask) + "/profiles", true);
    const auto before = ::umask(mask);
    const auto made = system.create({{"x", full_profile()}});
    ::umask(before);
    ASSERT_TRUE(made) << made.error().message();
    for (const auto& path : {system.path(), fs::path(system.path()).parent_path().string()})
      EXPECT_EQ(fs::status(path).permissions(), fs::perms(0755)) << path;
    EXPECT_TRUE(system.create({{"y", {}}})) << "it is trusted";
  }
}

TEST_F(Profiles, of_none_can_be_selected) {
  EXPECT_FALSE(directory_.has_selection());
  ASSERT_TRUE(directory_.create({{"x", {}}}));
  ASSERT_TRUE(directory_.select("x"));
  EXPECT_TRUE(directory_.has_selection());
  ASSERT_TRUE(directory_.select(""));
  EXPECT_EQ(directory_.selected().value(), "");
}

TEST_F(Profiles, changed_64_times_at_once_lose_no_change) {
  ASSERT_TRUE(directory_.create({{"x", {}}}));
  std::vector<Child> children;
  for (int i = 0; i < 64; ++i)
    children.push_back(value_or_throw(fork_child({}, [&, i] {
      Profile mine;
      mine.map = "/" + std::to_string(i);
      const auto created = directory_.create({{"one", mine}});
      value_or_throw(directory_.edit("x", [&](Profile& profile) {
        profile.environment["V" + std::to_string(i)] = "";
        return Result<void>();
      }));
      return created ? 0 : created.error().code();
    })));
  int created = 0;
  for (auto& child : children) {
    const int status = value_or_throw(child.wait());
    created += status == 0;
    EXPECT_TRUE(status == 0 || status == EEXIST) << status;
  }
  EXPECT_EQ(created, 1);
  EXPECT_EQ(directory_.load("x").value().environment.size(), 64U);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), {}), 3);
}

TEST_F(Profiles, of_a_full_disk_leave_nothing) {
  ASSERT_TRUE(directory_.create({{"x", full_profile()}}));
  auto child = value_or_throw(fork_child({}, [&] {
    const rlimit limit{100, 100};
    ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto change = [](Profile& profile) {
      profile.map = "/y";
      return Result<void>();
    };
    return directory_.create({{"a", {}}, {"b", full_profile()}}) || directory_.edit("x", change);
  }));
  EXPECT_EQ(value_or_throw(child.wait()), 0);
  EXPECT_EQ(directory_.names().value(), (Strings{"x"}));
  EXPECT_EQ(directory_.load("x").value(), full_profile());
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), {}), 2);
}

/// `fs-launch profile` in this process, with its own XDG_CONFIG_HOME.
struct ProfileCommand : Profiles {
  ProfileCommand() { ::setenv("XDG_CONFIG_HOME", dir_.path().c_str(), 1); }
  int run(Strings words) {
    words.insert(words.begin(), "profile");
    std::vector<const char*> argv;
    for (const auto& word : words) argv.push_back(word.c_str());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    int status = 3;
    try {
      status = launch::profile_main(static_cast<int>(argv.size()), argv.data());
    } catch (const Error& error) {
      message_ = error.message();
    }
    std::fflush(stdout);
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return status;
  }
  std::string out_, err_, message_;
  ProfileDirectory user_{dir_ / "heddle/profiles", false};
};

TEST_F(ProfileCommand, makes_shows_edits_selects_and_deletes) {
  ASSERT_EQ(run({"create", "a", "--map", "/x.map", "--image", "debian:12", "--backend", "podman",
                 "--file", "/etc/hosts", "--env", "A=b=c", "--env", "B=$HOME \"x\""}),
            0)
      << message_;
  const auto made = user_.load("a").value();
  EXPECT_EQ(made.map, "/x.map");
  EXPECT_EQ(made.environment,
            (std::map<std::string, std::string>{{"A", "b=c"}, {"B", "$HOME \"x\""}}));
  ASSERT_EQ(run({"use", "a"}), 0);
  EXPECT_EQ(selected_profile().value(), "a");
  ASSERT_EQ(run({"show"}), 0);
  EXPECT_EQ(out_, launch::to_json(made));
  ASSERT_EQ(run({"edit", "a", "--clear", "environment", "--env", "C=1", "--image", "debian:13"}),
            0);
  EXPECT_EQ(user_.load("a").value().environment, (std::map<std::string, std::string>{{"C", "1"}}));
  EXPECT_EQ(user_.load("a").value().container.image, "debian:13");
  EXPECT_EQ(user_.load("a").value().container.backend, "podman");
  ASSERT_EQ(run({"list"}), 0);
  EXPECT_THAT(out_, AllOf(StartsWith("  name "), HasSubstr("\n* a "), HasSubstr(" /x.map "),
                          HasSubstr("debian:13")));
  std::ofstream(dir_ / "heddle/profiles/broken.json") << "{";
  EXPECT_EQ(run({"list", "--json"}), 3);
  EXPECT_THAT(err_, HasSubstr("broken.json: no profile: no JSON at line 1"));
  EXPECT_EQ(Json::parse(out_).size(), 1U);
  EXPECT_EQ(Json::parse(out_)[0]["profile"], Json::parse(launch::to_json(user_.load("a").value())));
  ASSERT_EQ(run({"delete", "a", "broken"}), 0);
  EXPECT_EQ(selected_profile().value(), "");
  EXPECT_EQ(run({"list"}), 0);
  EXPECT_THAT(err_, HasSubstr("there is no profile"));
  EXPECT_EQ(run({"delete", "a"}), 3);
  EXPECT_THAT(message_, HasSubstr("no profile of this name"));
  EXPECT_EQ(run({"show"}), 3);
  EXPECT_THAT(message_, HasSubstr("none is selected"));
}

TEST_F(ProfileCommand, refuses_wrong_words) {
  const Strings wrong[] = {{},
                           {"make"},
                           {"use"},
                           {"use", "a", "--none"},
                           {"delete"},
                           {"edit"},
                           {"create", "a", "--image", ""},
                           {"create", "a", "--backend", "rkt"},
                           {"create", "a", "--map", "/x", "--env", "A"},
                           {"create", "a", "--map", "/x", "--env", "A-B=1"},
                           {"create", "a", "--map", "/x", "--env", "1A=1"},
                           {"edit", "a", "--env", "C"},
                           {"edit", "a", "--clear", "everything"}};
  for (const auto& words : wrong) EXPECT_EQ(run(words), 2) << ::testing::PrintToString(words);
  const Strings failing[] = {{"show", "none"},
                             {"use", "none"},
                             {"delete", "none"},
                             {"edit", "none", "--env", "A=b"},
                             {"create", "../a", "--map", "/x"},
                             {"edit", "none"},
                             {"create", "a", "--image", "-v"},
                             {"import", dir_ / "none"}};
  for (const auto& words : failing) EXPECT_EQ(run(words), 3) << ::testing::PrintToString(words);
  EXPECT_THAT(user_.names().value(), IsEmpty());
}

TEST_F(ProfileCommand, imports_profiles_of_e4s_cl) {
  const auto database = dir_ / "user.json";
  std::ofstream(database)
      << R"({"_default": {"1": {"key": "selected_profile", "value": 1}}, "Profile": {
    "1": {"name": "Open_MPI@4.1.4", "backend": "podman", "image": "ecp.sif", "source": "/opt/e.sh",
          "backend_args": "--gpus all", "files": ["/etc/libibverbs.d", "/a:/b"],
          "libraries": ["/nowhere/libmpi.so.40"]},
    "2": {"name": "bare", "backend": "barebones", "wi4mpi": null}}})";
  ASSERT_EQ(run({"import", database}), 0) << message_;
  EXPECT_EQ(out_, "Open_MPI@4.1.4\nbare\n");
  for (const auto* said :
       {"Open_MPI@4.1.4: left out: backend_args",
        "Open_MPI@4.1.4: left out: libraries: none of them", "bare: left out: backend barebones"})
    EXPECT_THAT(err_, HasSubstr(said));
  const auto made = user_.load("Open_MPI@4.1.4").value();
  EXPECT_EQ(made.container, (Profile::Container{"podman", "ecp.sif", "/opt/e.sh"}));
  EXPECT_EQ(made.files, (Strings{"/etc/libibverbs.d", "/a:/b"}));
  EXPECT_EQ(user_.load("bare").value(), Profile());
  EXPECT_EQ(run({"import", database, "bare"}), 3);
  EXPECT_EQ(run({"delete", "bare"}), 0);
  EXPECT_EQ(run({"import", database, "bare"}), 0);
  // What profile dump prints; and files that are none.
  std::ofstream(dir_ / "dump") << R"([{"name": "dumped", "image": "x"}, {"name": "of users"}])";
  EXPECT_EQ(run({"import", dir_ / "dump"}), 0);
  EXPECT_EQ(out_, "dumped\nof_users\n");
  EXPECT_EQ(run({"delete", "of_users"}), 0);
  EXPECT_EQ(run({"import", dir_ / "dump", "of users"}), 0);
  EXPECT_EQ(run({"delete", "of_users"}), 0);
  // Others of the file do not matter to one that is asked for.
  std::ofstream(dir_ / "dump") << R"([{}, 7, {"name": 1}, {"name": "asked", "image": "x"}])";
  EXPECT_EQ(run({"import", dir_ / "dump", "asked"}), 0) << message_;
  EXPECT_EQ(run({"delete", "asked"}), 0);
  for (const auto* text :
       {"", "7", "[]", "{}", "[{}]", R"([{"name": 1}])", R"([{"name": "a/b"}])",
        R"([{"name": "y", "files": 7}])", R"([{"name": "y", "files": ["relative"]}])",
        R"([{"name": "y", "image": []}])", R"([{"name": "y"}, {"name": "y"}])",
        R"([{"name": "y", "backend": "rkt"}])", R"([{"name": "y"}, {"name": "dumped"}])"}) {
    std::ofstream(dir_ / "dump") << text;
    EXPECT_EQ(run({"import", dir_ / "dump"}), 3) << text;
  }
  std::ofstream(dir_ / "dump") << std::string(1'000'000, '[');
  EXPECT_EQ(run({"import", dir_ / "dump"}), 3);
  EXPECT_EQ(user_.names().value(), (Strings{"Open_MPI@4.1.4", "bare", "dumped"}));
}

}  // namespace
}  // namespace heddle::test
