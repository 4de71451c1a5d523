// SPDX-License-Identifier: MIT
//
// The program compat-server: what it may do, its metrics, its main loop.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/run_main.hpp"
#include "base/sandbox/privileges.hpp"
#include "compat/server/services.hpp"
#include "compat/server/token_file.hpp"

namespace heddle::compat {
namespace {

using Clock = std::chrono::steady_clock;

/// The watcher is looked after, and idle streams are cut, that often; in milliseconds.
constexpr int kTendEvery = 700;
/// Of a call's time, for sending and receiving.
constexpr std::chrono::seconds kBesideJudging{5};

struct Options {
  ServerOptions server;
  JudgeOptions judges;
  std::string token_file, metrics, user = "nobody";
  int grace = 5;
  unsigned stream_idle = 60, timeout = 10;
};

void add_options(CLI::App& app, Options& o) {
  app.set_version_flag("--version", "compat-server (heddle) " HEDDLE_VERSION);
  set_usage(app, "compat-server [OPTIONS]");
  app.footer("Nothing of an artifact is ever executed. See compat-server(1).");
  app.add_option("--listen", o.server.listen,
                 "Where to listen (127.0.0.1:50051); beyond this node only with TLS")
      ->type_name("HOST:PORT|unix:PATH");
  auto* cert = app.add_option("--tls-cert", o.server.tls_certificate, "Certificate chain, PEM")
                   ->type_name("FILE");
  auto* key = app.add_option("--tls-key", o.server.tls_key, "Its key, PEM")->type_name("FILE");
  cert->needs(key);
  key->needs(cert);
  app.add_option("--token-file", o.token_file,
                 "Clients must show the token in FILE, instead of one that is made for this user")
      ->type_name("FILE");
  app.add_option("--index", o.judges.index_dir, "Keep the index in DIR instead of the user's cache")
      ->type_name("DIR");
  app.add_option("--library-dir", o.judges.library_dirs,
                 "Open libraries in and below DIR as well; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false);
  app.add_option("--rootfs", o.judges.root, "Answer for this root file system instead of this node")
      ->type_name("DIR");
  app.add_option("--user", o.user, "When started by root: become this user (nobody)")
      ->type_name("NAME");
  app.add_option("--max-request", o.server.most_request_bytes, "Largest request in bytes (8388608)")
      ->type_name("N")
      ->check(CLI::Range(1024, 1 << 30));
  app.add_option("--max-checks", o.server.most_checks, "Calls at once; more are turned away (64)")
      ->type_name("N")
      ->check(CLI::Range(1, 10'000));
  app.add_option("--metrics", o.metrics, "Serve Prometheus metrics on this loopback address")
      ->type_name("HOST:PORT");
  app.add_option("--timeout", o.timeout, "Seconds that one check may take (10)")
      ->type_name("N")
      ->check(CLI::Range(1, 3600));
  app.add_option("--stream-idle", o.stream_idle,
                 "Seconds that a stream may wait for its client (60)")
      ->type_name("N")
      ->check(CLI::Range(1, 86'400));
  app.add_option("--grace", o.grace, "Seconds that calls under way have when it is ended (5)")
      ->type_name("N")
      ->check(CLI::Range(0, 3600));
}

/// Where the index lies when nobody says: a unit's cache directory, or root's own; else the user's
/// cache, which the judges know themselves.
std::string index_dir() {
  if (const char* directory = std::getenv("CACHE_DIRECTORY"); directory != nullptr)
    return directory;
  return ::geteuid() == 0 ? "/var/cache/heddle-compat" : "";
}

/// Makes `directory`, mode 0700, for `user`. One that is there stays as it is: without the right to
/// write in it nothing is kept.
void make_directory_for(const std::string& directory, const passwd& user) {
  if (::mkdir(directory.c_str(), 0700) != 0) return;
  const auto fd = open_file(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (fd) static_cast<void>(::fchown(fd->get(), user.pw_uid, user.pw_gid));
}

/// Whoever reaches this process, or a judge, by what a client sends gets the rights of `name`: of
/// nobody, as a rule. To be called before there are threads, and after secrets are read.
void become_unprivileged(const std::string& name, const std::string& directory) {
  if (::geteuid() == 0) {
    const passwd* user = ::getpwnam(name.c_str());
    if (user == nullptr)
      throw Error(name, "no such user", "", "--user NAME: root's rights are not kept");
    if (!directory.empty()) make_directory_for(directory, *user);
    // Not possible any more without root's rights.
    for (unsigned long number = 0; ::prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0; ++number)
      static_cast<void>(::prctl(PR_CAPBSET_DROP, number, 0, 0, 0));
    // In a user namespace without such a user: root is somebody else outside, and has no rights
    // left when its capabilities are gone.
    if (::setgroups(0, nullptr) != 0 ||
        ::setresgid(user->pw_gid, user->pw_gid, user->pw_gid) != 0 ||
        ::setresuid(user->pw_uid, user->pw_uid, user->pw_uid) != 0) {
      if (errno != EINVAL && errno != EPERM)
        throw Error::from_errno(name, "cannot become this user");
      warn(Error::from_errno(name, "cannot become this user"));
    }
  }
  value_or_throw(drop_capabilities("compat-server"));
  value_or_throw(give_up_new_privileges("compat-server"));
}

/// Termination signals as a descriptor. Blocked before any thread is made, so in all of them.
Fd signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set, number);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  Fd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw Error::from_errno("signalfd", "cannot be made");
  return fd;
}

/// Prints at most once a second, and only to a terminal or a log that waits that long.
class Progress {
 public:
  void operator()(std::size_t done, std::size_t total) {
    const auto now = Clock::now();
    if (now - last_ < std::chrono::seconds(1)) return;
    last_ = now;
    say(fmt::format("indexing: {} of {} libraries", done, total));
  }

 private:
  Clock::time_point last_ = Clock::now();
};

/// The counters in Prometheus' text format 0.0.4.
std::string metrics_text(const JudgePool& judges, const CompatServer& server) {
  std::string out;
  const auto put = [&](const char* name, const char* type, const char* help, auto value) {
    out += fmt::format(
        "# HELP heddle_compat_{0} {1}\n# TYPE heddle_compat_{0} {2}\n"
        "heddle_compat_{0} {3}\n",
        name, help, type, value);
  };
  const auto& i = judges.counters();
  const auto& s = server.counters;
  put("calls_total", "counter", "gRPC calls", s.calls.load());
  put("denied_total", "counter", "Calls without the token", s.denied.load());
  put("turned_away_total", "counter", "Calls beyond --max-checks", s.turned_away.load());
  put("under_way", "gauge", "Calls under way", s.under_way.load());
  put("checks_total", "counter", "Artifacts judged", i.checks.load());
  put("checks_kept_total", "counter", "Artifacts whose verdict was known", i.kept.load());
  put("incompatible_total", "counter", "Verdicts incompatible", i.incompatible.load());
  put("errors_total", "counter", "Artifacts without a verdict", i.errors.load());
  put("changes_total", "counter", "Changes of the node's libraries noticed",
      i.invalidations.load());
  put("generation", "gauge", "State of the node", judges.generation());
  put("killed_total", "counter", "Judges that died or were killed for lateness", i.killed.load());
  put("index_files", "gauge", "Libraries indexed at start", judges.libraries());
  return out;
}

/// A listening socket on a loopback port: `127.0.0.1:9090`. Fails on other addresses.
Result<Fd> listen_for_metrics(const std::string& address) {
  const auto colon = address.rfind(':');
  sockaddr_in at{};
  at.sin_family = AF_INET;
  std::uint16_t port = 0;
  const auto* end = address.data() + address.size();
  if (colon == address.npos || std::from_chars(address.data() + colon + 1, end, port).ptr != end ||
      ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &at.sin_addr) != 1 ||
      (ntohl(at.sin_addr.s_addr) >> 24) != 127)
    return fail_errno(address, "cannot serve metrics", EINVAL,
                      "a loopback address: 127.0.0.1:PORT");
  at.sin_port = htons(port);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(fd.get(), 16) != 0)
    return fail_errno(address, "cannot serve metrics");
  return fd;
}

/// Answers one waiting peer with `page`, whatever it asks, and hangs up; never blocks for longer
/// than a moment.
void answer_metrics(int listener, const std::string& page) {
  const Fd peer(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer) return;
  // The request is read so that closing does not reset the connection; its words do not matter.
  pollfd ready{peer.get(), POLLIN, 0};
  std::array<char, 4096> request;
  if (::poll(&ready, 1, 100) == 1)
    static_cast<void>(::recv(peer.get(), request.data(), request.size(), 0));
  const auto text = fmt::format(
      "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      page.size(), page);
  static_cast<void>(::send(peer.get(), text.data(), text.size(), MSG_NOSIGNAL));
  ::shutdown(peer.get(), SHUT_WR);
}

class Program {
 public:
  explicit Program(Options options) : options_(std::move(options)), signals_(signals()) {}

  int run() {
    auto& server = options_.server;
    read_secrets();
    value_or_throw(CompatServer::check(server));
    server.stream_idle = std::chrono::seconds(options_.stream_idle);
    auto& judges = options_.judges;
    judges.timeout = std::chrono::seconds(options_.timeout);
    server.connection_grace = std::max(server.connection_grace, judges.timeout + kBesideJudging);
    // Another root is another trust domain: its files' facts are kept where somebody says, or not.
    if (judges.index_dir.empty() && judges.root.empty()) judges.index_dir = index_dir();
    become_unprivileged(options_.user, judges.index_dir);
    Progress progress;
    auto started = JudgePool::start(judges, std::ref(progress), signals_.get());
    if (!started && started.error().code() == ECANCELED) return exit_done;
    const auto pool = value_or_throw(std::move(started));
    Fd metrics;
    if (!options_.metrics.empty()) metrics = value_or_throw(listen_for_metrics(options_.metrics));
    const auto running = value_or_throw(CompatServer::start(*pool, server));
    say(fmt::format("listening on {}, {} libraries indexed", running->address(),
                    pool->libraries()));
    loop(*pool, *running, metrics);
    say("ending");
    running->stop(options_.grace);
    return exit_done;
  }

 private:
  /// What only the user that started this may read.
  void read_secrets() {
    auto& server = options_.server;
    for (auto* file : {&server.tls_certificate, &server.tls_key})
      if (!file->empty()) *file = value_or_throw(read_file(*file, std::size_t{1} << 20));
    if (!options_.token_file.empty()) {
      server.token = value_or_throw(read_token(options_.token_file));
      return;
    }
    // Beyond this node the clients' users are others: they could not find it.
    if (!is_local(server.listen)) return;
    const auto file = default_token_file();
    if (file.empty()) throw Error("--token-file", "missing: there is no place for a token");
    server.token = value_or_throw(read_or_make_token(file));
    say(fmt::format("clients need the token in {}", file));
  }

  void loop(JudgePool& pool, CompatServer& server, const Fd& metrics) {
    for (;;) {
      pollfd ready[] = {
          {signals_.get(), POLLIN, 0}, {pool.fd(), POLLIN, 0}, {metrics.get(), POLLIN, 0}};
      if (::poll(ready, 3, kTendEvery) < 0 && errno != EINTR)
        throw Error::from_errno("poll", "failed");
      pool.tend();
      server.tidy();
      if ((ready[2].revents & POLLIN) != 0)
        answer_metrics(metrics.get(), metrics_text(pool, server));
      if ((ready[0].revents & POLLIN) != 0) return;
    }
  }

  Options options_;
  Fd signals_;
};

int compat_server(int argc, const char* const* argv) {
  // The workers are our own children by fork and exec; gRPC's fork handlers would only stop them.
  ::setenv("GRPC_ENABLE_FORK_SUPPORT", "0", 0);
  // Its own log lines are no words for our users.
  ::setenv("GRPC_VERBOSITY", "NONE", 0);
  // Requests come in blocks of megabytes: what is freed goes back at once, and no thread keeps
  // some.
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_ARENA_MAX, 2);
  CLI::App app("Answer over gRPC whether this node has what an artifact's programs need.",
               "compat-server");
  Options options;
  add_options(app, options);
  forbid_empty_values(app);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  return Program(std::move(options)).run();
}

}  // namespace
}  // namespace heddle::compat

int main(int argc, char** argv) {
  return heddle::run_main("compat-server",
                          [&] { return heddle::compat::compat_server(argc, argv); });
}
