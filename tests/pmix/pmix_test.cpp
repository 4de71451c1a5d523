// SPDX-License-Identifier: MIT
// fs-launch pmix with its own launcher, with servers that are faulty, and where it must not
// connect.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::MatchesRegex;

class Pmix : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_launch_ = staged_program("fs-launch");
    if (fs_launch_.empty()) HEDDLE_SKIP("fs-launch is not installed in $HEDDLE_STAGE");
    if (staged_program("heddle-pmix").empty()) HEDDLE_SKIP("heddle is built without libpmix");
    fs::create_directory(dir_ / "tmp");
    options_.cwd = dir_.path();
    options_.env = {"TMPDIR=" + dir_ / "tmp", "FS_LAUNCH=" + fs_launch_, "X_TOOL=old"};
  }
  /// Neither processes nor files are left.
  void TearDown() override {
    if (fs_launch_.empty()) return;
    EXPECT_TRUE(wait_until(10s, [&] { return left().empty(); })) << left();
  }
  std::string left() const {
    return run({"sh", "-c",
                "ls -A " + dir_ / "tmp" + "; grep -lz ^TMPDIR=" + dir_ / "tmp" +
                    "$ /proc/[0-9]*/environ 2>/dev/null"})
        .out;
  }
  RunResult sh(const std::string& script) const {
    return run({"/bin/bash", "-c", script}, options_);
  }
  RunResult pmix(const Strings& arguments) const {
    return run(Strings{fs_launch_, "pmix"} + arguments, options_);
  }
  /// `fs-launch pmix run OPTIONS fs-launch pmix launch -n RANKS COMMAND`.
  RunResult pair(const Strings& options, const std::string& ranks, const Strings& command) const {
    return pmix(Strings{"run"} + options +
                Strings{fs_launch_, "pmix", "launch", "-n", ranks, "--"} + command);
  }
  std::string text(const std::string& name) const { return read_file(dir_ / name).value_or(""); }
  std::vector<Json> events() const {
    std::vector<Json> out;
    for (const auto& line : lines_of(text("events"))) out.push_back(Json::parse(line));
    return out;
  }
  /// Starts it in the background, and waits for `file`.
  Child start(const Strings& argv, const std::string& file) const {
    auto child = start_silently("/usr/bin/env",
                                Strings{"env", "-C", dir_.path(), "TMPDIR=" + dir_ / "tmp"} + argv);
    EXPECT_TRUE(wait_until(20s, [&] { return fs::exists(dir_ / file); })) << to_shell(argv);
    return child;
  }
  Child start_job(const Strings& command) const {
    return start(
        Strings{fs_launch_, "pmix", "launch", "-n", "2", "--report-uri", "uri", "--"} + command,
        "uri");
  }

  TestDir dir_;
  std::string fs_launch_;
  RunOptions options_;
};

/// One error line and at most a hint, and nothing else.
void expect_one_error(const RunResult& result, const std::string& what) {
  EXPECT_EQ(result.status, 3) << result.out << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr(what));
  const auto lines = lines_of(result.err);
  ASSERT_THAT(lines.size(), ::testing::AnyOf(1U, 2U)) << result.err;
  EXPECT_THAT(lines[0], StartsWith("fs-launch"));
  if (lines.size() == 2) {
    EXPECT_THAT(lines[1], StartsWith("hint: "));
  }
}

TEST_F(Pmix, launcher_waits_until_files_are_staged_and_gives_the_ranks_their_environment) {
  const auto result =
      pair({"--set", "X_TOOL=base", "--prepend", "X_TOOL=staged", "--prepend", "X_NEW=a b",
            "--before", "sleep 0.5; ls started 2>&1; echo content > file"},
           "2", {"sh", "-c", "touch started; cat file; echo $X_TOOL-$X_NEW"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(lines_of(result.out)[0], HasSubstr("cannot access"));
  auto lines = lines_of(result.out);
  lines.erase(lines.begin());
  std::ranges::sort(lines);
  EXPECT_THAT(lines, ElementsAre("content", "content", "staged:base-a b", "staged:base-a b"));
  EXPECT_EQ(result.err, "");
}

TEST_F(Pmix, prepended_value_keeps_the_inherited_one) {
  EXPECT_EQ(pair({"--prepend", "X_TOOL=new"}, "1", {"sh", "-c", "echo $X_TOOL"}).out, "new:old\n");
  EXPECT_EQ(pair({"--prepend", "X_NONE=new"}, "1", {"sh", "-c", "echo $X_NONE"}).out, "new\n");
  EXPECT_EQ(pmix({"run", "--set", "=x", "true"}).status, 3);
}

TEST_F(Pmix, stopped_ranks_have_only_ld_so_and_go_on_after_the_command) {
  options_.env = options_.env + Strings{"XDG_CACHE_HOME=" + dir_ / "cache"};
  const auto result =
      pair({"--stopped",
            "cat $HEDDLE_PMIX_RANKS > table; echo $HEDDLE_PMIX_NAMESPACE > name; "
            "id=$($FS_LAUNCH session create --to $TMPDIR --pmix $HEDDLE_PMIX_RANKS); "
            "$FS_LAUNCH session ranks $id > ranks; $FS_LAUNCH session destroy $id; "
            "$FS_LAUNCH session ranks --here > here; "
            "for p in $(grep -o 'pid\": [0-9]*' table | cut -d' ' -f2); do "
            "grep -E 'State|TracerPid' /proc/$p/status >> states; grep -c libc.so "
            "/proc/$p/maps >> maps; "
            "readlink /proc/$p/exe >> exes; done; ls ran >> states 2>&1; true"},
           "2", {"sh", "-c", "touch ran; echo ran"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "ran\nran\n");
  EXPECT_THAT(text("states"), MatchesRegex("(State:\tT .stopped.\nTracerPid:\t0\n){2}"
                                           "ls: cannot access 'ran'.*\n"));
  EXPECT_EQ(text("maps"), "0\n0\n");
  const auto table = Json::parse(text("table"));
  ASSERT_EQ(table.size(), 2U);
  EXPECT_THAT(text("here"), Not(HasSubstr("heddle-pmix")));  // the launcher is none
  ASSERT_EQ(lines_of(text("ranks")).size(), 2U);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(table[rank]["rank"], rank);
    EXPECT_THAT(lines_of(text("ranks"))[rank],
                StartsWith(std::to_string(rank) + " " + table[rank]["pid"].dump() + " "));
    EXPECT_EQ(table[rank]["namespace"].get<std::string>() + "\n", text("name"));
    EXPECT_EQ(fs::canonical(table[rank]["program"].get<std::string>()).string(),
              lines_of(text("exes"))[rank]);
  }
}

TEST_F(Pmix, start_and_end_of_the_job_are_events) {
  EXPECT_EQ(pair({"--events", "events", "--stop", "exec"}, "2", {"sh", "-c", "exit 5"}).status, 5);
  const auto list = events();
  ASSERT_EQ(list.size(), 4U) << text("events");
  EXPECT_EQ(list[0]["event"], "launcher-waits");
  EXPECT_EQ(list[1]["event"], "launch-complete");
  EXPECT_EQ(list[2]["event"], "ready-for-debug");
  EXPECT_EQ(list[3]["event"], "job-end");
  EXPECT_EQ(list[3]["status"], 5);
  EXPECT_EQ(list[3]["namespace"], list[1]["namespace"]);
}

TEST_F(Pmix, preparation_that_fails_ends_the_job_before_it_starts) {
  expect_one_error(pair({"--before", "exit 5"}, "1", {"touch", "started"}), "exit status 5");
  expect_one_error(pair({"--stopped", "kill $$"}, "1", {"touch", "started"}), "exit status 143");
  EXPECT_FALSE(fs::exists(dir_ / "started"));
}

TEST_F(Pmix, program_that_is_no_pmix_launcher_is_ended) {
  expect_one_error(pmix({"run", "--timeout", "1", "sleep", "982"}),
                   "sleep: does not connect back as a PMIx launcher does: within 1 s");
  expect_one_error(
      pmix({"run", "--timeout", "1", "bash", "-c", "trap '' TERM; while :; do sleep 0.1; done"}),
      "does not connect back");
  // One that ends earlier has its own status and says why itself.
  EXPECT_EQ(pmix({"run", "sh", "-c", "exit 9"}).status, 9);
  EXPECT_EQ(pmix({"run", "no-such-launcher"}).status, 127);
}

TEST_F(Pmix, launcher_that_dies_while_it_waits_is_reported_as_by_the_shell) {
  const auto result =
      sh("$FS_LAUNCH pmix run --before 'kill -9 $(pgrep -P $PPID -f [l]aunch.-n)' $FS_LAUNCH pmix "
         "launch -n 1 touch started; echo $?");
  EXPECT_EQ(result.out, "137\n") << result.err;
  EXPECT_FALSE(fs::exists(dir_ / "started"));
}

TEST_F(Pmix, job_does_not_start_without_the_tool) {
  expect_one_error(
      pair({"--before", "kill -9 $(pgrep -P $PPID pmix-agent)"}, "1", {"touch", "started"}),
      "the PMIx connection to the launcher has failed");
  EXPECT_FALSE(fs::exists(dir_ / "started"));
}

TEST_F(Pmix, signals_and_input_reach_the_ranks) {
  options_.input = "line\n";
  EXPECT_EQ(pair({}, "1", {"cat"}).out, "line\n");
  for (const char* signal : {"TERM", "KILL"}) {
    auto child = start(Strings{fs_launch_, "pmix", "run", fs_launch_, "pmix", "launch", "-n", "2",
                               "sh", "-c", "touch up; exec sleep 983"},
                       "up");
    ::kill(child.pid(), signal == "TERM"s ? SIGTERM : SIGKILL);
    EXPECT_EQ(value_or_throw(child.wait_for(10s)), signal == "TERM"s ? 143 : 137);
    EXPECT_TRUE(wait_until(10s, [&] { return left().empty(); })) << left();
    fs::remove(dir_ / "up");
  }
}

/// As from a terminal: the launcher, its ranks, the tool and its helpers get it at once.
TEST_F(Pmix, ranks_that_handle_an_interrupt_end_the_job_themselves) {
  const auto result =
      sh("set -m; $FS_LAUNCH pmix run $FS_LAUNCH pmix launch -n 2 bash -c 'trap \"sleep 1; exit "
         "5\" INT; "
         "touch up$PMIX_RANK; while :; do sleep 0.1; done' 2>err & until [ -e up0 -a -e up1 ]; do "
         "sleep 0.05; done; "
         "kill -INT -$!; wait $!; echo $?; cat err");
  EXPECT_EQ(result.out, "5\n") << result.err;
}

TEST_F(Pmix, rank_that_fails_ends_the_others) {
  const auto result =
      pmix({"launch", "-n", "3", "sh", "-c", "test $PMIX_RANK = 1 && exit 4; exec sleep 984"});
  EXPECT_EQ(result.status, 4);
  const auto stubborn = pmix(
      {"launch", "-n", "2", "bash", "-c",
       "trap '' TERM; test $PMIX_RANK = 1 && { sleep 0.2; exit 4; }; while :; do sleep 0.1; done"});
  EXPECT_EQ(stubborn.status, 4);
  EXPECT_EQ(pmix({"launch", "no-such-program"}).status, 127);
}

TEST_F(Pmix, query_lists_the_processes_that_run) {
  auto job = start_job({"sh", "-c", "touch up; exec sleep 985"});
  ASSERT_TRUE(wait_until(10s, [&] { return fs::exists(dir_ / "up"); }));
  const auto uri = lines_of(text("uri"))[0];
  const auto answer = pmix({"query", "--json", uri});
  ASSERT_EQ(answer.status, 0) << answer.err;
  const auto jobs = Json::parse(answer.out);
  ASSERT_EQ(jobs.size(), 1U);
  ASSERT_EQ(jobs[0]["ranks"].size(), 2U);
  for (int rank = 0; rank < 2; ++rank) {
    const auto& entry = jobs[0]["ranks"][rank];
    const auto environment =
        run({"sh", "-c",
             "tr '\\0' '\\n' < /proc/" + std::to_string(entry["pid"].get<int>()) +
                 "/environ; uname -n"})
            .out;
    EXPECT_EQ(entry["rank"], rank);
    EXPECT_THAT(environment, HasSubstr("PMIX_RANK=" + std::to_string(rank) + "\n"));
    EXPECT_THAT(environment, HasSubstr("\n" + entry["host"].get<std::string>() + "\n"));
  }
  const auto name = jobs[0]["namespace"].get<std::string>();
  for (const Strings& way : {Strings{"uri"}, {"file:uri"}, {"--namespace", name, uri}}) {
    const auto table = pmix(Strings{"query"} + way);
    EXPECT_EQ(table.status, 0) << table.err;
    const auto lines = lines_of(table.out);
    ASSERT_EQ(lines.size(), 4U) << table.out;
    EXPECT_EQ(lines[0], name);
    EXPECT_THAT(lines[3], HasSubstr(std::to_string(jobs[0]["ranks"][1]["pid"].get<int>())));
  }
  expect_one_error(pmix({"query", "--namespace", "other", uri}), "the server has no such job");
}

TEST_F(Pmix, session_has_the_ranks_of_the_servers_table_and_no_others) {
  options_.env = options_.env + Strings{"XDG_CACHE_HOME=" + dir_ / "cache"};
  const auto session = [&](const std::string& words) { return sh("$FS_LAUNCH session " + words); };
  const auto create = "create --to " + dir_ / "tmp" + " --pmix ";
  const Strings program = {"bash", "-c",
                           "trap 'echo got >>got.$PMIX_NAMESPACE.$PMIX_RANK' USR1; "
                           "touch up.$PMIX_NAMESPACE.$PMIX_RANK; while :; do sleep 0.1; done"};
  auto job = start_job(program);
  ASSERT_EQ(sh("$FS_LAUNCH pmix query --json uri >one; rm uri").status, 0);
  auto other = start_job(program);
  ASSERT_EQ(sh("$FS_LAUNCH pmix query --json uri >two").status, 0);
  ASSERT_TRUE(wait_until(10s, [&] { return lines_of(sh("ls up.*").out).size() == 4; }));
  auto table = Json::parse(text("one"));
  const auto name = table[0]["namespace"].get<std::string>();
  const auto map = [](const Json& ranks, const char* job_key) {
    Strings out;
    for (const auto& each : ranks)
      out.push_back(Json{each["rank"], each["pid"], each["host"], each[job_key]}.dump());
    return out;
  };

  const auto made = session(create + "one");
  ASSERT_EQ(made.status, 0) << made.err;
  const auto id = lines_of(made.out).at(0);
  EXPECT_EQ(map(Json::parse(session("ranks --json " + id).out), "job"),
            map(table[0]["ranks"], "namespace"));
  EXPECT_EQ(session("daemon " + id +
                    " --wait -- sh -c '$HEDDLE_FS_LAUNCH session ranks --here "
                    "--step $HEDDLE_SESSION_STEP | wc -l'")
                .out,
            "2\n");
  EXPECT_EQ(session("signal " + id + " USR1").out, "2 ranks\n");
  EXPECT_TRUE(wait_until(10s, [&] { return sh("cat got.*").out == "got\ngot\n"; }));
  EXPECT_EQ(sh("ls got.*").out, "got." + name + ".0\ngot." + name + ".1\n");
  EXPECT_EQ(session("destroy " + id).status, 0);

  // Two jobs in one table.
  table.push_back(Json::parse(text("two"))[0]);
  std::ofstream(dir_ / "both") << table;
  EXPECT_THAT(session(create + "both").err, AllOf(HasSubstr("both: whose ranks?"), HasSubstr(name),
                                                  HasSubstr("hint: name one of them")));
  const auto one = lines_of(session(create + "<(cat both) --ranks " + name).out);
  ASSERT_EQ(one.size(), 1U);
  // The launcher ends the other when one has died.
  EXPECT_THAT(session("signal " + one[0] + " KILL").out, MatchesRegex("[12] ranks\n"));
  EXPECT_EQ(value_or_throw(job.wait_for(10s)), 137);
  EXPECT_TRUE(wait_until(10s, [&] { return session("ranks " + one[0]).out.empty(); }));
  EXPECT_EQ(session("destroy " + one[0]).status, 0);
  EXPECT_EQ(value_or_throw(other.wait_for(0s)), std::nullopt);
  ::kill(other.pid(), SIGTERM);
  (void)other.wait_for(10s);
}

TEST_F(Pmix, table_that_is_none_and_hosts_that_are_none_start_nothing) {
  options_.env = options_.env + Strings{"XDG_CACHE_HOME=" + dir_ / "cache"};
  const std::string deep(100'000, '[');
  const std::pair<std::string, const char*> tables[] = {
      {"", "is no table of ranks"},
      {deep + std::string(deep.size(), ']'), "is no table of ranks"},
      {"{}", "it has none"},
      {"[]", "it has none"},
      {"[7]", "is no table of ranks"},
      {R"([{"namespace":"n","ranks":7}])", "is no table of ranks"},
      {R"([{"namespace":"n","host":7}])", "is no table of ranks"},
      {R"([{"namespace":"n","host":"-oProxyCommand=touch ran"}])", "is not a node's name"},
      {R"([{"namespace":"n","host":"x;touch ran"}])", "is not a node's name"}};
  for (const auto& [table, error] : tables) {
    std::ofstream(dir_ / "table") << table;
    expect_one_error(sh("$FS_LAUNCH session create --pmix table --rsh 'sh -c'"), error);
  }
  EXPECT_FALSE(fs::exists(dir_ / "ran"));
}

TEST_F(Pmix, other_user_gets_no_answer_and_the_job_goes_on) {
  if (::geteuid() != 0) HEDDLE_SKIP("only root can become another user");
  auto job = start_job({"sh", "-c", "until [ -e go ]; do sleep 0.1; done; exit 6"});
  fs::permissions(dir_.path(), fs::perms(0755));
  fs::copy(dir_ / "uri", dir_ / "theirs");
  ASSERT_EQ(::chown((dir_ / "theirs").c_str(), 65534, 65534), 0);
  const auto denied = run({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                           fs_launch_, "pmix", "query", "--timeout", "2", dir_ / "theirs"},
                          options_);
  expect_one_error(denied, "does not answer: 2 s");
  EXPECT_EQ(pmix({"query", "uri"}).status, 0);
  std::ofstream(dir_ / "go") << "";
  EXPECT_EQ(value_or_throw(job.wait_for(10s)), 6);
}

TEST_F(Pmix, stranger_at_the_tools_port_does_not_end_the_job) {
  const auto result =
      sh("$FS_LAUNCH pmix run --before 'uri=$(tr \"\\0\" \"\\n\" < /proc/$(pgrep -P $PPID -f "
         "[l]aunch.-n)/environ | "
         "sed -n s/^PMIX_LAUNCHER_RNDZ_URI=//p); $FS_LAUNCH pmix query --timeout 2 \"$uri\"; "
         "setpriv --reuid=65534 --regid=65534 --clear-groups $FS_LAUNCH pmix query --timeout 2 "
         "\"$uri\"; true' "
         "$FS_LAUNCH pmix launch -n 1 sh -c 'exit 6'; echo $?");
  EXPECT_EQ(result.out, "6\n") << result.err;
}

/// A listener that accepts, sends `bytes`, and keeps the connection. Result: an address.
class Listener {
 public:
  explicit Listener(std::string bytes)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), bytes_(std::move(bytes)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_.get(), 5), 0);
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (;;) {
        Fd peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!peer) return;
        (void)!::send(peer.get(), bytes_.data(), bytes_.size(), MSG_NOSIGNAL);
        peers_.push_back(std::move(peer));
      }
    });
  }
  ~Listener() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string uri(const std::string& name = "prterun-x-1@0.0") const {
    return name + ";tcp4://127.0.0.1:" + std::to_string(port_);
  }

 private:
  Fd socket_;
  std::string bytes_;
  int port_ = 0;
  std::vector<Fd> peers_;
  std::thread thread_;
};

TEST_F(Pmix, address_that_is_none_is_refused) {
  std::ofstream(dir_ / "text") << "some text\n";
  ::mkfifo((dir_ / "fifo").c_str(), 0600);
  for (const char* address :
       {"text", "file:text", "a.0;http://127.0.0.1:80", "a.0;tcp4://127.0.0.1", ".0;tcp4://h:1",
        "a;tcp4://127.0.0.1:5", "a.0;tcp4://127.0.0.1:99999", "a.0;tcp4://127.0.0.1:5\n"})
    expect_one_error(pmix({"query", address}), "is no address of a PMIx server");
  expect_one_error(pmix({"query", "fifo"}), "not a regular file");
  expect_one_error(pmix({"query", "missing"}), "No such file");
  if (::geteuid() != 0) return;
  std::ofstream(dir_ / "foreign") << "a.0;tcp4://127.0.0.1:5\n";
  ASSERT_EQ(::chown((dir_ / "foreign").c_str(), 65534, 65534), 0);
  expect_one_error(pmix({"query", "foreign"}), "belongs to another user");
}

TEST_F(Pmix, server_that_is_not_there_or_no_pmix_server_is_one_error) {
  expect_one_error(pmix({"query", "--timeout", "5", "prterun-x-1@0.0;tcp4://127.0.0.1:1"}),
                   "cannot connect");
  const Listener silent(""), garbage(std::string(100'000, '\xff')),
      zeros(std::string(100'000, '\0'));
  expect_one_error(pmix({"query", "--timeout", "2", silent.uri()}), "does not answer: 2 s");
  for (const auto* listener : {&garbage, &zeros}) {
    const auto result = pmix({"query", "--timeout", "5", listener->uri()});
    expect_one_error(result, "prterun-x-1@0.0");
  }
}

TEST_F(Pmix, server_that_is_faulty_is_one_error) {
  const std::pair<const char*, const char*> kinds[] = {
      {"silent", "does not answer: 2 s"},
      {"denies", "does not answer this question"},
      {"refuses", ""},
      {"dies", ""},
      {"many", "more namespaces than any has"},
      {"nonsense", "is no table of processes"},
  };
  for (const auto& [kind, error] : kinds) {
    SCOPED_TRACE(kind);
    fs::remove(dir_ / "uri");
    auto server = start({FAULTY_SERVER, "uri", kind, dir_ / "tmp"}, "uri");
    expect_one_error(pmix({"query", "--timeout", "2", "uri"}), error);
    ::kill(server.pid(), SIGKILL);
    (void)server.wait();
    fs::remove_all(dir_ / "tmp");
    fs::create_directory(dir_ / "tmp");
  }
}

TEST_F(Pmix, text_of_a_hostile_server_is_cut_and_escaped) {
  auto server = start({FAULTY_SERVER, "uri", "hostile", dir_ / "tmp"}, "uri");
  const auto table = pmix({"query", "uri"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_EQ(lines_of(table.out).size(), 3U);
  EXPECT_THAT(table.out, AllOf(HasSubstr("j\\x1b[2J\\nob"), HasSubstr("h\\x1b]0;x\\x07\\nost"),
                               Not(HasSubstr("\033"))));
  const auto jobs = Json::parse(pmix({"query", "--json", "uri"}).out);
  EXPECT_EQ(jobs[0]["ranks"][0]["program"].get<std::string>().size(), 4096U);
  EXPECT_EQ(jobs[0]["ranks"][0]["rank"], 4'000'000'000U);
  ::kill(server.pid(), SIGKILL);
  (void)server.wait();
  fs::remove_all(dir_ / "tmp");
  fs::create_directory(dir_ / "tmp");
}

/// It would end its job. (Here it must go on, and end with its own status.)
TEST_F(Pmix, mpirun_of_open_mpi_4_is_never_attached_to) {
  constexpr const char* kRefused = "mpirun of Open MPI 4 ends its job when a PMIx tool connects";
  expect_one_error(pmix({"query", "232390657.0;tcp4://127.0.0.1:4711"}), kRefused);
  if (run({"sh", "-c", "mpirun.openmpi --version | grep -q 'OpenRTE) 4'"}).status != 0)
    HEDDLE_SKIP("mpirun of Open MPI 4 is not installed");
  expect_one_error(pmix({"run", "mpirun.openmpi", "-n", "1", "touch", "started"}), kRefused);
  EXPECT_FALSE(fs::exists(dir_ / "started"));
  auto child = start(Strings{"sh", "-c",
                             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 exec "
                             "mpirun.openmpi -n 1 sh -c 'touch up; "
                             "until [ -e go ]; do sleep 0.1; done; exit 6'"},
                     "up");
  // All ports it listens on, under a name that says nothing.
  const auto ports = lines_of(
      sh("ss -tlnpH | grep pid=" + std::to_string(child.pid()) + ", | awk '{print $4}'").out);
  ASSERT_FALSE(ports.empty());
  for (const auto& port : ports)
    expect_one_error(
        pmix({"query", "prterun-x-1@0.0;tcp4://127.0.0.1:" + port.substr(port.rfind(':') + 1)}),
        kRefused);
  std::ofstream(dir_ / "go") << "";
  EXPECT_EQ(value_or_throw(child.wait_for(20s)), 6);
}

TEST_F(Pmix, missing_library_and_missing_program_are_named) {
  const auto alone =
      sh("mkdir -p part/bin && cp $FS_LAUNCH part/bin && part/bin/fs-launch pmix run true");
  expect_one_error(alone, "heddle-pmix: is not installed");
  EXPECT_THAT(alone.err, HasSubstr("package heddle-pmix"));
  const auto doctor = staged_program("fs-gen") + " --doctor | grep '^[a-zA-Z]* *pmix'";
  EXPECT_THAT(sh(doctor).out, HasSubstr("ok      pmix        OpenPMIx "));
  if (::geteuid() != 0) HEDDLE_SKIP("only root can hide libpmix");
  const auto hidden =
      run({"unshare", "-m", "sh", "-c",
           "for l in $(ldd " + staged_program("heddle-pmix") +
               " | awk '$1 ~ /^libpmix/ { print $3 }'); do mount -t tmpfs none "
               "$(dirname $(realpath $l)); done; " +
               doctor + " > doctor; exec " + fs_launch_ + " pmix query a.0\\;tcp4://127.0.0.1:5"},
          options_);
  expect_one_error(hidden, "libpmix.so.2");
  EXPECT_THAT(hidden.err, HasSubstr("libpmix2"));
  EXPECT_THAT(text("doctor"),
              AllOf(StartsWith("absent"), HasSubstr("libpmix.so.2"), HasSubstr("libpmix2")));
}

}  // namespace
}  // namespace heddle::test
