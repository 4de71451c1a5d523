// SPDX-License-Identifier: MIT
//
// Compatibility checks a second against this node's index: in process on one core, and over gRPC on
// loopback, where client and server share the machine; and indexing its libraries.
#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <compat_v2.grpc.pb.h>
#include <compatibility.grpc.pb.h>
#include "base/child.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "bench/program.hpp"
#include "compat/artifact.hpp"
#include "compat/describe.hpp"
#include "compat/server/node_index.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::bench {
namespace {

namespace v1 = convergedcomputing::org::grpc::v1;
namespace v2 = ::heddle::compat::v2;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string stage;
  std::string work;
  unsigned clients = 8;
  unsigned seconds = 3;
};

double since_ms(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double thread_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Of all of a process's threads.
double process_cpu_s(pid_t pid) {
  clockid_t clock{};
  timespec now{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Calls `work` with 0, 1, ... for that many seconds of this thread's CPU time; how often a second
/// of it. What else the machine does at the time hardly counts.
double per_second(unsigned seconds, const std::function<void(std::size_t)>& work) {
  const double start = thread_cpu_s();
  std::size_t done = 0;
  while (thread_cpu_s() - start < seconds)
    for (int i = 0; i < 16; ++i) work(done++);
  return static_cast<double>(done) / (thread_cpu_s() - start);
}

class Bench {
 public:
  explicit Bench(Settings settings)
      : settings_(std::move(settings)),
        directory_(value_or_throw(
            TempDir::create("compat", settings_.work.empty()
                                          ? std::string()
                                          : std::filesystem::absolute(settings_.work).string()))),
        options_{.root = {},
                 .cache_dir = directory_.path() + "/index",
                 .worker_path = settings_.stage + "/libexec/heddle/elf-worker"} {}

  void run(Results& results) {
    results.attempt("compat.index", [&] { measure_indexing(results); });
    describe_programs();
    results.attempt("compat.in_process", [&] { measure_in_process(results); });
    results.attempt("compat.grpc", [&] { measure_grpc(results); });
  }

 private:
  void measure_indexing(Results& results) {
    std::size_t files = 0;
    const auto index_once = [&] {
      const auto start = Clock::now();
      files = compat::NodeIndex(options_).fill();
      return since_ms(start);
    };
    const double cold = index_once();
    const double warm = std::min(index_once(), index_once());
    results.add({"compat.index.libraries", static_cast<double>(files), "files"});
    results.add({"compat.index.cold", cold, "ms"});
    results.add({"compat.index.warm", warm, "ms"});
  }

  /// Every dynamic program of /usr/bin.
  void describe_programs() {
    CachedFacts facts(
        {.pool = {.worker_path = options_.worker_path}, .cache_dir = directory_.path() + "/facts"});
    auto node = value_or_throw(compat::NodeTarget::open(facts, "", {}));
    for (const auto& path : value_or_throw(compat::find_binaries(node, "", {"/usr/bin"}))) {
      auto program = compat::describe(node, facts, path);
      if (!program) continue;
      artifacts_.push_back({{std::move(*program)}});
      texts_.push_back(compat::to_json(artifacts_.back()));
    }
    if (texts_.empty()) throw Error("/usr/bin", "no programs to check");
  }

  void measure_in_process(Results& results) {
    compat::NodeIndex index(options_);
    for (const auto& artifact : artifacts_) index.check(artifact);  // libraries are read by now
    const auto n = artifacts_.size();
    results.add({"compat.in_process.programs", static_cast<double>(n), "artifacts"});
    results.add(
        {"compat.in_process.judged",
         per_second(settings_.seconds, [&](std::size_t i) { index.check(artifacts_[i % n]); }),
         "/s",
         {},
         20'000});
    // From JSON, as a judge does: parsing is most of it.
    results.add({"compat.in_process.new_json",
                 per_second(settings_.seconds,
                            [&](std::size_t i) {
                              index.check(value_or_throw(
                                  compat::parse_artifact(texts_[i % n], "artifact")));
                            }),
                 "/s"});
  }

  void measure_grpc(Results& results) {
    const auto program = settings_.stage + "/bin/compat-server";
    const auto log = directory_.path() + "/log";
    const auto token =
        test::write_text_file(directory_.path() + "/token", "0123456789abcdef\n", 0600);
    const Fd err = value_or_throw(open_file(log, O_WRONLY | O_CREAT | O_TRUNC));
    auto server = value_or_throw(spawn(program,
                                       {program, "--listen", "127.0.0.1:0", "--index",
                                        options_.cache_dir, "--grace", "0", "--token-file", token},
                                       {.fds = {{err.get(), 2}}}));
    std::string address;
    const bool listens = test::wait_until(std::chrono::seconds(60), [&] {
      const auto text = read_file(log).value_or("");
      const auto at = text.find("listening on ");
      const auto end = text.find(',', at);
      if (at == text.npos || end == text.npos) return false;
      address = text.substr(at + 13, end - at - 13);
      return true;
    });
    if (!listens) throw Error(program, "does not listen", read_file(log).value_or(""));
    const auto measure = [&](const char* name, auto&& call) {
      std::atomic<std::size_t> done{0}, failed{0};
      const auto first = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
      for (const auto& text : texts_) call(first, text);  // judged for the first time
      const auto start = Clock::now();
      const double cpu = process_cpu_s(server.pid()) + process_cpu_s(::getpid());
      std::vector<std::thread> threads;
      for (unsigned c = 0; c < settings_.clients; ++c)
        threads.emplace_back([&, c] {
          grpc::ChannelArguments own;
          own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
          const auto channel =
              grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own);
          for (std::size_t i = c; since_ms(start) < settings_.seconds * 1000.0; ++i)
            ++(call(channel, texts_[i % texts_.size()]) ? done : failed);
        });
      for (auto& thread : threads) thread.join();
      const auto rate = static_cast<double>(done) * 1000 / since_ms(start);
      if (failed > 0) throw Error(address, "checks failed", fmt::format("{}", failed.load()));
      const double used = process_cpu_s(server.pid()) + process_cpu_s(::getpid()) - cpu;
      const auto group = fmt::format("compat.grpc.{}.{}_connections", name, settings_.clients);
      results.add({group, rate, "/s", {}, 5000});
      // Of client and server together: what the machine has left over decides the rate.
      results.add({group + ".cpu", used * 1e6 / static_cast<double>(done), "us"});
    };
    measure("v1", [](const auto& channel, const std::string& text) {
      grpc::ClientContext context;
      context.AddMetadata("authorization", "Bearer 0123456789abcdef");
      v1::CompatRequest request;
      v1::Response response;
      request.set_payload(text);
      return v1::CompatibilityService::NewStub(channel)
          ->CheckCompatibility(&context, request, &response)
          .ok();
    });
    measure("v2", [](const auto& channel, const std::string& text) {
      grpc::ClientContext context;
      context.AddMetadata("authorization", "Bearer 0123456789abcdef");
      v2::CheckRequest request;
      v2::CheckResponse response;
      request.set_artifact(text);
      return v2::Compat::NewStub(channel)->Check(&context, request, &response).ok();
    });
    ::kill(server.pid(), SIGTERM);
    static_cast<void>(server.wait());
  }

  Settings settings_;
  TempDir directory_;
  compat::NodeIndexOptions options_;
  std::vector<compat::Artifact> artifacts_;
  std::vector<std::string> texts_;
};

}  // namespace

int compat_bench(int argc, char** argv) {
  set_program_name("compat_bench");
  ::setenv("GRPC_ENABLE_FORK_SUPPORT", "0", 0);
  Settings settings;
  CLI::App app("Measures compatibility checks and the index they are made against");
  app.add_option("--stage", settings.stage, "where heddle is installed")->required();
  app.add_option("--work", settings.work, "a directory for the index, on a local file system");
  app.add_option("--clients", settings.clients, "connections over gRPC");
  app.add_option("--seconds", settings.seconds, "for each figure");
  return run_program(app, argc, argv, [&](Results& results) { Bench(settings).run(results); });
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::compat_bench(argc, argv); }
