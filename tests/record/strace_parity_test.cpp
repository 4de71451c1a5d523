// SPDX-License-Identifier: MIT
// Compares a trace with strace's log of the same run: fs-record runs `strace -f APP`, and only the
// threads that strace traced count. Compared are opens, misses (the first missing component of each
// path: a file system gets no other lookup) and other errors, except those that the VFS returns
// itself (docs/recorder.md).

#include <memory>
#include <set>

#include "tests/record/recorded.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {
namespace {

/// One system call of a `strace -f -y -e trace=%file,%process,fchdir -o` log.
struct FileCall {
  int tid = 0;
  std::string name;
  std::vector<std::string> args;   ///< as strace writes them
  std::vector<std::string> paths;  ///< absolute, not resolved, in the order of the arguments
  std::string link_target;         ///< of symlink
  long result = -1;
  std::string error;   ///< ENOENT; empty on success
  std::string opened;  ///< the file of the returned descriptor, as the kernel resolved it

  bool has_flag(const std::string& flag) const {
    return std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
      return arg.starts_with("O_") && ("|" + arg + "|").find("|" + flag + "|") != std::string::npos;
    });
  }
};

/// The calls that name files, in the log's order, and the threads that made them.
struct StraceLog {
  std::vector<FileCall> calls;
  std::set<int> tids;
};

/// The file tree at each call of a log: below `work` its state before the run (the constructor
/// reads it) with the changes of the calls, elsewhere the present state.
class ReplayedTree {
 public:
  explicit ReplayedTree(const std::string& work) : work_(work) {
    known_[work] = {true, {}};
    for (const auto& entry : fs::recursive_directory_iterator(work))
      known_[entry.path()] = {
          true, entry.is_symlink() ? fs::read_symlink(entry.path()).string() : std::string()};
  }

  /// The first missing component of `path`, in its resolved directory. Empty when none is missing,
  /// or when the path uses a file as a directory.
  std::string first_missing(const std::string& path, bool follow_last) const {
    const Walk done = walk(path, follow_last);
    return done.missing ? done.end : std::string();
  }
  /// `path` with its links resolved, the last component as it is.
  std::string place_of(const std::string& path) const { return walk(path, false).end; }
  /// Whether a call made a FIFO, a socket or a device there.
  bool is_special(const std::string& path) const { return special_.contains(path); }
  /// Applies the change of a successful call.
  void apply(const FileCall& call) {
    if (!call.error.empty()) return;
    const auto& name = call.name;
    if (name.starts_with("mknod")) special_.insert(place_of(call.paths[0]));
    if (name == "creat" || call.has_flag("O_CREAT"))
      known_[walk(call.paths[0], true).end] = {true, {}};
    else if (name.starts_with("mkdir") || name.starts_with("mknod"))
      known_[place_of(call.paths[0])] = {true, {}};
    else if (name.starts_with("symlink"))
      known_[place_of(call.paths[0])] = {true, call.link_target};
    else if (name.starts_with("link"))
      known_[place_of(call.paths[1])] = {true, look(place_of(call.paths[0])).link};
    else if (name.starts_with("unlink") || name == "rmdir")
      known_[place_of(call.paths[0])] = {};
    else if (name.starts_with("rename"))
      move(place_of(call.paths[0]), place_of(call.paths[1]));
  }

 private:
  struct Entry {
    bool there = false;
    std::string link;  ///< a symbolic link's target
  };
  struct Walk {
    std::string end;       ///< resolved as far as it went
    bool missing = false;  ///< `end` is not there
  };
  Entry look(const std::string& path) const {
    if (const auto known = known_.find(path); known != known_.end()) return known->second;
    if (path.starts_with(work_ + "/")) return {};
    std::error_code error;
    const auto status = fs::symlink_status(path, error);
    if (!fs::exists(status)) return {};
    return {true, fs::is_symlink(status) ? fs::read_symlink(path, error).string() : std::string()};
  }
  Walk walk(std::string rest, bool follow_last) const {
    std::string directory;  // "" is the root
    int links = 0;
    while (!rest.empty()) {
      const auto begin = rest.find_first_not_of('/');
      if (begin == std::string::npos) break;
      const auto end = std::min(rest.find('/', begin), rest.size());
      const std::string part = rest.substr(begin, end - begin);
      rest.erase(0, end);
      const bool last = rest.find_first_not_of('/') == std::string::npos;
      if (part == ".") continue;
      if (part == "..") {
        directory.resize(directory.empty() ? 0 : directory.rfind('/'));
        continue;
      }
      const std::string next = directory + "/" + part;
      const Entry entry = look(next);
      if (!entry.there) return {next, true};
      if (entry.link.empty() || (last && rest.empty() && !follow_last)) {
        directory = next;
        continue;
      }
      if (++links > 40) return {next, false};
      if (entry.link[0] == '/') directory.clear();
      rest = entry.link + "/" + rest;
      if (last && rest.ends_with('/')) rest.pop_back();
    }
    return {directory.empty() ? "/" : directory, false};
  }
  void move(const std::string& from, const std::string& to) {
    std::map<std::string, Entry> moved;
    for (auto at = known_.lower_bound(from); at != known_.end() && at->first.starts_with(from);) {
      if (at->first.size() > from.size() && at->first[from.size()] != '/') {
        ++at;
        continue;
      }
      moved[to + at->first.substr(from.size())] = at->second;
      at = known_.erase(at);
    }
    if (moved.empty()) moved[to] = look(from);
    known_[from] = {};
    for (auto& [path, entry] : moved) known_[path] = entry;
  }

  std::string work_;
  std::map<std::string, Entry> known_;
  std::set<std::string> special_;
};

/// The arguments that are paths: {index of the directory's descriptor or -1, index of the path}.
using PathArgs = std::vector<std::pair<int, int>>;

const std::map<std::string, PathArgs>& path_args() {
  static const auto kCalls = [] {
    std::map<std::string, PathArgs> calls = {
        {"rename", {{-1, 0}, {-1, 1}}},  {"renameat", {{0, 1}, {2, 3}}},
        {"renameat2", {{0, 1}, {2, 3}}}, {"link", {{-1, 0}, {-1, 1}}},
        {"linkat", {{0, 1}, {2, 3}}},    {"symlink", {{-1, 1}}},
        {"symlinkat", {{1, 2}}},         {"inotify_add_watch", {{-1, 1}}}};
    for (const auto& name : words_of("open creat stat lstat access readlink execve chdir mkdir "
                                     "rmdir unlink mknod chmod chown lchown utime utimes truncate "
                                     "getxattr lgetxattr listxattr llistxattr setxattr lsetxattr "
                                     "statfs"))
      calls[name] = {{-1, 0}};
    for (const auto& name : words_of("openat openat2 newfstatat statx faccessat faccessat2 "
                                     "readlinkat execveat mkdirat unlinkat mknodat fchmodat "
                                     "fchownat utimensat futimesat"))
      calls[name] = {{0, 1}};
    return calls;
  }();
  return kCalls;
}

/// Decodes strace's C string; `at` moves from the opening quote to behind the closing one.
std::string unquote(const std::string& text, std::size_t& at) {
  std::string out;
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] != '\\') {
      out += text[at];
      continue;
    }
    const char c = text[++at];
    if (c >= '0' && c <= '7') {
      int value = 0;
      for (int n = 0; n < 3 && text[at] >= '0' && text[at] <= '7'; ++n, ++at)
        value = value * 8 + (text[at] - '0');
      --at;
      out += static_cast<char>(value);
    } else {
      out += c == 'n'   ? '\n'
             : c == 't' ? '\t'
             : c == 'r' ? '\r'
             : c == 'v' ? '\v'
             : c == 'f' ? '\f'
                        : c;
    }
  }
  ++at;
  return out;
}

/// `a, "b, c", {d, e}) = ...` cut at its commas; `end` is behind the closing parenthesis.
std::vector<std::string> split_args(const std::string& text, std::size_t at, std::size_t& end) {
  std::vector<std::string> out;
  std::size_t begin = at;
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      (void)unquote(text, at);
      continue;
    }
    if (c == '<' && depth == 0) {  // the path of a descriptor
      at = text.find('>', at);
      if (at == std::string::npos) break;
    }
    if (c == '(' || c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if ((c == ',' && depth == 0) || (c == ')' && depth-- == 0)) {
      if (at > begin) out.push_back(text.substr(begin, at - begin));
      if (c == ')') break;
      begin = text.find_first_not_of(' ', at + 1);
    }
    ++at;
  }
  end = std::min(at + 1, text.size());
  return out;
}

/// The path of `3</usr/lib>`.
std::string annotation(const std::string& text) {
  const auto open = text.find('<');
  const auto close = text.rfind('>');
  return open == std::string::npos || close <= open ? std::string()
                                                    : text.substr(open + 1, close - open - 1);
}

using Cwd = std::shared_ptr<std::string>;

class Parser {
 public:
  explicit Parser(std::string cwd) : first_cwd_(std::move(cwd)) {}

  /// Remembers a thread's parent. The log may contain the thread's first call before its birth.
  void note_birth(int tid, const std::string& line) {
    const auto equals = line.rfind(" = ");
    if (equals == std::string::npos) return;
    const int child = std::atoi(line.c_str() + equals + 3);
    if (child > 0) births_[child] = {tid, line.find("CLONE_FS") != std::string::npos};
  }

  void call(int tid, const std::string& text, StraceLog& out) {
    out.tids.insert(tid);
    const auto open = text.find('(');
    const auto known = path_args().find(text.substr(0, open));
    const bool moves = text.starts_with("fchdir(");
    if (open == std::string::npos || (known == path_args().end() && !moves)) return;
    FileCall call;
    call.tid = tid;
    call.name = text.substr(0, open);
    std::size_t end = 0;
    call.args = split_args(text, open + 1, end);
    const auto equals = text.find(" = ", end - 1);
    if (equals == std::string::npos) return;
    const std::string result = text.substr(equals + 3);
    call.result = std::atol(result.c_str());
    if (result.starts_with("-1 ")) call.error = result.substr(3, result.find(' ', 3) - 3);
    if (result.starts_with("?")) return;
    call.opened = call.error.empty() ? annotation(result) : std::string();
    Cwd& cwd = cwd_of(tid);
    if (moves) {
      if (call.error.empty()) *cwd = annotation(call.args.at(0));
      return;
    }
    for (const auto& [dir, path] : known->second) {
      const auto index = static_cast<std::size_t>(path);
      std::size_t at = 0;
      if (index >= call.args.size() || call.args[index][0] != '"') return;
      std::string name = unquote(call.args[index], at);
      if (name.empty()) return;  // AT_EMPTY_PATH
      if (name[0] != '/') {
        std::string directory =
            dir >= 0 ? annotation(call.args[static_cast<std::size_t>(dir)]) : *cwd;
        if (directory.empty()) directory = *cwd;
        name = directory + "/" + name;
      }
      call.paths.push_back(std::move(name));
    }
    if (call.name.starts_with("symlink")) {
      std::size_t at = 0;
      call.link_target = unquote(call.args[0], at);
    }
    if (call.name == "chdir" && call.error.empty()) *cwd = call.paths[0];
    out.calls.push_back(std::move(call));
  }

 private:
  struct Birth {
    int parent;
    bool shares_cwd;
  };

  Cwd& cwd_of(int tid) {
    if (const auto known = cwds_.find(tid); known != cwds_.end()) return known->second;
    const auto born = births_.find(tid);
    Cwd cwd = std::make_shared<std::string>(first_cwd_);
    if (born != births_.end()) {
      const Cwd parents = cwd_of(born->second.parent);
      cwd = born->second.shares_cwd ? parents : std::make_shared<std::string>(*parents);
    }
    return cwds_[tid] = cwd;
  }

  std::string first_cwd_;
  std::map<int, Birth> births_;
  std::map<int, Cwd> cwds_;
};

/// `cwd`: that of the first process.
StraceLog parse_file_calls(const std::string& log, const std::string& cwd) {
  const auto calls = strace_calls(log);
  Parser parser(cwd);
  for (const auto& [tid, text] : calls)
    if (text.starts_with("clone") || text.starts_with("fork(") || text.starts_with("vfork("))
      parser.note_birth(tid, text);
  StraceLog out;
  for (const auto& [tid, text] : calls) parser.call(tid, text, out);
  return out;
}

using trace::Op;
using Paths = std::vector<std::string>;
/// Path -> number of accesses.
using Counts = std::map<std::string, int>;

/// Whether the VFS returns the error without a request to the file system (docs/recorder.md).
bool is_error_of_vfs(const FileCall& call) {
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

/// A call that makes a name looks it up first.
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

/// Whether the open reaches the file system: the kernel itself opens FIFOs, sockets and devices,
/// and O_PATH sends no request.
bool is_requested(const FileCall& call, const ReplayedTree& tree) {
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
        // Another process has made it in between.
        if (missing.empty()) missing = tree.place_of(named);
        if (!is_native(missing)) ++out.misses[missing];
        break;
      }
    } else if (!call.error.empty()) {
      if (!is_error_of_vfs(call) && !is_native(path))
        ++out.errors[call.error + " " + tree.place_of(path)];
    } else {
      note_new_names(call, tree, out);
      const bool opens = call.name.starts_with("open") || call.name == "creat";
      std::string opened = call.opened;
      if (const auto gone = opened.find(" (deleted)"); gone != std::string::npos)
        opened.resize(gone);
      if (opens && !is_native(opened) && is_requested(call, tree))
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

class StraceParity : public Recorder {
 protected:
  void SetUp() override {
    Recorder::SetUp();
    if (IsSkipped()) return;
    if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
    work_ = dir_ / "work";
    run_checked({"mkdir", work_, work_ + "/tmp"});
  }

  /// Runs `argv` in work_. strace and the trace must agree, on at least `opens` opens.
  void expect_parity(const Paths& argv, int opens = 2, std::vector<std::string> env = {}) {
    env.insert(env.end(), {"PYTHONDONTWRITEBYTECODE=1", "TMPDIR=" + work_ + "/tmp"});
    ReplayedTree tree(work_);
    // Without --seccomp-bpf untraced system calls stop too.
    Paths traced = words_of(
        "strace -f --seccomp-bpf -qq -y -s 8192 -e trace=%file,%process,fchdir -e signal=none -o");
    traced.push_back(dir_ / "strace.log");
    traced.insert(traced.end(), argv.begin(), argv.end());
    result_ = record(trace_, traced,
                     {.env = std::move(env), .cwd = work_, .deadline = std::chrono::minutes(4)});
    ASSERT_EQ(result_.status, 0) << result_.out << result_.err;
    const auto log = parse_file_calls(value_or_throw(read_file(dir_ / "strace.log")), work_);
    const auto expected = straced(log, tree);
    const auto seen = read_seen(trace_);
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

  std::string work_;
  RunResult result_;
};

TEST_F(StraceParity, holds_for_xz) { expect_parity({"xz", "--help"}); }

TEST_F(StraceParity, holds_for_python_with_numpy) {
  expect_parity({"/usr/bin/python3", "-c", "import numpy"}, 150);
}

TEST_F(StraceParity, holds_for_a_shell_and_its_children) {
  expect_parity(
      {"sh", "-c",
       "cat /etc/passwd /no/file >/dev/null 2>&1; /usr/bin/env true; grep -c root /etc/group"});
}

TEST_F(StraceParity, holds_for_lammps) {
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

TEST_F(StraceParity, holds_for_two_mpi_ranks) {
  if (!is_installed("mpirun.openmpi")) HEDDLE_SKIP("Open MPI is not installed");
  expect_parity({"mpirun.openmpi", "-n", "2", "uname"}, 100, kOpenMpi);
  EXPECT_EQ(result_.out, "Linux\nLinux\n");
}

TEST_F(StraceParity, holds_for_a_meson_build) {
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
  // Without ccache: its store is outside the replayed tree.
  expect_parity({"sh", "-c", "meson setup b p >log && ninja -C b >>log && ./b/app"}, 1000,
                {"CC=gcc"});
  EXPECT_EQ(result_.out, "3\n");
}

TEST_F(StraceParity, holds_for_git_clone) {
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

TEST_F(StraceParity, holds_for_sqlite_with_a_write_ahead_log) {
  if (!is_installed("sqlite3")) HEDDLE_SKIP("sqlite3 is not installed");
  expect_parity({"sh", "-c",
                 "sqlite3 db 'pragma journal_mode=wal; create table t(x); insert into t select "
                 "value from generate_series(1,2000); pragma integrity_check' && sqlite3 db "
                 "'delete from t where x%2; vacuum; pragma integrity_check; select count(*) from "
                 "t'"},
                8);
  EXPECT_EQ(result_.out, "wal\nok\nok\n1000\n");
}

TEST_F(StraceParity, holds_for_packing_many_files) {
  const int in_each = std::getenv("HEDDLE_TEST_SECONDS") ? 1000 : 100;  // of 50 directories
  const auto script =
      "import os,sys\nfor d in range(50):\n os.mkdir(f'{sys.argv[1]}/many/{d}')\n for f in "
      "range(" +
      std::to_string(in_each) +
      "):\n  open(f'{sys.argv[1]}/many/{d}/file {f}','w').write(str(f))\n";
  run_checked({"mkdir", work_ + "/many"});
  run_checked({"/usr/bin/python3", "-c", script, work_});
  run_checked({"tar", "--sort=name", "-cf", dir_ / "native.tar", "-C", work_, "many"});
  expect_parity({"tar", "--sort=name", "-cf", "recorded.tar", "many"}, 50 * in_each);
  run_checked({"cmp", dir_ / "native.tar", work_ + "/recorded.tar"});
}

}  // namespace
}  // namespace heddle::test
