// SPDX-License-Identifier: MIT
// Attacks by a user of the node, who may run any program and knows all paths, on programs of root
// and of other users.

#include <cstdio>
#include <nlohmann/json.hpp>

#include "fuseovl/mount/stats_attribute.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/tree_index.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

constexpr unsigned kAttacker = 1511;
constexpr unsigned kVictim = 1512;

/// `argv` as that user, with one supplementary group if it is not 0.
Strings as(unsigned uid, const Strings& argv, unsigned group = 0) {
  const auto number = std::to_string(uid);
  return Strings{"setpriv", "--reuid=" + number, "--regid=" + number,
                 group == 0 ? "--clear-groups" : "--groups=" + std::to_string(group)} +
         argv;
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
  /// Builds a program that prints `word`, with a library in the same directory.
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
  void make_map(const Strings& programs) {
    run_checked(Strings{staged_program("fs-resolve"), "build", "-o", dir_ / "map"} + programs,
                options_);
  }
  /// root's mount of a map of these programs.
  std::string mount(const Strings& programs) {
    make_map(programs);
    fs::create_directories(dir_ / "m");
    run_checked({staged_program("fs-mount"), dir_ / "map", dir_ / "m"}, options_);
    return dir_ / "m";
  }
  void TearDown() override {
    if (mounts_with(" " + (dir_ / "m") + " ") == 0) return;
    const auto daemon = supervisor();
    (void)run({staged_program("fs-mount"), "-u", dir_ / "m"});
    EXPECT_TRUE(wait_until(10s, [&] { return !is_running(daemon); }));
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

/// fs-gen's directory for the run, below `tmp`, when it has its counters file.
std::string run_directory(const std::string& tmp) {
  for (const auto& entry : fs::directory_iterator(tmp))
    if (fs::exists(entry.path() / "counters")) return entry.path();
  return {};
}

// Every guided process maps the file, so truncating it would end each by SIGBUS at its next dlopen.
TEST_F(LocalUser, user_cannot_end_guided_programs_by_their_counters) {
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
    Strings environment;
    for (char** entry = ::environ; *entry; ++entry)
      if (!std::string_view(*entry).starts_with("TMPDIR=")) environment.emplace_back(*entry);
    environment.insert(environment.end(), options_.env.begin(), options_.env.end());
    options.environment = environment;
    auto victim = value_or_throw(spawn(
        staged_program("fs-gen"), {"fs-gen", "-q", "--via", via, "--", app, go, plugin}, options));
    Fd gate;  // opens when the program waits to read
    ASSERT_TRUE(wait_until(60s, [&] {
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

TEST_F(LocalUser, roots_mount_does_not_bypass_closed_directories_and_files) {
  const auto open = program_in(directory("open", 0, 0755), "open");
  const auto secret = program_in(directory("secret", 0, 0755) + "/lib", "secret");
  ASSERT_EQ(::chmod((dir_ / "secret").c_str(), 0700), 0);
  // A file that only its owner may read.
  const auto secret_file = program_in(directory("file", 0, 0755), "secret");
  ASSERT_EQ(::chmod((dir_ / "file/libword.so.1").c_str(), 0600), 0);
  const auto m = mount({open, secret, secret_file});
  const auto seen =
      attack("for f in $(find \"$1\" -name libword.so.1); do grep -ao 'open\\|secret' $f; done", m);
  EXPECT_THAT(seen.out, HasSubstr("open"));
  EXPECT_THAT(seen.out, Not(HasSubstr("secret")));
  EXPECT_THAT(seen.err, HasSubstr("Permission denied"));
  const auto own =
      run({"sh", "-c", "grep -aoh 'open\\|secret' $(find \"$1\" -name libword.so.1)", "sh", m});
  EXPECT_THAT(own.out, HasSubstr("secret"));
}

TEST_F(LocalUser, roots_mount_grants_what_group_and_owner_may_read) {
  constexpr unsigned kProject = 1600;
  const auto home = program_in(directory("home", kVictim, 0755), "homely");
  const auto project = program_in(directory("project", 0, 0755, kProject), "shared");
  for (const char* file : {"home/libword.so.1", "home/app"})
    ASSERT_EQ(::chown((dir_ / file).c_str(), kVictim, kVictim), 0);
  ASSERT_EQ(::chmod((dir_ / "home").c_str(), 0700), 0);
  ASSERT_EQ(::chmod((dir_ / "project").c_str(), 0750), 0);
  const auto m = mount({home, project});
  const auto read_by = [&](unsigned uid, unsigned group) {
    return run(as(uid,
                  {"sh", "-c", "grep -aoh 'homely\\|shared' $(find \"$1\" -name libword.so.1)",
                   "sh", m},
                  group))
        .out;
  };
  EXPECT_THAT(read_by(kVictim, 0), HasSubstr("homely"));
  EXPECT_THAT(read_by(kVictim, 0), Not(HasSubstr("shared")));
  EXPECT_THAT(read_by(kAttacker, kProject), HasSubstr("shared"));
  EXPECT_THAT(read_by(kAttacker, kProject), Not(HasSubstr("homely")));
}

TEST_F(LocalUser, user_reaches_nothing_of_roots_daemons) {
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

/// Runs `app` as `uid` under fs-gen with the map `work`/map, in a private /tmp in which the
/// attacker ran `before`. The output ends with the listings of the directories in that /tmp.
RunResult guided(unsigned uid, const std::string& before, const std::string& work,
                 const std::string& app, const std::string& environment) {
  const auto own = "/tmp/heddle-" + std::to_string(uid);
  // The stage may be below /tmp too.
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

// Sockets are in /run/heddle, XDG_RUNTIME_DIR or /tmp/heddle-UID; others can create the last.
TEST_F(LocalUser, user_cannot_prepare_anothers_socket_directory) {
  const auto app = program_in(directory("open", 0, 0755), "open");
  make_map({app});
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

// The attacker's directory is not sticky, so protected_symlinks (proc(5)) does not apply.
TEST_F(LocalUser, user_cannot_redirect_roots_log) {
  const auto shadow = write_text_file(dir_ / "shadow", "root:x\n", 0600);
  const auto place = directory("place", kAttacker, 0755);
  ASSERT_EQ(attack("ln -s \"$1\" " + place + "/log", shadow).status, 0);
  const auto app = program_in(directory("open", 0, 0755), "open");
  make_map({app});
  fs::create_directories(dir_ / "m");
  const auto log_there = [&] {
    return run({staged_program("fs-mount"), "--log", place + "/log", dir_ / "map", dir_ / "m"},
               options_);
  };
  const auto refused = log_there();
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.err, HasSubstr(place + "/log"));
  EXPECT_EQ(value_or_throw(read_file(shadow)), "root:x\n");
  ASSERT_EQ(attack("rm " + place + "/log; mkfifo " + place + "/log").status, 0);
  options_.deadline = 20s;
  const auto fifo = log_there();
  EXPECT_FALSE(fifo.timed_out);
  EXPECT_NE(fifo.status, 0);
}

TEST_F(LocalUser, user_cannot_make_root_remove_others_files) {
  const auto victim = directory("victim", 0, 0755);
  write_text_file(victim + "/counters", "kept");
  write_text_file(victim + "/m/file", "kept");
  const auto tmp = directory("odd", kAttacker, 0777);  // not sticky: the attacker can rename in it
  auto options = options_;
  options.env.back() = "TMPDIR=" + tmp;
  // The guided program runs the attack, so there is no race.
  const auto swap =
      to_shell(as(kAttacker, {"sh", "-c",
                              "cd " + tmp + " && for d in hd-*; do mv $d old.$d && ln -s " +
                                  victim + " $d; done"}));
  for (const char* via : {"direct", "private"}) {
    (void)run(
        {staged_program("fs-gen"), "-q", "--no-share", "--via", via, "--", "/bin/sh", "-c", swap},
        options);
    EXPECT_EQ(value_or_throw(read_file(victim + "/counters")), "kept") << via;
    EXPECT_EQ(value_or_throw(read_file(victim + "/m/file")), "kept") << via;
    for (const auto& entry : fs::directory_iterator(tmp)) (void)run({"rm", "-rf", entry.path()});
  }
}

/// Names, owners, modes and contents of what is in `directory`.
std::string listing(const std::string& directory) {
  return run({"sh", "-c",
              "cd " + directory +
                  " && find . -printf '%p %y %U %m\\n' | sort && find . -type f | sort | xargs -r "
                  "sha256sum"})
      .out;
}

// Docker's config.json in /root/.docker names programs that are run.
TEST_F(LocalUser, user_cannot_make_root_edit_a_config_that_a_link_leads_to) {
  const auto hook = staged_program("fs-hook");
  if (hook.empty()) HEDDLE_SKIP("fs-hook is not installed in $HEDDLE_STAGE");
  const auto victim = directory("victim", 0, 0755);
  write_text_file(victim + "/config.json", "{}");
  const auto other = directory("other", kVictim, 0755);
  ASSERT_EQ(run(as(kVictim, {"sh", "-c", "echo {} >" + other + "/config.json"})).status, 0);
  const auto place = directory("place", kAttacker, 0755);
  const auto edit = [&](const std::string& bundle) {
    return run({hook, "bundle", "--cache", dir_ / "cache", bundle});
  };
  ASSERT_EQ(attack("cd $1 && mkdir own linked && echo {} >own/config.json && ln -s " + victim +
                       " dir && ln -s " + other + " dir2 && ln -s " + victim +
                       "/config.json linked/config.json",
                   place)
                .status,
            0);
  // Root's directory, but another user can exchange it.
  fs::create_directories(place + "/roots");
  write_text_file(place + "/roots/config.json", "{}");
  // `chown USER` leaves the group root, whose files that user may not read.
  const auto group = directory("group", kAttacker, 0775, 0);
  const auto secret = write_text_file(dir_ / "secret.json", "{\"secret\":1}", 0640);
  ASSERT_EQ(attack("ln -s " + secret + " $1/config.json", group).status, 0);
  const auto before = std::make_pair(listing(victim), listing(other));
  for (const auto& bundle :
       {place + "/dir", place + "/dir2", place + "/linked", place + "/roots", group})
    EXPECT_EQ(edit(bundle).status, 3) << bundle;
  EXPECT_EQ(value_or_throw(read_file(secret)), "{\"secret\":1}");
  EXPECT_EQ(std::make_pair(listing(victim), listing(other)), before);
  for (const auto& bundle : {place + "/own", other, victim}) {
    const auto ran = edit(bundle);
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_THAT(value_or_throw(read_file(bundle + "/config.json")), HasSubstr("createRuntime"));
    struct stat directory_is {
    }, file_is{};
    ASSERT_EQ(::stat(bundle.c_str(), &directory_is), 0);
    ASSERT_EQ(::stat((bundle + "/config.json").c_str(), &file_is), 0);
    EXPECT_EQ(file_is.st_uid, directory_is.st_uid);
  }
}

TEST_F(LocalUser, user_cannot_make_root_edit_a_config_by_exchanging_directories) {
  const auto hook = staged_program("fs-hook");
  if (hook.empty()) HEDDLE_SKIP("fs-hook is not installed in $HEDDLE_STAGE");
  const auto empty = directory("empty", 0, 0755);
  const auto full = directory("full", 0, 0755);
  write_text_file(full + "/config.json", "{}");
  const auto before = std::make_pair(listing(empty), listing(full));
  for (const auto& victim : {empty, full}) {
    const auto place = directory("place-" + victim.substr(victim.rfind('/') + 1), kAttacker, 0755);
    ASSERT_EQ(
        attack("cd $1 && mkdir bundle && echo {} >bundle/config.json && ln -s " + victim + " other",
               place)
            .status,
        0);
    const auto swap =
        build_program({.output = dir_ / "swap",
                       .source = "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <stdio.h>\n"
                                 "int main(void){for(;;)renameat2(AT_FDCWD,\"bundle\",AT_FDCWD,"
                                 "\"other\",RENAME_EXCHANGE);}"});
    Child swapper = value_or_throw(spawn(
        "/bin/sh", {"sh", "-c", "cd " + place + " && exec " + to_shell(as(kAttacker, {swap}))}));
    unsigned edited = 0, refused = 0;
    for (int i = 0; i < 100; ++i) {
      const auto ran = run({hook, "bundle", "--cache", dir_ / "cache", place + "/bundle"});
      ran.status == 0 ? ++edited : ++refused;
    }
    ::kill(swapper.pid(), SIGKILL);
    (void)swapper.wait();
    EXPECT_GT(edited, 0U);
    EXPECT_GT(refused, 0U);
    EXPECT_EQ(
        run({"sh", "-c", "ls -A " + place + "/bundle/ " + place + "/other/ | grep -c '\\.new-'"})
            .out,
        "0\n");
  }
  EXPECT_EQ(std::make_pair(listing(empty), listing(full)), before);
}

// Root writes a report, or moves an archive, below a directory of another user.
TEST_F(LocalUser, user_cannot_make_root_write_or_remove_where_a_link_leads_to) {
  if (staged_program("fs-job").empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
  const auto app = program_in(directory("open", 0, 0755), "open");
  make_map({app});
  fs::create_directories(dir_ / "m");
  options_.env.push_back("HEDDLE_JOB_SPOOL=" + directory("spool", 0, 0700));
  const auto job = staged_program("fs-job");
  const auto archives = directory("archives", 0, 0755);
  run_checked({job, "run", "-q", "--jobid", "a", "--to", archives, "--", "true"}, options_);
  const auto archive = fs::directory_iterator(archives)->path().string();
  const auto place = directory("place", kAttacker, 0755);
  const auto victim = directory("victim", 0, 0755);
  ASSERT_EQ(attack("cd $1 && mkdir own && ln -s " + victim + " link && ln -s " + victim +
                       "/run.txt file && ln -s " + victim + "/none dangling",
                   place)
                .status,
            0);
  const auto fill = [&](const std::string& there) {
    write_text_file(there + "/run.txt", "kept\n");
    write_text_file(there + "/bad.tar.gz", "no archive\n");
    fs::create_directories(there + "/bad");
    write_text_file(there + "/bad/file", "kept\n");
    fs::copy_file(archive, there + "/a.tar.gz", fs::copy_options::overwrite_existing);
  };
  fill(victim);
  const auto bad = write_text_file(directory("bad", 0, 0755) + "/broken.tar.gz", "no archive\n");
  const auto before = listing(victim);
  // At `at`, a directory.
  const std::vector<std::function<Strings(const std::string&)>> commands = {
      [&](const std::string& at) {
        return Strings{staged_program("fs-record"), "--out", at + "/new.txt", "/bin/true"};
      },
      [&](const std::string& at) {
        return Strings{staged_program("fs-record"), "--out", at + "/run.txt", "/bin/true"};
      },
      [&](const std::string& at) {
        return Strings{staged_program("fs-resolve"), "build", "-o", at + "/app.map", app};
      },
      [&](const std::string& at) {
        return Strings{staged_program("fs-gen"), "--out", at + "/gen.map", app};
      },
      [&](const std::string& at) {
        return Strings{staged_program("fs-gen"), "--json", at + "/report.json", app};
      },
      [&](const std::string& at) {
        return Strings{staged_program("compat-gen"), "-o", at + "/compat.json", app};
      },
      [&](const std::string& at) {
        return Strings{job, "run", "--jobid", "b", "--to", at, "--", "true"};
      },
      [&](const std::string& at) {
        return Strings{job, "submit", "--db", dir_ / "db", "-r", at + "/a.tar.gz"};
      },
      [&](const std::string& at) {
        return Strings{job, "submit", "--db", dir_ / "db", "-m", dir_ / "failed", at + "/bad"};
      },
      [&](const std::string& at) {
        return Strings{job, "submit", "--db", dir_ / "db", "-m", at + "/failed", bad};
      },
      [&](const std::string& at) {
        return Strings{job, "annotate", at + "/a.tar.gz", "k=v"};
      },
      [&](const std::string& at) {
        return Strings{staged_program("fs-mount"), "--log", at + "/log", dir_ / "map", dir_ / "m"};
      },
  };
  for (const auto& command : commands) {
    const auto own = place + "/own";
    fill(own);
    const auto was = listing(own);
    const auto led = run(command(place + "/link"), options_);
    const auto names = to_shell(command("AT"));
    EXPECT_EQ(listing(victim), before) << names << led.err;
    EXPECT_THAT(led.err,
                HasSubstr("root follows no link that another user can have put there: link"))
        << names;
    const auto plain = run(command(own), options_);
    EXPECT_NE(listing(own), was) << names << plain.err;
  }
  for (const char* name : {"/file", "/dangling"}) {
    EXPECT_NE(
        run({staged_program("fs-record"), "--out", place + name, "/bin/true"}, options_).status, 0);
    EXPECT_EQ(listing(victim), before) << name;
  }
  // A journal beside a database names files that SQLite removes.
  for (const char* name : {"/own/new.db", "/link/new.db", "/file", "/dangling"}) {
    const auto ran = run({job, "submit", "--db", place + name, archive}, options_);
    EXPECT_THAT(ran.err, HasSubstr("root does not use this database")) << name;
    EXPECT_EQ(listing(victim), before) << name;
  }
  EXPECT_FALSE(fs::exists(place + "/own/new.db"));
  const auto slim = run({staged_program("fs-record"), "--out", dir_ / "run.txt", "--slim",
                         place + "/own/slim", "/bin/true"},
                        options_);
  EXPECT_THAT(slim.err, HasSubstr("cannot be trusted"));
  EXPECT_FALSE(fs::exists(place + "/own/slim"));
}

// In a directory with unchanged times the names of the map that is replaced are taken.
TEST_F(LocalUser, user_cannot_choose_the_names_of_roots_tree) {
  const auto tree = directory("tree", 0, 0755);
  for (const char* name : {"a.py", "security.py"}) write_text_file(tree + "/" + name, "x");
  const auto status = file_stamp([&] {
    struct stat st {};
    EXPECT_EQ(::stat(tree.c_str(), &st), 0);
    return st;
  }());
  TreeIndexWriter::Entry root{.mode = S_IFDIR | 0755, .size = status.size};
  root.mtime_ns = status.mtime_ns;
  root.ctime_ns = status.ctime_ns;
  root.children.push_back({.name = "a.py", .mode = S_IFREG | 0644, .size = 1});
  MapContent forged;
  forged.trees.push_back({tree, value_or_throw(TreeIndexWriter::encode(std::move(root)))});
  const auto map = directory("shared", 0, 01777) + "/app.map";
  for (const unsigned owner : {kAttacker, 0U}) {
    value_or_throw(write_map(forged, map));
    ASSERT_EQ(::chown(map.c_str(), owner, owner), 0);
    run_checked({staged_program("fs-resolve"), "build", "-o", map, "--tree", tree}, options_);
    const auto made = value_or_throw(value_or_throw(MapReader::open(map)).read_all());
    const auto index = value_or_throw(TreeIndex::of(made.trees[0].index));
    // That root's own map is trusted shows that the forged one would have been.
    EXPECT_EQ(index.find_path("security.py").has_value(), owner != 0);
  }
}

TEST_F(LocalUser, user_cannot_write_into_anothers_cache) {
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

// Its files choose what programs are guided to. sudo keeps HOME in some set-ups.
TEST_F(LocalUser, cache_in_a_directory_that_another_user_chose_is_not_used) {
  const auto app = program_in(directory("open", 0, 0755), "open");
  const auto home = directory("home", kAttacker, 0755);
  auto options = options_;
  options.env.front() = "XDG_CACHE_HOME";
  options.env.push_back("HOME=" + home);
  const Strings resolve = {staged_program("fs-resolve"), "build", "-o", dir_ / "map", app};
  for (const auto& words : {Strings{staged_program("fs-gen"), "-q", app}, resolve})
    EXPECT_EQ(run(words, options).status, 0);
  EXPECT_TRUE(fs::is_empty(home));
  // A user's own directory in one that others can rename it in.
  const auto shared = directory("shared", 0, 0777);
  options.env.front() = "XDG_CACHE_HOME=" + shared;
  const auto ours = run(as(kVictim, {staged_program("fs-gen"), "-q", app}), options);
  EXPECT_EQ(ours.out, "open\n") << ours.err;
  EXPECT_TRUE(fs::is_empty(shared));
}

// The directory of an older job of root's, by its name; its content is exchanged all the time.
TEST_F(LocalUser, user_cannot_make_fs_ship_remove_what_a_link_leads_to) {
  if (staged_program("fs-ship").empty()) HEDDLE_SKIP("fs-ship is not installed in $HEDDLE_STAGE");
  constexpr int kFiles = 300;
  const auto victim = directory("victim", 0, 0755);
  for (int i = 0; i < kFiles; ++i) write_text_file(victim + "/f" + std::to_string(i), "kept");
  const auto tmp = directory("tmp", 0, 01777);
  const auto old = tmp + "/heddle-job-0-7";
  auto attacker = value_or_throw(fork_child({}, [&]() -> int {
    if (::setresuid(kAttacker, kAttacker, kAttacker) != 0) return 1;
    for (;;)
      (void)::renameat2(AT_FDCWD, (old + "/d").c_str(), AT_FDCWD, (old + "/l").c_str(),
                        RENAME_EXCHANGE);
  }));
  for (int round = 0; round < 30; ++round) {
    if (!fs::exists(old)) {
      const auto made = directory("made", 0, 0755);
      directory("made/d", 0, 0755);
      for (int i = 0; i < kFiles; ++i) write_text_file(made + "/d/f" + std::to_string(i), "");
      write_text_file(made + "/slurm", "");
      fs::create_directory_symlink(victim, made + "/l");
      run_checked({"chown", "-hR", std::to_string(kAttacker), made});
      fs::rename(made, old);
    }
    (void)run({staged_program("fs-ship"), "--receive", "--id", std::string(64, 'a'), "--size", "1",
               "--to", tmp, "--job", "1000", "--live", "1000", "--part", "p", "--", "/none"});
  }
  attacker = Child(-1);
  EXPECT_EQ(std::distance(fs::directory_iterator(victim), fs::directory_iterator()), kFiles);
}

// Beside a link to root's interpreter: Python looks there for pyvenv.cfg, which names its library.
TEST_F(LocalUser, packing_a_users_map_runs_no_code_of_the_user) {
  const std::string python = "/usr/bin/python3.11";
  if (!fs::exists(python)) HEDDLE_SKIP("no python3.11");
  const auto home = directory("home", kAttacker, 0755);
  const auto tree = directory("home/tree", kAttacker, 0755);
  directory("home/bin", kAttacker, 0755);
  directory("home/evil/lib/python3.11/encodings", kAttacker, 0755);
  write_text_file(home + "/evil/lib/python3.11/encodings/__init__.py",
                  "open('" + home + "/ran', 'w')\n");
  write_text_file(home + "/evil/lib/python3.11/os.py", "");
  write_text_file(tree + "/a.py", "x = 1\n");
  fs::copy_file(python, home + "/bin/python3.11");
  run_checked({"chown", "-R", std::to_string(kAttacker), home});
  run_checked(as(kAttacker, {staged_program("fs-resolve"), "build", "-o", home + "/map", "--tree",
                             tree, home + "/bin/python3.11"}),
              {.env = {"XDG_CACHE_HOME=" + home + "/cache", "HOME=" + home}});
  const auto pack = [&] {
    const auto packed = run({staged_program("fs-resolve"), "pack", home + "/map", "--trace",
                             write_text_file(dir_ / "trace",
                                             "#heddle-trace\t1\n#events\tns\tpid\ttid\top\tresult"
                                             "\tpath\tdetails\n1\t7\t7\topen\tOK\t" +
                                                 tree + "/a.py\n"),
                             "-o", dir_ / "bundle"});
    EXPECT_FALSE(fs::exists(home + "/ran")) << packed.err;
    fs::remove(home + "/ran");
    return packed;
  };
  write_text_file(home + "/bin/pyvenv.cfg", "home = " + home + "/evil/bin\n");
  EXPECT_THAT(pack().err, HasSubstr("compiles no Python files"));
  // root's own, by the user's link: it is run by its own path.
  fs::remove(home + "/bin/python3.11");
  fs::create_symlink(python, home + "/bin/python3.11");
  pack();
}

TEST_F(LocalUser, user_cannot_make_roots_epilog_unmount_what_a_link_leads_to) {
  const auto epilog = std::string(std::getenv("HEDDLE_STAGE")) + "/share/heddle/epilog-heddle.sh";
  if (!fs::exists(epilog)) HEDDLE_SKIP("the epilog is not installed in $HEDDLE_STAGE");
  const auto job = "test-" + std::to_string(::getpid());
  const auto place = "/tmp/heddle-m-" + job;
  const auto id = std::to_string(kAttacker);
  const auto roots = mount({program_in(dir_ / "p", "word")});
  const auto of_job = [&](const std::string& uid) {
    return RunOptions{.env = {"SLURM_JOB_ID=" + job, "SLURM_JOB_UID=" + uid, "SLURM_JOB_GID=" + uid,
                              "HEDDLE_TO=" + dir_.path()}};
  };
  // Others may make the name that a job of root's would use, too.
  for (const auto& uid : {id, std::string("0")}) {
    run_checked(as(kAttacker, {"ln", "-sfn", roots, place}));
    EXPECT_EQ(run({"sh", epilog}, of_job(uid)).status, 0);
    EXPECT_EQ(mounts_with(" " + roots + " "), 1U) << uid;
  }
  fs::remove(place);
  // Positive control: a user's own mount goes. fusermount3 wants to know the user's name.
  const std::string nobody = "65534";
  const auto own =
      run({"unshare", "-m", "sh", "-ec",
           "mknod -m 666 $0/fuse c 10 229; mount --bind $0/fuse /dev/fuse\n"
           "user=\"setpriv --reuid=$3 --regid=$3 --clear-groups\"\n"
           "$user mkdir $2; $user $4 $0/map $2; grep -c \" $2 \" /proc/self/mountinfo\n"
           "sh $1; grep -c \" $2 \" /proc/self/mountinfo || ls -d $2 2>&1",
           dir_.path(), epilog, place, nobody, staged_program("fs-mount")},
          of_job(nobody));
  fs::remove(place);
  EXPECT_THAT(own.out, StartsWith("1\n0\n")) << own.err;
  EXPECT_THAT(own.out, HasSubstr("No such file"));
}

}  // namespace
}  // namespace heddle::test
