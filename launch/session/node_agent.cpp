// SPDX-License-Identifier: MIT
#include "launch/session/node_agent.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/channel.hpp"
#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/launch/rank.hpp"
#include "base/open_regular.hpp"
#include "base/run_directory.hpp"
#include "base/temp_dir.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "launch/session/manifest.hpp"
#include "launch/session/processes.hpp"
#include "ship/job_directory.hpp"

namespace heddle::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kGrace{10};
constexpr int kSilence = 30'000;  ///< ms without a word of the relay, which speaks every 5 s
constexpr std::chrono::seconds kLockLimit{60};
constexpr std::size_t kLineBytes = 400;  ///< of an answer in one line, twice as many as text
constexpr std::size_t kOutputBytes = 32'768;
constexpr const char* kSessions = "session.";
constexpr const char* kDaemonVariable = "HEDDLE_SESSION_DAEMON";

Result<Fd> open_directory(int at, const std::string& name) {
  Fd out(::openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!out) return fail_errno(name, "cannot be opened");
  return out;
}

Result<Fd> make_directory(int at, const std::string& name) {
  if (::mkdirat(at, name.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno(name, "cannot be made");
  return open_directory(at, name);
}

/// The directories of a job on this node. Only this user can change what is in them.
class JobDirectory {
 public:
  static Result<JobDirectory> open(const AgentOptions& o) {
    const auto path = ship::job_directory(o.to, o.job);
    for (int attempt = 0;; ++attempt) {
      JobDirectory out(TRY(RunDirectory::open_at(path)));
      TRY(check_trusted_directory(path));
      struct statvfs there {};
      if (::fstatvfs(out.top_.get(), &there) != 0) return fail_errno(path, "cannot be used");
      if ((there.f_flag & ST_NOEXEC) != 0)
        return fail(path, "no program can be staged there", "mounted noexec",
                    "name another directory of the nodes with --to");
      if (std::getenv("SLURM_JOB_ID"))
        (void)Fd(::openat(out.top_.get(), ship::kSlurmMark, O_WRONLY | O_CREAT | O_CLOEXEC, 0400));
      auto made = out.make_session(o.id);
      if (made) return out;
      // Another session's end may have removed the directory meanwhile.
      if (made.error().code() != ENOENT || attempt == 3) return fail(made.error());
    }
  }

  const std::string& session_path() const { return session_path_; }
  int session() const { return session_.get(); }
  int content() const { return content_.get(); }
  Result<Fd> lock() const { return top_.lock("sessions", kLockLimit); }

  /// Removes sessions whose agents have ended, content without a name, and, when nothing else is
  /// left, the directory. The worst of names that others might plant: none can, of open_at().
  static void sweep(const RunDirectory& top) {
    const auto lock = top.lock("sessions", kLockLimit);
    if (!lock) return;
    // fs-ship has made a directory without content/, and not filled it yet.
    bool in_use = !RunDirectory::find(top.path() + "/content");
    for (const auto& name : top.names()) {
      if (name.starts_with(kSessions)) {
        const Fd held(::openat(top.get(), (name + "/lock").c_str(),
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
        if (held && ::flock(held.get(), LOCK_EX | LOCK_NB) != 0)
          in_use = true;
        else
          remove_session(top.path() + "/" + name);
      } else if (name != "." && name != ".." && name != "locks" && name != ship::kSlurmMark &&
                 name != "content") {
        in_use = true;
      }
    }
    sweep_content(top);
    if (!in_use) (void)remove_tree(top.path());
  }
  static void sweep_all(const std::string& to) {
    std::error_code failed;
    for (fs::directory_iterator at(to, failed), end; !failed && at != end; at.increment(failed))
      if (const auto path = at->path().string();
          at->path().filename().string().starts_with(ship::job_directory_prefix()) &&
          check_trusted_directory(path))
        if (const auto top = RunDirectory::find(path)) sweep(*top);
  }
  void sweep_own() const { sweep(top_); }
  /// Under the lock.
  void sweep_content() const { sweep_content(top_); }

 private:
  explicit JobDirectory(RunDirectory top) : top_(std::move(top)) {}

  static void remove_session(const std::string& path) {
    end_marked(kDirectoryVariable, path);
    (void)remove_tree(path);
  }

  static void sweep_content(const RunDirectory& top) {
    const auto content = RunDirectory::find(top.path() + "/content");
    if (!content) return;
    for (const auto& name : content->names()) {
      struct stat status {};
      if (::fstatat(content->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
          S_ISREG(status.st_mode) && status.st_nlink == 1)
        content->remove(name);
    }
  }

  Result<void> make_session(const std::string& id) {
    const Fd lock = TRY(this->lock());
    content_ = TRY(make_directory(top_.get(), "content"));
    const auto name = kSessions + id;
    session_path_ = top_.path() + "/" + name;
    session_ = TRY(make_directory(top_.get(), name));
    held_ = Fd(::openat(session_.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!held_ || ::flock(held_.get(), LOCK_EX | LOCK_NB) != 0)
      return fail_errno(session_path_, "cannot be locked");
    TRY(make_directory(session_.get(), "tmp"));
    TRY(make_directory(session_.get(), "bin"));
    return {};
  }

  RunDirectory top_;
  std::string session_path_;
  Fd session_, content_;
  Fd held_;
};

/// What has been read of a pack: its list, and the file at the content.
struct OpenPack {
  Fd file;
  std::vector<Item> items;
};

Result<OpenPack> open_pack(const Request& request) {
  if (request.words.size() != 2) return fail_errno("", "invalid request", EPROTO);
  const auto& path = request.words[0];
  OpenPack out{TRY(open_regular(path)), {}};
  std::string text(std::min<std::uint64_t>(request.number, 1UL << 30), '\0');
  std::size_t had = 0;
  while (had < text.size()) {
    const auto got = ::read(out.file.get(), text.data() + had, text.size() - had);
    if (got <= 0) return fail(path, "has not arrived whole");
    had += static_cast<std::size_t>(got);
  }
  if (hash_bytes(text).hex() != request.words[1]) return fail(path, "has other bytes");
  out.items = TRY(decode_record<std::vector<Item>>(text));
  for (const auto& item : out.items)
    if (!is_inside(item.name)) return fail(item.name, "leads out of the session");
  return out;
}

class Worker {
 public:
  Worker(const JobDirectory& job, const AgentOptions& options, std::string node)
      : job_(job), o_(options), node_(std::move(node)) {}

  Answer hello() const {
    Answer out;
    const auto value = [](const char* name) {
      const char* text = std::getenv(name);
      return std::string(text ? text : "");
    };
    out.words = {job_.session_path(), value("SLURM_JOB_ID") + "." + value("SLURM_STEP_ID")};
    return out;
  }

  /// nullopt: the session ends.
  std::optional<Answer> handle(const Request& request) {
    Answer out;
    out.op = request.op;
    Result<void> done;
    switch (request.op) {
      case Op::hello:
        break;
      case Op::have:
        done = have(request, out);
        break;
      case Op::stage:
        done = stage(request);
        break;
      case Op::discard:
        done = discard(request);
        break;
      case Op::daemon:
        done = start_daemon(request);
        break;
      case Op::status:
        done = status(request, out);
        break;
      case Op::output:
        done = output(request, out);
        break;
      case Op::stop:
        stop(request);
        break;
      case Op::ranks:
        out.ranks = ranks_here(o_.step);
        break;
      case Op::signal:
        done = signal(request, out);
        break;
      case Op::destroy:
        return std::nullopt;
    }
    if (!done) out.error = done.error();
    return out;
  }

  void reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
      for (auto& daemon : daemons_)
        if (daemon.pid == pid) daemon.status = exit_status(status);
  }

 private:
  struct Daemon {
    std::uint64_t number = 0;
    pid_t pid = 0;
    std::string log;
    std::optional<int> status{};
  };

  Result<void> have(const Request& request, Answer& out) const {
    for (const auto& hash : request.words) {
      struct stat status {};
      if (!is_inside(hash) ||
          ::fstatat(job_.content(), hash.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
        out.words.push_back(hash);
    }
    struct statvfs there {};
    if (::fstatvfs(job_.session(), &there) != 0)
      return fail_errno(job_.session_path(), "cannot be used");
    out.number = std::uint64_t{there.f_bavail} * there.f_frsize;
    return {};
  }

  Result<void> stage(const Request& request) {
    auto pack = open_pack(request);
    staged_.clear();
    if (pack) staged_ = pack->items;
    auto done = pack ? take(*pack) : Result<void>(fail(pack.error()));
    remove_own(request);
    return done;
  }

  /// The pack's copy here; the source of a shared file system stays.
  void remove_own(const Request& request) const {
    if (!request.words.empty() && request.words[0].starts_with(job_.session_path() + "/"))
      (void)::unlink(request.words[0].c_str());
  }

  Result<void> take(const OpenPack& pack) const {
    const Fd lock = TRY(job_.lock());
    for (const auto& item : pack.items)
      if (item.kind == Item::Kind::file && !item.shipped) TRY(take_content(pack.file.get(), item));
    for (const auto& item : pack.items) TRY(make_name(item));
    return {};
  }

  Result<void> take_content(int pack, const Item& item) const {
    const auto name = item.hash.hex();
    const auto path = job_.session_path() + "/" + item.name;
    const auto part = name + ".part";
    (void)::unlinkat(job_.content(), part.c_str(), 0);
    Fd file(::openat(job_.content(), part.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) return fail_errno(path, "cannot be written");
    auto done = copy(pack, file.get(), item.size, path);
    if (done) {
      const auto hash = hash_file(file.get(), path);
      if (!hash)
        done = fail(hash.error());
      else if (*hash != item.hash)
        done = fail(item.from, "has changed since it was added");
      else if (::fchmod(file.get(), 0500) != 0)
        done = fail_errno(path, "cannot be made executable");
    }
    file.reset();  // a program that is open for writing cannot be executed
    if (done && ::renameat(job_.content(), part.c_str(), job_.content(), name.c_str()) != 0)
      done = fail_errno(path, "cannot be written");
    if (!done) (void)::unlinkat(job_.content(), part.c_str(), 0);
    return done;
  }

  static Result<void> copy(int from, int to, std::uint64_t size, const std::string& path) {
    std::string buffer(1UL << 20, '\0');
    for (std::uint64_t left = size; left > 0;) {
      const auto got = ::read(from, buffer.data(), std::min<std::uint64_t>(left, buffer.size()));
      if (got <= 0) return fail(path, "has not arrived whole");
      TRY(write_all(to, {buffer.data(), static_cast<std::size_t>(got)}, path));
      left -= static_cast<std::uint64_t>(got);
    }
    return {};
  }

  /// The directory of `name`, made without following a link, and the last component.
  Result<std::pair<Fd, std::string>> parent_of(const std::string& name) const {
    Fd at = TRY(open_directory(job_.session(), "."));
    std::size_t begin = 0;
    for (std::size_t slash = 0; (slash = name.find('/', begin)) != name.npos; begin = slash + 1)
      at = TRY(make_directory(at.get(), name.substr(begin, slash - begin)));
    return std::pair(std::move(at), name.substr(begin));
  }

  Result<void> make_name(const Item& item) const {
    auto [parent, leaf] = TRY(parent_of(item.name));
    const auto path = job_.session_path() + "/" + item.name;
    if (item.kind == Item::Kind::directory) {
      TRY(make_directory(parent.get(), leaf));
      return {};
    }
    const int made =
        item.kind == Item::Kind::link
            ? ::symlinkat(item.from.c_str(), parent.get(), leaf.c_str())
            : ::linkat(job_.content(), item.hash.hex().c_str(), parent.get(), leaf.c_str(), 0);
    if (made != 0) return fail_errno(path, "cannot be made");
    return {};
  }

  /// Takes back what stage() made last, whole or in part.
  Result<void> discard(const Request& request) {
    const Fd lock = TRY(job_.lock());
    for (auto item = staged_.rbegin(); item != staged_.rend(); ++item)
      if (auto at = parent_of(item->name))
        (void)::unlinkat(at->first.get(), at->second.c_str(),
                         item->kind == Item::Kind::directory ? AT_REMOVEDIR : 0);
    staged_.clear();
    job_.sweep_content();
    remove_own(request);
    return {};
  }

  Result<void> start_daemon(const Request& request) {
    if (request.words.size() < 3) return fail_errno("", "invalid request", EPROTO);
    const auto& log = request.words[0];
    const auto& directory = request.words[1];
    const Strings argv(request.words.begin() + 2, request.words.end());
    const auto own = job_.session_path();
    Environment environment;
    auto program = argv[0];
    const auto name = program;
    if (name.find('/') == name.npos && ::access((own + "/bin/" + name).c_str(), F_OK) == 0)
      program = own + "/bin/" + name;
    const auto found = TRY(find_program(program));
    for (const auto& library : {own + "/lib", own + "/libs/" + name})
      if (::access(library.c_str(), F_OK) == 0) environment.prepend("LD_LIBRARY_PATH", library);
    environment.prepend("PATH", own + "/bin");
    environment.set("TMPDIR", own + "/tmp");
    environment.set("HEDDLE_SESSION", o_.id);
    environment.set(kDirectoryVariable, own);
    environment.set("HEDDLE_SESSION_STEP", o_.step);
    environment.set("HEDDLE_SESSION_NODE", node_);
    environment.set(kDaemonVariable, std::to_string(request.number));
    if (const auto bin = own_program_dir())
      environment.set("HEDDLE_FS_LAUNCH", *bin + "/fs-launch");
    for (const auto& each : request.more)
      environment.set(each.substr(0, each.find('=')), each.substr(each.find('=') + 1));
    Daemon daemon;
    daemon.number = request.number;
    daemon.log = log.empty() ? fmt::format("{}/out.{}", own, daemon.number) : log + "." + node_;
    const Fd text =
        TRY(open_file(daemon.log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK, 0600));
    const Fd null = TRY(open_file("/dev/null", O_RDONLY));
    const Fd here = TRY(open_file(".", O_RDONLY | O_DIRECTORY));
    if (!directory.empty() && ::chdir(directory.c_str()) != 0)
      return fail_errno(directory, "cannot be entered");
    SpawnOptions options;
    options.fds = {{null.get(), 0}, {text.get(), 1}, {text.get(), 2}};
    options.environment = environment.entries();
    auto child = spawn(found, argv, options);
    (void)!::fchdir(here.get());
    if (!child) return fail(child.error());
    daemon.pid = child->release();
    daemons_.push_back(daemon);
    return {};
  }

  Result<const Daemon*> find(std::uint64_t number) const {
    const auto found = std::ranges::find(daemons_, number, &Daemon::number);
    if (found == daemons_.end()) return fail("", "there is no such daemon");
    return &*found;
  }

  Result<void> status(const Request& request, Answer& out) {
    reap();
    const auto* daemon = TRY(find(request.number));
    out.words = {daemon->status ? std::to_string(*daemon->status) : "running"};
    struct statvfs there {};
    if (daemon->status && ::statvfs(daemon->log.c_str(), &there) == 0 &&
        (::geteuid() == 0 ? there.f_bfree : there.f_bavail) == 0)
      out.words.push_back(daemon->log);  // its output may not be whole
    return {};
  }

  void stop(const Request& request) {
    if (!find(request.number)) return;
    end_marked(kDaemonVariable, std::to_string(request.number));
    std::erase_if(daemons_, [&](const Daemon& each) { return each.number == request.number; });
  }

  Result<void> output(const Request& request, Answer& out) const {
    const auto& path = TRY(find(request.number))->log;
    const Fd file = TRY(open_regular(path));
    std::string text(kOutputBytes, '\0');
    const auto got =
        ::pread(file.get(), text.data(), text.size(), static_cast<off_t>(request.offset));
    if (got < 0) return fail_errno(path, "cannot be read");
    text.resize(static_cast<std::size_t>(got));
    out.words = {text};
    return {};
  }

  Result<void> signal(const Request& request, Answer& out) const {
    for (const auto& rank : ranks_here(o_.step))
      if (request.words.empty() || request.words[0] == rank.job)
        if (TRY(signal_rank(rank, static_cast<int>(request.number))))
          out.words.push_back(std::to_string(rank.pid));
    return {};
  }

  using Strings = std::vector<std::string>;
  const JobDirectory& job_;
  const AgentOptions& o_;
  const std::string node_;
  std::vector<Daemon> daemons_;
  std::vector<Item> staged_;
};

void say_answer(Answer answer, const std::string& node) {
  answer.node = node;
  Encoder coder;
  coder(answer);
  const auto text = coder.take();
  for (std::size_t at = 0; at == 0 || at < text.size(); at += kLineBytes) {
    auto line = fmt::format("@{} {} ", node, at + kLineBytes < text.size() ? '+' : '.');
    for (const char c : std::string_view(text).substr(at, kLineBytes))
      line += fmt::format("{:02x}", static_cast<unsigned char>(c));
    if (!write_all(STDOUT_FILENO, line + "\n", "stdout")) return;
  }
}

/// Reads requests until the session ends. Result: destroy was asked for.
bool serve(Worker& worker, const std::string& node) {
  sigset_t taken;
  ::sigemptyset(&taken);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) ::sigaddset(&taken, signal);
  ::sigprocmask(SIG_BLOCK, &taken, nullptr);
  const Fd signals(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  say_answer(worker.hello(), node);
  std::string input;
  for (;;) {
    pollfd entries[] = {{STDIN_FILENO, POLLIN, 0}, {signals.get(), POLLIN, 0}};
    const int ready = ::poll(entries, 2, kSilence);
    if (ready == 0) return false;
    if (entries[1].revents != 0) {
      signalfd_siginfo got{};
      while (::read(signals.get(), &got, sizeof got) == sizeof got)
        if (got.ssi_signo != SIGCHLD) return false;
      worker.reap();
    }
    if (entries[0].revents == 0) continue;
    char bytes[65'536];
    const auto got = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (got <= 0) {
      if (got < 0 && errno == EINTR) continue;
      return false;
    }
    input.append(bytes, static_cast<std::size_t>(got));
    while (input.size() >= 4) {
      std::uint32_t size = 0;
      Decoder head(std::string_view(input).substr(0, 4));
      head(size);
      if (size > 2 * kLongestPacket) return false;
      if (input.size() < 4 + std::size_t{size}) break;
      const auto request = input.substr(4, size);
      input.erase(0, 4 + std::size_t{size});
      if (request.empty()) continue;  // the relay lives
      const auto decoded = decode_record<Request>(request);
      if (!decoded) return false;
      const auto answer = worker.handle(*decoded);
      if (!answer) return true;
      say_answer(*answer, node);
    }
  }
}

std::string node_name(const AgentOptions& o) {
  if (!o.node.empty()) return o.node;
  if (const char* name = std::getenv("SLURMD_NODENAME")) return name;
  return host_name();
}

}  // namespace

void sweep_node(const std::string& to) { JobDirectory::sweep_all(to); }

int run_agent(const AgentOptions& o) {
  const auto node = node_name(o);
  sweep_node(o.to);
  const auto job = JobDirectory::open(o);
  if (!job) {
    Answer answer;
    answer.error = job.error();
    say_answer(std::move(answer), node);
    return exit_failure;
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // The guard goes on when others would end: it removes what the worker leaves.
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  const auto guard = ::getpid();
  ForkOptions options;
  options.dies_with_parent = false;
  auto worker = fork_child(options, [&] {
    ::signal(SIGPIPE, SIG_IGN);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    Worker work(*job, o, node);
    const bool destroyed = ::getppid() == guard && serve(work, node);
    if (::getppid() != guard) {
      end_descendants(kGrace);
      (void)remove_tree(job->session_path());
      job->sweep_own();
    }
    return destroyed ? exit_done : exit_no;
  });
  if (!worker) return exit_failure;
  const auto status = worker->wait();
  end_descendants(kGrace);
  (void)remove_tree(job->session_path());
  job->sweep_own();
  Answer answer;
  answer.op = Op::destroy;
  if (status && *status == exit_done) say_answer(std::move(answer), node);
  return exit_done;
}

std::string to_frame(const std::string& request) {
  Encoder coder;
  coder(request);
  return coder.take();
}

std::vector<Answer> AnswerReader::take(std::string_view bytes) {
  std::vector<Answer> out;
  rest_ += bytes;
  for (std::size_t end = 0; (end = rest_.find('\n')) != rest_.npos;) {
    const auto line = rest_.substr(0, end);
    rest_.erase(0, end + 1);
    const auto space = line.find(' ');
    if (!line.starts_with('@') || space == line.npos || space + 3 > line.size()) continue;
    const auto node = line.substr(1, space - 1);
    auto part = std::ranges::find(parts_, node, &std::pair<std::string, std::string>::first);
    if (part == parts_.end()) part = parts_.insert(part, {node, ""});
    for (std::size_t at = space + 3; at + 1 < line.size(); at += 2)
      part->second += static_cast<char>(std::strtoul(line.substr(at, 2).c_str(), nullptr, 16));
    if (line[space + 1] != '.') continue;
    auto answer = decode_record<Answer>(part->second);
    part->second.clear();
    if (!answer) continue;
    answer->node = node;
    out.push_back(std::move(*answer));
  }
  return out;
}

}  // namespace heddle::launch
