// SPDX-License-Identifier: MIT
// A user of the node, who may run what he likes and knows where everything lies, against programs
// of root and of other users.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/child.hpp"
#include "base/fd.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr unsigned kAttacker = 1511;
constexpr unsigned kVictim = 1512;

/// `argv` as that user, with one supplementary group where it is given.
std::vector<std::string> as(unsigned uid, std::vector<std::string> argv, unsigned group = 0) {
  const auto number = std::to_string(uid);
  std::vector<std::string> out{"setpriv", "--reuid=" + number, "--regid=" + number,
                               group == 0 ? "--clear-groups" : "--groups=" + std::to_string(group)};
  out.insert(out.end(), argv.begin(), argv.end());
  return out;
}

RunResult attack(const std::string& script, const std::string& argument = {}) {
  return run(as(kAttacker, {"sh", "-c", script, "sh", argument}));
}

class LocalUser : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("needs root to become other users");
    if (::access("/dev/fuse", R_OK | W_OK) != 0) HEDDLE_SKIP("no /dev/fuse to open");
    for (const char* program : {"fs-gen", "fs-mount", "fs-resolve"})
      if (staged_program(program).empty())
        HEDDLE_SKIP(std::string(program) + " is not installed in $HEDDLE_STAGE");
    fs::permissions(dir_.path(), fs::perms(0755));
    options_.env = {"XDG_CACHE_HOME=" + (dir_ / "cache"), "TMPDIR=" + directory("tmp", 0, 01777)};
  }

  std::string directory(const std::string& name, unsigned owner, unsigned mode,
                        unsigned group = 0) {
    const auto path = dir_ / name;
    fs::create_directories(path);
    EXPECT_EQ(::chown(path.c_str(), owner, group), 0);
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  /// A program in `directory` whose library lies beside it; prints `word`.
  static std::string program_in(const std::string& directory, const std::string& word) {
    const auto library =
        build_library({.output = directory + "/libword.so.1",
                       .source = "const char* word(void){return \"" + word + "\";}",
                       .flags = {"-Wl,-soname,libword.so.1"}});
    return build_program({.output = directory + "/app",
                          .source = "#include <stdio.h>\nextern const char* word(void);\n"
                                    "int main(void){puts(word());return 0;}",
                          .flags = {library, "-Wl,-rpath," + directory}});
  }
  /// A mount of root's for these programs.
  std::string mount(const std::vector<std::string>& programs, std::vector<std::string> more = {}) {
    std::vector<std::string> build{staged_program("fs-resolve"), "build", "-o", dir_ / "map"};
    build.insert(build.end(), programs.begin(), programs.end());
    run_checked(build, options_);
    fs::create_directories(dir_ / "m");
    std::vector<std::string> argv{staged_program("fs-mount")};
    argv.insert(argv.end(), more.begin(), more.end());
    argv.insert(argv.end(), {dir_ / "map", dir_ / "m"});
    run_checked(argv, options_);
    return dir_ / "m";
  }
  void TearDown() override {
    if (mounts_with(" " + (dir_ / "m") + " ") == 0) return;
    const auto daemon = supervisor();
    (void)run({staged_program("fs-mount"), "-u", dir_ / "m"});
    EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] { return !is_running(daemon); }));
  }
  int stat_of(const char* name) const {
    const auto text = read_stats_text(dir_ / "m").value_or("{}");
    const auto stats = nlohmann::json::parse(text).flatten();
    for (const auto& [path, value] : stats.items())
      if (path.ends_with(std::string("/") + name)) return value.get<int>();
    return 0;
  }
  int supervisor() const { return stat_of("supervisor_pid"); }

  TestDir dir_;
  RunOptions options_;
};

/// fs-gen's own directory of the run in `tmp`, when its counters are there.
std::string run_directory(const std::string& tmp) {
  for (const auto& entry : fs::directory_iterator(tmp))
    if (fs::exists(entry.path() / "counters")) return entry.path();
  return {};
}

// The file is mapped by every guided process: truncated, it ended each by SIGBUS at its next
// dlopen.
TEST_F(LocalUser, cannot_end_guided_programs_by_their_counters) {
  const auto plugin = build_library({.output = dir_ / "p/libplugin.so.1", .source = "int plugin;"});
  const auto go = dir_ / "go";
  ASSERT_EQ(::mkfifo(go.c_str(), 0600), 0);
  const auto app = build_program(
      {.output = dir_ / "p/app",
       .source = "#include <dlfcn.h>\n#include <fcntl.h>\n#include <stdio.h>\n#include <unistd.h>\n"
                 "int main(int c,char**v){char b;int f=open(v[1],O_RDONLY);"
                 "if(f<0||read(f,&b,1)!=1)return 9;return dlopen(v[2],RTLD_NOW)?42:8;}"});
  for (const char* via : {"direct", "private"}) {
    SCOPED_TRACE(via);
    SpawnOptions options;
    std::vector<std::string> environment;
    for (char** entry = ::environ; *entry; ++entry)
      if (!std::string_view(*entry).starts_with("TMPDIR=")) environment.emplace_back(*entry);
    environment.insert(environment.end(), options_.env.begin(), options_.env.end());
    options.environment = environment;
    auto victim = value_or_throw(spawn(
        staged_program("fs-gen"), {"fs-gen", "-q", "--via", via, "--", app, go, plugin}, options));
    Fd gate;  // opens when the program waits there
    ASSERT_TRUE(wait_until(std::chrono::seconds(60), [&] {
      gate = Fd(::open(go.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
      return gate.valid();
    }));
    const auto work = run_directory(dir_ / "tmp");
    ASSERT_NE(work, "");
    const auto seen = attack(
        "cd \"$1\" && for f in $(find . -type f); do rm -f $f; mv $f $f.old; truncate -s 0 $f;"
        " done; touch new; mv \"$1\" \"$1.old\"; true",
        work);
    EXPECT_THAT(seen.err, HasSubstr("ermission denied"));
    EXPECT_GT(fs::file_size(work + "/counters"), 64U);
    ASSERT_EQ(::write(gate.get(), "x", 1), 1);
    EXPECT_EQ(value_or_throw(victim.wait()), 42);
  }
}

TEST_F(LocalUser, cannot_read_through_root_s_mount_what_directories_keep_from_him) {
  const auto open = program_in(directory("open", 0, 0755), "open");
  const auto secret = program_in(directory("secret", 0, 0755) + "/lib", "secret");
  ASSERT_EQ(::chmod((dir_ / "secret").c_str(), 0700), 0);
  const auto m = mount({open, secret});
  // Two views, named after their programs' paths.
  const auto seen =
      attack("for f in $(find \"$1\" -name libword.so.1); do grep -ao 'open\\|secret' $f; done", m);
  EXPECT_THAT(seen.out, HasSubstr("open"));
  EXPECT_THAT(seen.out, Not(HasSubstr("secret")));
  EXPECT_THAT(seen.err, HasSubstr("Permission denied"));
  const auto own =
      run({"sh", "-c", "grep -aoh 'open\\|secret' $(find \"$1\" -name libword.so.1)", "sh", m});
  EXPECT_THAT(own.out, HasSubstr("secret"));
}

TEST_F(LocalUser, reads_through_root_s_mount_what_his_group_and_his_own_directory_allow) {
  constexpr unsigned kProject = 1600;
  const auto home = program_in(directory("home", kVictim, 0755), "homely");
  const auto project = program_in(directory("project", 0, 0755, kProject), "shared");
  for (const char* file : {"home/libword.so.1", "home/app"})
    ASSERT_EQ(::chown((dir_ / file).c_str(), kVictim, kVictim), 0);
  ASSERT_EQ(::chmod((dir_ / "home").c_str(), 0700), 0);
  ASSERT_EQ(::chmod((dir_ / "project").c_str(), 0750), 0);
  const auto m = mount({home, project});
  const auto words_of = [&](unsigned uid, unsigned group) {
    return run(as(uid,
                  {"sh", "-c", "grep -aoh 'homely\\|shared' $(find \"$1\" -name libword.so.1)",
                   "sh", m},
                  group))
        .out;
  };
  EXPECT_THAT(words_of(kVictim, 0), HasSubstr("homely"));
  EXPECT_THAT(words_of(kVictim, 0), Not(HasSubstr("shared")));
  EXPECT_THAT(words_of(kAttacker, kProject), HasSubstr("shared"));
  EXPECT_THAT(words_of(kAttacker, kProject), Not(HasSubstr("homely")));
}

TEST_F(LocalUser, gets_nothing_of_root_s_daemons) {
  (void)mount({program_in(directory("open", 0, 0755), "open")});
  for (const int pid : {supervisor(), stat_of("worker_pid")}) {
    ASSERT_GT(pid, 1);
    const auto proc = "/proc/" + std::to_string(pid);
    for (const char* file : {"mem", "environ", "maps", "auxv", "syscall", "stack", "io"})
      EXPECT_NE(attack("head -c 1 \"$1\"", proc + "/" + file).status, 0) << file;
    EXPECT_NE(attack("ls \"$1\"/* >/dev/null", proc + "/fd").status, 0);
    EXPECT_NE(attack("readlink \"$1\"", proc + "/exe").status, 0);
    for (const char* signal : {"0", "KILL", "STOP", "USR1"})
      EXPECT_NE(attack("kill -" + std::string(signal) + " \"$1\"", std::to_string(pid)).status, 0);
    EXPECT_TRUE(is_running(pid));
  }
  EXPECT_NE(attack(staged_program("fs-mount") + " -u \"$1\"", dir_ / "m").status, 0);
  EXPECT_NE(attack(staged_program("fs-mount") + " --reload \"$1\"", dir_ / "m").status, 0);
  EXPECT_EQ(mounts_with(" " + (dir_ / "m") + " "), 1U);
}

/// What `app` says under fs-gen as `uid`, with its map `work`/map, in a /tmp of its own in which
/// the attacker did `before`; and what lies in that /tmp then.
RunResult guided(unsigned uid, const std::string& before, const std::string& work,
                 const std::string& app, const std::string& environment) {
  const auto own = "/tmp/heddle-" + std::to_string(uid);
  // The programs may lie below /tmp as well.
  const auto build = fs::path(std::getenv("HEDDLE_STAGE")).parent_path().string();
  const auto script =
      "mount --bind " + work + " /mnt && mount --bind " + build +
      " /opt && mount -t tmpfs -o mode=1777 none /tmp && mkdir -p " + work + " " + build +
      " /tmp/t && chmod 1777 /tmp/t && mount --bind /mnt " + work + " && mount --bind /opt " +
      build + " && cd / && " + to_shell(as(kAttacker, {"sh", "-c", before})) + " && (env " +
      environment + " TMPDIR=/tmp/t " +
      to_shell({HEDDLE_IN_WORLD, "--uid", std::to_string(uid), "--", staged_program("fs-gen"), "-q",
                "--via", "fusermount", "--map", work + "/map", "--", app}) +
      "); s=$?; ls -Al /tmp/x /tmp/x/heddle " + own + "/ 2>/dev/null; exit $s";
  return run({"unshare", "--mount", "sh", "-c", script});
}

// Sockets lie in /run/heddle, XDG_RUNTIME_DIR or /tmp/heddle-UID: where others can prepare it.
TEST_F(LocalUser, cannot_prepare_the_directory_of_another_s_sockets) {
  const auto app = program_in(directory("open", 0, 0755), "open");
  run_checked({staged_program("fs-resolve"), "build", "-o", dir_ / "map", app}, options_);
  const auto own = "/tmp/heddle-" + std::to_string(kVictim);
  for (const std::string& before :
       {"mkdir -m 0777 " + own, "mkdir -m 0700 " + own, "mkdir -m 0777 /tmp/x; ln -s /tmp/x " + own,
        "ln -s /tmp " + own, "ln -s nowhere " + own, "mkfifo " + own, ": > " + own}) {
    SCOPED_TRACE(before);
    const auto seen = guided(kVictim, before + "; chmod 0777 /tmp/x 2>/dev/null; true", dir_.path(),
                             app, "-u XDG_RUNTIME_DIR");
    EXPECT_EQ(seen.status, 0) << seen.err;
    EXPECT_THAT(seen.out, HasSubstr("open\n"));
    EXPECT_THAT(seen.out, Not(HasSubstr("lease-")));
    EXPECT_THAT(seen.out, Not(HasSubstr("locks")));
  }
  for (const std::string runtime : {"/tmp/x", "relative", "/nowhere", "/dev/null", "/root"}) {
    SCOPED_TRACE(runtime);
    const auto seen = guided(kVictim, "mkdir -m 0777 /tmp/x; mkdir -m 0777 /tmp/x/heddle",
                             dir_.path(), app, "XDG_RUNTIME_DIR=" + runtime);
    EXPECT_EQ(seen.status, 0) << seen.err;
    EXPECT_THAT(seen.out, HasSubstr("open\n"));
  }
}

// In a directory of the attacker's no sticky bit, and so no protected_symlinks, helps.
TEST_F(LocalUser, cannot_lead_a_log_of_root_s_to_another_file) {
  const auto shadow = write_text_file(dir_ / "shadow", "root:x\n", 0600);
  const auto place = directory("place", kAttacker, 0755);
  ASSERT_EQ(attack("ln -s \"$1\" " + place + "/log", shadow).status, 0);
  const auto app = program_in(directory("open", 0, 0755), "open");
  run_checked({staged_program("fs-resolve"), "build", "-o", dir_ / "map", app}, options_);
  fs::create_directories(dir_ / "m");
  const auto refused = run(
      {staged_program("fs-mount"), "--log", place + "/log", dir_ / "map", dir_ / "m"}, options_);
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.err, HasSubstr(place + "/log"));
  EXPECT_EQ(value_or_throw(read_file(shadow)), "root:x\n");
  // What is said goes there: a daemon that starts writes nothing, one that ends badly does.
  ASSERT_EQ(attack("rm " + place + "/log; mkfifo " + place + "/log").status, 0);
  options_.deadline = std::chrono::seconds(20);
  const auto fifo = run(
      {staged_program("fs-mount"), "--log", place + "/log", dir_ / "map", dir_ / "m"}, options_);
  EXPECT_FALSE(fifo.timed_out);
  EXPECT_NE(fifo.status, 0);
}

TEST_F(LocalUser, cannot_have_a_run_of_root_s_remove_others_files) {
  const auto victim = directory("victim", 0, 0755);
  write_text_file(victim + "/counters", "kept");
  write_text_file(victim + "/m/file", "kept");
  const auto tmp = directory("odd", kAttacker, 0777);  // no sticky bit: his to rename in
  const auto app = program_in(directory("open", 0, 0755), "open");
  auto options = options_;
  options.env.back() = "TMPDIR=" + tmp;
  // The program itself has the attacker swap the run's directory, so there is no race to be won.
  const auto swap = "setpriv --reuid=" + std::to_string(kAttacker) + " --clear-groups sh -c '" +
                    "cd " + tmp + " && for d in hd-*; do mv $d old.$d && ln -s " + victim +
                    " $d; done'";
  for (const char* via : {"direct", "private"}) {
    (void)run(
        {staged_program("fs-gen"), "-q", "--no-share", "--via", via, "--", "/bin/sh", "-c", swap},
        options);
    EXPECT_EQ(value_or_throw(read_file(victim + "/counters")), "kept") << via;
    EXPECT_EQ(value_or_throw(read_file(victim + "/m/file")), "kept") << via;
    for (const auto& entry : fs::directory_iterator(tmp)) (void)run({"rm", "-rf", entry.path()});
  }
}

TEST_F(LocalUser, cannot_put_facts_or_files_into_another_s_cache) {
  const auto app = program_in(directory("open", 0, 0755), "open");
  const auto build = [&](const std::string& cache) {
    auto options = options_;
    options.env.front() = "XDG_CACHE_HOME=" + cache;
    return run({staged_program("fs-resolve"), "build", "-o", dir_ / "map", app}, options);
  };
  const auto theirs = directory("theirs", kAttacker, 0777);
  ASSERT_EQ(attack("mkdir -m 0777 \"$1/heddle\"", theirs).status, 0);
  EXPECT_EQ(build(theirs).status, 0);
  EXPECT_TRUE(fs::is_empty(theirs + "/heddle"));
  const auto victim = directory("victim", 0, 0755);
  const auto linked = directory("linked", kAttacker, 0777);
  ASSERT_EQ(attack("ln -s " + victim + " \"$1/heddle\"", linked).status, 0);
  EXPECT_EQ(build(linked).status, 0);
  for (const auto& entry : fs::recursive_directory_iterator(victim))
    ADD_FAILURE() << entry.path() << " was made through the attacker's link";
}

}  // namespace
}  // namespace heddle::test
