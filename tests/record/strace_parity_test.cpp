// SPDX-License-Identifier: MIT
// What the trace holds against what strace sees of the very same run: fs-record runs `strace -f
// APP`, and of the trace only the threads that strace traced are looked at. The opens, the misses,
// each reduced to its first missing component, because that is all a file system is asked for, and
// the other errnos, but for those that the VFS gives by itself (docs/recorder.md).
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <set>

#include "base/fd.hpp"
#include "tests/record/recorded.hpp"
#include "tests/record/strace_log.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

using trace::Op;
using Paths = std::vector<std::string>;
/// How often each path: of two large lists only the differences are worth showing.
using Counts = std::map<std::string, int>;

/// Errors that the kernel gives without asking the file system; docs/recorder.md lists them.
bool is_given_by_vfs(const FileCall& call) {
  static const std::set<std::string> kErrors = {"ELOOP",   "ENAMETOOLONG", "ENOTDIR", "EISDIR",
                                                "EXDEV",   "EBADF",        "ETXTBSY", "EEXIST",
                                                "ENOEXEC", "EROFS",        "EMFILE"};
  return kErrors.contains(call.error) || call.name.find("xattr") != std::string::npos ||
         (call.error == "EINVAL" && call.name.starts_with("readlink"));
}

bool is_native(const std::string& path) {
  for (const char* directory : {"/proc", "/sys", "/dev", "/run", "/var/run"})
    if (path == directory || path.starts_with(std::string(directory) + "/")) return true;
  return false;
}

bool follows_last(const FileCall& call) {
  static const std::set<std::string> kNot = {"lstat",     "readlink",   "readlinkat", "unlink",
                                             "unlinkat",  "rmdir",      "rename",     "renameat",
                                             "lchown",    "renameat2",  "link",       "linkat",
                                             "lgetxattr", "llistxattr", "lsetxattr"};
  if (kNot.contains(call.name) || call.has_flag("O_NOFOLLOW")) return false;
  for (const auto& arg : call.args)
    if (arg.find("AT_SYMLINK_NOFOLLOW") != std::string::npos) return false;
  return true;
}

struct Accesses {
  Counts opens, misses, errors;
};

/// What a call that makes a name asks first: whether it is there.
void note_new_names(const FileCall& call, const ReplayedTree& tree, Accesses& out) {
  const auto& name = call.name;
  const bool opens = name == "creat" || call.has_flag("O_CREAT");
  const bool makes =
      name.starts_with("mkdir") || name.starts_with("mknod") || name.starts_with("symlink");
  const bool moves = name.starts_with("rename") || name.starts_with("link");
  if (!opens && !makes && !moves) return;
  const auto missing = tree.first_missing(call.paths[moves ? 1 : 0], opens);
  if (!missing.empty() && !is_native(missing)) ++out.misses[missing];
}

/// Whether the kernel asks the file system to open it: FIFOs, sockets and devices it opens itself,
/// and O_PATH is no open.
bool is_asked_for(const FileCall& call, const ReplayedTree& tree) {
  struct stat st {};
  if (call.has_flag("O_PATH") || tree.is_special(call.opened)) return false;
  return ::lstat(call.opened.c_str(), &st) != 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode);
}

Accesses straced(const StraceLog& log, ReplayedTree& tree) {
  Accesses out;
  for (const auto& call : log.calls) {
    const std::string& path = call.paths[0];
    if (call.error == "ENOENT") {
      for (const auto& named : call.paths) {
        auto missing = tree.first_missing(named, follows_last(call));
        if (missing.empty() && &named != &call.paths.back()) continue;
        // All there: another process made it in between.
        if (missing.empty()) missing = tree.place_of(named);
        if (!is_native(missing)) ++out.misses[missing];
        break;
      }
    } else if (!call.error.empty()) {
      if (!is_given_by_vfs(call) && !is_native(path))
        ++out.errors[call.error + " " + tree.place_of(path)];
    } else {
      note_new_names(call, tree, out);
      const bool opens = call.name.starts_with("open") || call.name == "creat";
      std::string opened = call.opened;
      if (const auto gone = opened.find(" (deleted)"); gone != std::string::npos)
        opened.resize(gone);
      if (opens && !is_native(opened) && is_asked_for(call, tree))
        ++out.opens[call.has_flag("O_TMPFILE") ? tree.place_of(path) : opened];
    }
    tree.apply(call);
  }
  return out;
}

Accesses recorded(const SeenTrace& seen, const std::set<int>& tids) {
  Accesses out;
  for (const auto& e : seen.events) {
    if (!tids.contains(e.tid)) continue;
    if (e.error == 0 && (e.op == Op::open || e.op == Op::opendir || e.op == Op::create))
      ++out.opens[e.place()];
    else if (e.error == ENOENT)
      ++out.misses[e.place()];
    else if (e.error != 0)
      ++out.errors[std::string(::strerrorname_np(e.error)) + " " + e.place()];
  }
  return out;
}

/// The paths whose counts differ, as "PATH STRACE:RECORDED".
Paths differences(const Counts& strace, const Counts& trace) {
  std::map<std::string, std::pair<int, int>> both;
  for (const auto& [path, count] : strace) both[path].first = count;
  for (const auto& [path, count] : trace) both[path].second = count;
  Paths out;
  for (const auto& [path, counts] : both)
    if (counts.first != counts.second)
      out.push_back(path + " " + std::to_string(counts.first) + ":" +
                    std::to_string(counts.second));
  return out;
}

int sum(const Counts& counts) {
  int total = 0;
  for (const auto& [path, count] : counts) total += count;
  return total;
}

class StraceParity : public testing::Test {
 protected:
  void SetUp() override {
    if (staged_program("fs-record").empty()) HEDDLE_SKIP("fs-record is not installed");
    if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
    work_ = dir_ / "work";
    run_checked({"mkdir", work_, work_ + "/tmp"});
  }

  /// Runs `argv` in work_; then the two must have seen the same, `opens` opens or more.
  void expect_parity(const Paths& argv, int opens = 2, std::vector<std::string> env = {}) {
    RunOptions options;
    options.cwd = work_;
    options.deadline = std::chrono::minutes(4);
    env.insert(env.end(), {"PYTHONDONTWRITEBYTECODE=1", "TMPDIR=" + work_ + "/tmp"});
    options.env = std::move(env);
    ReplayedTree tree(work_);
    // seccomp: else each system call stops, also those that are not traced.
    Paths traced = words_of(
        "strace -f --seccomp-bpf -qq -y -s 8192 -e trace=%file,%process,fchdir -e signal=none -o");
    traced.push_back(dir_ / "strace.log");
    traced.insert(traced.end(), argv.begin(), argv.end());
    result_ = record(dir_ / "run.txt", traced, options);
    ASSERT_EQ(result_.status, 0) << result_.out << result_.err;
    const auto log = parse_file_calls(value_or_throw(read_file(dir_ / "strace.log")), work_);
    const auto expected = straced(log, tree);
    const auto seen = read_seen(dir_ / "run.txt");
    EXPECT_TRUE(seen.complete());
    const auto got = recorded(seen, log.tids);
    EXPECT_EQ(differences(expected.opens, got.opens), Paths{});
    EXPECT_EQ(differences(expected.misses, got.misses), Paths{});
    EXPECT_EQ(differences(expected.errors, got.errors), Paths{});
    EXPECT_GE(sum(expected.opens), opens);
    RecordProperty("opens", sum(expected.opens));
    RecordProperty("misses", sum(expected.misses));
    RecordProperty("errors", sum(expected.errors));
  }

  TestDir dir_;
  std::string work_;
  RunResult result_;
};

TEST_F(StraceParity, xz) { expect_parity({"xz", "--help"}); }

TEST_F(StraceParity, a_directory_that_is_not_there) {
  expect_parity({"sh", "-c", "ls -l /usr /no/such/place/at/all; true"});
}

TEST_F(StraceParity, python_and_numpy) {
  expect_parity({"/usr/bin/python3", "-c", "import numpy"}, 150);
}

TEST_F(StraceParity, a_shell_and_its_children) {
  expect_parity(
      {"sh", "-c",
       "cat /etc/passwd /no/file >/dev/null 2>&1; /usr/bin/env true; grep -c root /etc/group"});
}

bool is_installed(const std::string& program) {
  return run({"sh", "-c", "command -v " + program}).status == 0;
}

/// hwloc's search for X displays is by connect(2), which strace does not count among file calls.
const std::vector<std::string> kOpenMpi = {
    "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    "OMPI_MCA_rmaps_base_oversubscribe=1", "HWLOC_COMPONENTS=-gl"};

TEST_F(StraceParity, lammps) {
  if (!is_installed("lmp")) HEDDLE_SKIP("lmp is not installed");
  write_text_file(
      work_ + "/in.melt",
      "units lj\natom_style atomic\nlattice fcc 0.8442\nregion box block 0 4 0 4 0 4\n"
      "create_box 1 box\ncreate_atoms 1 box\nmass 1 1.0\nvelocity all create 3.0 87287\n"
      "pair_style lj/cut 2.5\npair_coeff 1 1 1.0 1.0 2.5\nfix 1 all nve\n"
      "dump 1 all atom 10 dump.melt\nrun 20\n");
  expect_parity({"lmp", "-in", "in.melt"}, 20, kOpenMpi);
  EXPECT_NE(result_.out.find("Loop time"), std::string::npos) << result_.out;
}

TEST_F(StraceParity, two_ranks) {
  if (!is_installed("mpirun.openmpi")) HEDDLE_SKIP("Open MPI is not installed");
  expect_parity({"mpirun.openmpi", "-n", "2", "uname"}, 100, kOpenMpi);
  EXPECT_EQ(result_.out, "Linux\nLinux\n");
}

TEST_F(StraceParity, a_project_is_configured_and_built) {
  if (!is_installed("meson")) HEDDLE_SKIP("meson is not installed");
  run_checked({"mkdir", work_ + "/p"});
  write_text_file(work_ + "/p/meson.build",
                  "project('p', 'c')\ncc = meson.get_compiler('c')\nconf = configuration_data()\n"
                  "conf.set('HAVE_ZLIB', cc.has_header('zlib.h'))\n"
                  "conf.set('HAVE_PIPE2', cc.has_function('pipe2'))\n"
                  "configure_file(output: 'config.h', configuration: conf)\n"
                  "lib = shared_library('f', 'f.c')\nexecutable('app', 'm.c', link_with: lib)\n");
  write_text_file(work_ + "/p/f.c", "#include <stdio.h>\nint f(void){return 3;}\n");
  write_text_file(work_ + "/p/m.c",
                  "#include \"config.h\"\n#include <stdio.h>\nint f(void);\n"
                  "int main(void){printf(\"%d\\n\",f());return 0;}\n");
  // Without ccache, whose store lies outside the replayed tree.
  expect_parity({"sh", "-c", "meson setup b p >log && ninja -C b >>log && ./b/app"}, 1000,
                {"CC=gcc"});
  EXPECT_EQ(result_.out, "3\n");
}

TEST_F(StraceParity, a_repository_is_cloned) {
  if (!is_installed("git")) HEDDLE_SKIP("git is not installed");
  run_checked({"sh", "-c",
               "cd \"$0\" && git init -q p && cd p && mkdir d && for i in $(seq 200); do echo $i "
               "> d/f$i; done && git add -A && git -c user.name=a -c user.email=b commit -q -m c",
               work_});
  expect_parity({"sh", "-c",
                 "git clone -q --no-local p q && git clone -q p r && git -C q fsck --no-progress "
                 "&& git -C q status --porcelain && diff -r p/d r/d"},
                1000);
}

TEST_F(StraceParity, a_database_with_a_write_ahead_log) {
  if (!is_installed("sqlite3")) HEDDLE_SKIP("sqlite3 is not installed");
  expect_parity({"sh", "-c",
                 "sqlite3 db 'pragma journal_mode=wal; create table t(x); insert into t select "
                 "value from generate_series(1,2000); pragma integrity_check' && sqlite3 db "
                 "'delete from t where x%2; vacuum; pragma integrity_check; select count(*) from "
                 "t'"},
                8);
  EXPECT_EQ(result_.out, "wal\nok\nok\n1000\n");
}

TEST_F(StraceParity, fifty_thousand_files_are_packed) {
  const std::string script =
      "import os,sys\nfor d in range(50):\n os.mkdir(f'{sys.argv[1]}/many/{d}')\n for f in "
      "range(1000):\n  open(f'{sys.argv[1]}/many/{d}/file {f}','w').write(str(f))\n";
  run_checked({"mkdir", work_ + "/many"});
  run_checked({"/usr/bin/python3", "-c", script, work_});
  run_checked({"tar", "--sort=name", "-cf", dir_ / "native.tar", "-C", work_, "many"});
  expect_parity({"tar", "--sort=name", "-cf", "recorded.tar", "many"}, 50'000);
  run_checked({"cmp", dir_ / "native.tar", work_ + "/recorded.tar"});
}

}  // namespace
}  // namespace heddle::test
