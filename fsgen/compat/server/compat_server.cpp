// SPDX-License-Identifier: MIT
#include "fsgen/compat/server/compat_server.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "fsgen/compat/server/folder_watch.hpp"
#include "fsgen/compat/server/metrics_page.hpp"
#include "fsgen/compat/server/node_index.hpp"
#include "fsgen/compat/server/services.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

/// A package's files arrive in a burst: the last one is waited for, but not for ever.
constexpr std::chrono::milliseconds kQuiet{150};
constexpr std::chrono::milliseconds kLongestBurst{1000};
/// What inotify does not tell is looked for that often, in milliseconds.
constexpr int kLookEvery = 700;

struct Options {
  compat::ServerOptions server;
  compat::NodeIndexOptions index;
  std::string token_file, metrics;
  int grace = 5;
  unsigned stream_idle = 60;
};

void add_options(CLI::App& app, Options& o) {
  app.set_version_flag("--version", "compat-server (heddle) " HEDDLE_VERSION);
  set_usage(app, "compat-server [OPTIONS]");
  app.footer("Nothing of an artifact is ever executed. See compat-server(1).");
  app.add_option("--listen", o.server.listen,
                 "Where to listen (127.0.0.1:50051); beyond this node only with TLS and a token")
      ->type_name("HOST:PORT|unix:PATH");
  auto* cert = app.add_option("--tls-cert", o.server.tls_certificate, "Certificate chain, PEM")
                   ->type_name("FILE");
  auto* key = app.add_option("--tls-key", o.server.tls_key, "Its key, PEM")->type_name("FILE");
  cert->needs(key);
  key->needs(cert);
  app.add_option("--token-file", o.token_file, "Clients must show the token in FILE")
      ->type_name("FILE");
  app.add_option("--index", o.index.cache_dir, "Keep the index in DIR instead of the user's cache")
      ->type_name("DIR");
  app.add_option("--rootfs", o.index.root, "Answer for this root file system instead of this node")
      ->type_name("DIR");
  app.add_option("--max-request", o.server.most_request_bytes, "Largest request in bytes (8388608)")
      ->type_name("N")
      ->check(CLI::Range(1024, 1 << 30));
  app.add_option("--max-checks", o.server.most_checks, "Calls at once; more are turned away (64)")
      ->type_name("N")
      ->check(CLI::Range(1, 10'000));
  app.add_option("--metrics", o.metrics, "Serve Prometheus metrics on this loopback address")
      ->type_name("HOST:PORT");
  app.add_option("--stream-idle", o.stream_idle,
                 "Seconds that a stream may wait for its client (60)")
      ->type_name("N")
      ->check(CLI::Range(1, 86'400));
  app.add_option("--grace", o.grace, "Seconds that calls under way have when it is ended (5)")
      ->type_name("N")
      ->check(CLI::Range(0, 3600));
}

std::string read_token(const std::string& path) {
  auto token = value_or_throw(read_file(path, 4096));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() < 16) throw Error(path, "the token is too short", "", "16 characters or more");
  return token;
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

class Program {
 public:
  explicit Program(Options options) : options_(std::move(options)), signals_(signals()) {}

  int run() {
    if (!options_.token_file.empty()) options_.server.token = read_token(options_.token_file);
    value_or_throw(compat::CompatServer::check(options_.server));
    options_.server.stream_idle = std::chrono::seconds(options_.stream_idle);
    auto index = value_or_throw(compat::NodeIndex::open(options_.index));
    auto watch = value_or_throw(compat::FolderWatch::open());
    // Watched before it is read: no change falls between.
    add_folders(watch, *index);
    Progress progress;
    const auto files = value_or_throw(index->fill(std::ref(progress)));
    Fd metrics;
    if (!options_.metrics.empty())
      metrics = value_or_throw(compat::listen_for_metrics(options_.metrics));
    const auto server = value_or_throw(compat::CompatServer::start(*index, options_.server));
    say(fmt::format("listening on {}, {} libraries indexed", server->address(), files));
    loop(watch, *index, *server, metrics, files);
    say("ending");
    server->stop(options_.grace);
    return exit_done;
  }

 private:
  /// Result: whether there are new ones.
  bool add_folders(compat::FolderWatch& watch, compat::NodeIndex& index) {
    const auto added = watch.add(index.folders());
    if (added.lost > lost_)
      warn(
          fmt::format("{} folders cannot be watched for changes: see inotify(7), "
                      "fs.inotify.max_user_watches",
                      added.lost));
    lost_ = added.lost;
    return added.any_new;
  }

  void loop(compat::FolderWatch& watch, compat::NodeIndex& index, compat::CompatServer& server,
            const Fd& metrics, std::size_t files) {
    Clock::time_point first_change{}, last_change{};
    Clock::time_point looked = Clock::now();
    bool changed = false;
    for (;;) {
      pollfd ready[] = {
          {signals_.get(), POLLIN, 0}, {watch.fd(), POLLIN, 0}, {metrics.get(), POLLIN, 0}};
      if (::poll(ready, 3, changed ? 20 : kLookEvery) < 0 && errno != EINTR)
        throw Error::from_errno("poll", "failed");
      const auto now = Clock::now();
      const bool told = (ready[1].revents & POLLIN) != 0 && watch.drain();
      const bool due = now - looked > std::chrono::milliseconds(kLookEvery);
      if (due) {
        looked = now;
        server.tidy();
      }
      if (told || (due && watch.look())) {
        last_change = now;
        if (!changed) first_change = now;
        changed = true;
      }
      if (changed && (now - last_change > kQuiet || now - first_change > kLongestBurst)) {
        index.invalidate();
        // A folder may have been read before it was watched: once more, then.
        changed = add_folders(watch, index);
        first_change = last_change = now;
      }
      if ((ready[2].revents & POLLIN) != 0)
        compat::answer_metrics(metrics.get(), compat::metrics_text(index, server, files));
      if ((ready[0].revents & POLLIN) != 0) return;
    }
  }

  Options options_;
  Fd signals_;
  std::size_t lost_ = 0;
};

}  // namespace

int compat_server(int argc, const char* const* argv) {
  set_program_name("compat-server");
  // The workers are our own children by fork and exec; gRPC's fork handlers would only stop them.
  ::setenv("GRPC_ENABLE_FORK_SUPPORT", "0", 0);
  // Its own log lines are no words for our users.
  ::setenv("GRPC_VERBOSITY", "NONE", 0);
  CLI::App app("Answer over gRPC whether this node has what an artifact's programs need.",
               "compat-server");
  Options options;
  add_options(app, options);
  forbid_empty_values(app);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  try {
    return Program(std::move(options)).run();
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

}  // namespace heddle
