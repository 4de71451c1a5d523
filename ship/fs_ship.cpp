// SPDX-License-Identifier: MIT
//
// The program fs-ship: copies one sealed bundle to each node of a job, by a program that the site
// has already (sbcast, ...), and checks it there. No bytes of the bundle pass through heddle.
//
//     round: start `fs-ship --receive` once on each node without the bundle (srun)
//            the nodes that answer "ready" get it from the engine, the others are dropped
//            each checks what it has received, and answers
//
// sbcast stops everywhere when one node fails, and leaves partial files; so nodes that do not
// answer, or have no room, are left out before it starts. Failed nodes are retried alone.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "base/run_main.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "ship/bundle/bundle_file.hpp"
#include "ship/bundle/frame.hpp"
#include "ship/job_directory.hpp"
#include "ship/node_step.hpp"
#include "ship/receive_bundle.hpp"

namespace heddle::ship {
namespace {

using Clock = std::chrono::steady_clock;
using State = Answer::State;

constexpr int kRounds = 3;
constexpr std::chrono::seconds kFirstPause{1};
/// For the other half of the nodes, besides as long as the first half took.
constexpr std::chrono::seconds kMoreTime{5};
/// Bytes a second that a node checks at least.
constexpr std::uint64_t kSlowestCheck = 50'000'000;
constexpr std::size_t kMostJobs = 5000;  ///< in an argument of 128 KiB; else nothing is removed
constexpr const char* kRegistry = "registry:";
/// squeue(1), JOB STATE CODES.
constexpr std::string_view kEnded[] = {"BOOT_FAIL", "CANCELLED", "COMPLETED",     "DEADLINE",
                                       "FAILED",    "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"};

struct Options {
  std::string bundle, via = "sbcast", launch, to = kNodeDirectory, job, json;
  std::vector<std::string> nodes;
  std::size_t min_nodes = 0;  ///< 0: all
  unsigned timeout = 60;
  unsigned copy_timeout = 0;  ///< 0: copy_time()
  bool quiet = false;
  bool receive = false;
  ReceiveOptions received;
};

void add_options(CLI::App& app, Options& o) {
  app.set_version_flag("--version", "fs-ship (heddle) " HEDDLE_VERSION);
  set_usage(app, "fs-ship [OPTIONS] BUNDLE");
  app.footer(
      "Prints the path of the bundle on the nodes, for fs-gen --map. Run it within an allocation; "
      "see fs-ship(1).");
  app.add_option("--via", o.via,
                 "What copies: sbcast (default), shared (no copy, only the check), "
                 "registry:REFERENCE, or a command")
      ->type_name("ENGINE");
  app.add_option("--to", o.to, "A local directory of each node (default: /tmp)")->type_name("DIR");
  app.add_option("--min-nodes", o.min_nodes, "Succeed if this many nodes have it (default: all)")
      ->type_name("N");
  app.add_option("--timeout", o.timeout,
                 "Give up on nodes that do not answer for so long (default: 60)")
      ->type_name("SECONDS");
  app.add_option("--copy-timeout", o.copy_timeout,
                 "End an engine that takes longer (default: 60, and 1 for each 10 MB)")
      ->type_name("SECONDS")
      ->check(number_from(1U));
  app.add_option("--launch", o.launch,
                 "Without Slurm: a command that starts the words after it once a node")
      ->type_name("COMMAND");
  app.add_option("--nodes", o.nodes, "The nodes (default: those of the Slurm job)")
      ->type_name("NODE,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--job", o.job, "The job's id (default: $SLURM_JOB_ID)")->type_name("ID");
  app.add_option("--json", o.json, "Write a report in JSON to FILE; - is standard output")
      ->type_name("FILE");
  app.add_flag("-q,--quiet", o.quiet, "Report failures only");
  app.add_option("BUNDLE", o.bundle, "A bundle of fs-resolve pack")->type_name("");
  // What fs-ship starts on each node.
  app.add_flag("--receive", o.receive)->group("");
  app.add_option("--id", o.received.id)->group("");
  app.add_option("--size", o.received.size)->group("");
  app.add_option("--live", o.received.live)->delimiter(',')->group("");
  app.add_option("--part", o.received.part)->group("");
  app.add_flag("--shared", o.received.shared)->group("");
}

struct Node {
  std::string name;
  bool ok = false;
  std::string source = "none";
  std::string error;
  int tries = 0;
  std::chrono::milliseconds time{0};  ///< until it had the bundle
};

/// Up to the first dot: the launcher's list may have other domains.
std::string short_name(const std::string& name) { return name.substr(0, name.find('.')); }

class Shipment {
 public:
  explicit Shipment(Options options) : o_(std::move(options)) {}

  int run() {
    prepare();
    if (o_.min_nodes > nodes_.size())
      return usage_error("fs-ship",
                         fmt::format("--min-nodes {} of {} nodes", o_.min_nodes, nodes_.size()));
    for (int round = 0; round < kRounds; ++round) {
      const auto todo = missing();
      if (todo.empty()) break;
      if (round > 0) std::this_thread::sleep_for(kFirstPause * (1 << (round - 1)));
      ship_to(todo);
    }
    const auto most = o_.min_nodes == 0 ? nodes_.size() : o_.min_nodes;
    const bool enough = nodes_.size() - missing().size() >= most;
    print(enough);
    return enough ? exit_done : exit_no;
  }

 private:
  using NodeList = std::vector<Node*>;

  void prepare() {
    std::error_code failed;
    source_ = std::filesystem::canonical(o_.bundle, failed).string();
    if (failed) throw Error::from_errno(o_.bundle, "cannot be read", failed.value());
    const Fd file = value_or_throw(open_regular(source_));
    const auto bundle = value_or_throw(BundleFile::read(file.get(), o_.bundle));
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) throw Error::from_errno(o_.bundle, "cannot be read");
    // The copies belong to root, which uses no map that others may write.
    if (const auto trusted = check_trusted_file(source_); is_systems_root() && !trusted)
      throw Error::with_code(EPERM, source_, "root does not use this bundle",
                             trusted.error().message(),
                             "it chooses the libraries that are run: if you trust it, keep a copy "
                             "in a directory that only root may write to");
    // A copy is checked by its node; this one only here, since many nodes would read all of it.
    if (is_shared()) value_or_throw(check_frames(file.get(), o_.bundle, bundle.index));
    id_ = bundle.index.id.hex();
    size_ = static_cast<std::uint64_t>(status.st_size);

    const char* job = std::getenv("SLURM_JOB_ID");
    is_slurm_ = job != nullptr && o_.launch.empty();
    if (o_.job.empty() && job != nullptr) o_.job = job;
    if (o_.nodes.empty() && is_slurm_)
      o_.nodes = value_or_throw(words_of({"scontrol", "show", "hostnames"}));
    if (o_.job.empty() || o_.nodes.empty() || (!is_slurm_ && o_.launch.empty()))
      throw Error("", "not within an allocation", "SLURM_JOB_ID is not set",
                  "run it in the batch script, or give --launch, --nodes and --job");
    std::set<std::string> names;
    for (const auto& name : o_.nodes) {
      if (!is_plain_name(name)) throw Error(name, "not a node's name");
      // Answers are distinguished by it.
      if (!names.insert(short_name(name)).second) throw Error(name, "named twice");
      nodes_.push_back({name});
    }
    if (is_slurm_) live_ = live_jobs();
  }

  /// All of the user's that have not ended, also suspended ones and those of hidden partitions;
  /// without the user's own settings of squeue(1), which may leave jobs out.
  std::vector<std::string> live_jobs() const {
    Words words = {"env", "-u", "SLURM_CLUSTERS"};
    for (char** each = ::environ; *each != nullptr; ++each)
      if (const std::string entry = *each; entry.starts_with("SQUEUE_"))
        words.insert(words.end(), {"-u", entry.substr(0, entry.find('='))});
    words.insert(words.end(), {"squeue", "-h", "-a", "-t", "all", "--local", "-u",
                               std::to_string(::geteuid()), "-o", "%A %T"});
    const auto list = words_of(words).value_or(Words());
    std::vector<std::string> out;
    for (std::size_t i = 0; i + 1 < list.size(); i += 2)
      if (std::ranges::count(kEnded, list[i + 1]) == 0) out.push_back(list[i]);
    return out;
  }

  Result<Words> words_of(const Words& words) const {
    return words_printed_by(words, std::chrono::seconds(o_.timeout));
  }

  NodeList missing() {
    NodeList out;
    for (auto& node : nodes_)
      if (!node.ok) out.push_back(&node);
    return out;
  }

  bool is_shared() const { return o_.via == "shared"; }
  std::string directory() const { return job_directory(o_.to, o_.job); }

  std::string path() const { return is_shared() ? source_ : bundle_path(directory(), id_); }

  /// The command that starts what follows it once on each of `nodes`.
  Words launcher(const NodeList& nodes) const {
    std::vector<std::string> names;
    for (const auto* node : nodes) names.push_back(node->name);
    const auto list = fmt::format("{}", fmt::join(names, ","));
    const auto count = std::to_string(nodes.size());
    if (!is_slurm_) return fill_in(split_words(o_.launch), {{"nodes", list}, {"count", count}});
    // Beside running steps, without a share of what they hold; a dead node ends no other's
    // receiver.
    Words words = own_slurm("srun");
    words.insert(words.end(),
                 {"--overlap", "--mem=0", "--mpi=none", "--prolog=none", "--epilog=none",
                  "--no-kill", "--kill-on-bad-exit=0", "--quiet", "--input=all", "--output=all",
                  "--error=all", "--ntasks-per-node=1", "-N", count, "-n", count});
    if (nodes.size() == nodes_.size()) return words;
    // A list of all nodes but few may exceed the kernel's limit of an argument, 128 KiB.
    std::vector<std::string> others;
    for (const auto& node : nodes_)
      if (std::ranges::count(names, node.name) == 0) others.push_back(node.name);
    const bool by_others = others.size() < names.size();
    words.push_back(by_others ? "-x" : "-w");
    words.push_back(fmt::format("{}", fmt::join(by_others ? others : names, ",")));
    return words;
  }

  std::string part() const { return fmt::format("{}.part.{}-{}", id_, ::getpid(), tries_); }

  Words receiver() const {
    Words words = {own_program_,          "--receive", "--id", id_,     "--size",
                   std::to_string(size_), "--to",      o_.to,  "--job", o_.job};
    words.insert(words.end(), {"--part", part()});
    if (is_shared()) words.emplace_back("--shared");
    if (!live_.empty() && live_.size() < kMostJobs)
      words.insert(words.end(), {"--live", fmt::format("{}", fmt::join(live_, ","))});
    words.insert(words.end(), {"--", source_});
    return words;
  }

  /// What copies to `nodes`, all tasks of `step`.
  Words engine(const NodeList& nodes, const std::string& step) const {
    Words words;
    if (o_.via == "sbcast") {
      words = sbcast();
    } else if (o_.via.starts_with(kRegistry)) {
      words = launcher(nodes);
      const auto program = directory_of(own_program_) + "/fs-resolve";
      words.insert(words.end(), {program, "pull", "--no-cache", "-o", "{dst}",
                                 o_.via.substr(std::string(kRegistry).size())});
    } else {
      words = split_words(o_.via);
    }
    std::vector<std::string> names;
    for (const auto* node : nodes) names.push_back(node->name);
    return fill_in(words, {{"src", source_},
                           {"dst", directory() + "/" + part()},
                           {"nodes", fmt::format("{}", fmt::join(names, ","))},
                           {"count", std::to_string(names.size())},
                           {"step", step}});
  }

  /// Gathers an answer of each of `nodes`. Result: those that are ready.
  NodeList gather(NodeStep& step, const NodeList& nodes, std::string& step_id) {
    NodeList ready;
    std::map<std::string, Node*> silent;
    for (auto* node : nodes) {
      node->error = "does not answer";
      silent[short_name(node->name)] = node;
    }
    const auto began = Clock::now();
    auto end = began + std::chrono::seconds(o_.timeout + size_ / kSlowestCheck);
    step.gather(end, [&](const Answer& answer) {
      const auto at = silent.find(short_name(answer.node));
      if (at == silent.end()) return false;
      auto& node = *at->second;
      node.ok = answer.state == State::ok;
      node.source = answer.source;
      node.error = answer.error;
      node.time = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_);
      if (answer.state == State::ready) ready.push_back(&node);
      if (!answer.step.empty()) step_id = answer.step;
      silent.erase(at);
      // A dead node must not hold up the others for the whole time.
      if (silent.size() * 2 <= nodes.size())
        end = std::min(end, Clock::now() + kMoreTime + (Clock::now() - began));
      return silent.empty();
    });
    return ready;
  }

  void ship_to(NodeList nodes) {
    for (auto* node : nodes) {
      ++node->tries;
      node->source = "none";
    }
    // If some are not ready, another step of the others alone.
    for (int attempt = 0; attempt < 3 && !nodes.empty(); ++attempt) {
      ++tries_;
      auto words = launcher(nodes);
      const auto more = receiver();
      words.insert(words.end(), more.begin(), more.end());
      auto step = NodeStep::start(words);
      if (!step) throw std::move(step.error());
      std::string id;
      auto ready = gather(*step, nodes, id);
      if (ready.size() < nodes.size()) {
        step->stop();
        nodes = std::move(ready);
        continue;
      }
      const auto limit =
          o_.copy_timeout > 0 ? std::chrono::seconds(o_.copy_timeout) : copy_time(size_);
      const auto copied = run_engine(engine(ready, id), limit);
      if (!copied && copied.error().code() != ETIMEDOUT) throw copied.error();
      if (!copied) warn(copied.error());
      step->go();
      gather(*step, ready, id);
      step->stop();
      return;
    }
  }

  void print(bool enough) {
    const auto had = nodes_.size() - missing().size();
    const auto whole = std::chrono::duration<double>(Clock::now() - begin_).count();
    if (!o_.quiet || !enough)
      say(fmt::format("{} of {} nodes have {} ({} bytes) after {:.1f} s, by {}", had, nodes_.size(),
                      escape_for_terminal(o_.bundle), size_, whole, escape_for_terminal(o_.via)));
    std::map<std::string, std::string> failures;  // nodes that failed alike in one line
    for (const auto& node : nodes_) {
      if (node.ok) continue;
      auto& names = failures[escape_for_terminal(node.error) +
                             (node.source == "shared" ? "; reads " + escape_for_terminal(source_)
                                                      : "; has no bundle")];
      names += (names.empty() ? "" : ",") + node.name;
    }
    for (const auto& [why, names] : failures) say(names + ": " + why);
    if (o_.json != "-") fmt::print("{}\n", path());
    if (o_.json.empty()) return;
    nlohmann::json list = nlohmann::json::array();
    for (const auto& node : nodes_)
      list.push_back({{"node", node.name},
                      {"ok", node.ok},
                      {"source", node.source},
                      {"ms", node.time.count()},
                      {"tries", node.tries},
                      {"error", node.ok ? "" : to_json_text(node.error)}});
    const nlohmann::json out = {{"path", to_json_text(path())},
                                {"id", id_},
                                {"size", size_},
                                {"via", to_json_text(o_.via)},
                                {"seconds", whole},
                                {"enough", enough},
                                {"nodes", list}};
    value_or_throw(write_output(o_.json, out.dump(2) + "\n"));
  }

  Options o_;
  const Clock::time_point begin_ = Clock::now();
  const std::string own_program_ = value_or_throw(own_program_dir()) + "/fs-ship";
  std::string source_;
  std::string id_;
  std::uint64_t size_ = 0;
  bool is_slurm_ = false;
  int tries_ = 0;  ///< started steps
  std::vector<std::string> live_;
  std::vector<Node> nodes_;
};

int run(int argc, char** argv) {
  Options o;
  CLI::App app("Copies a bundle to each node of a job", "fs-ship");
  add_options(app, o);
  forbid_empty_values(app);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  const auto usage = [](const std::string& what) { return usage_error("fs-ship", what); };
  if (o.bundle.empty()) return usage("no BUNDLE given");
  if (!o.job.empty() && !is_plain_name(o.job)) return usage("'" + o.job + "' is not a job's id");
  if (!o.to.starts_with('/')) return usage("--to needs an absolute path");
  if (!o.receive) {
    const bool known = o.via == "sbcast" || o.via == "shared" || o.via.starts_with(kRegistry);
    if (o.via == kRegistry) return usage("--via registry: needs HOST/REPOSITORY[:TAG]");
    if (!known && o.via.find("{dst}") == o.via.npos)
      return usage("--via '" + o.via + "' is no engine, and no command with {dst}");
    if (o.via == "sbcast" && !o.launch.empty()) return usage("sbcast needs Slurm: give --via");
    return Shipment(std::move(o)).run();
  }
  o.received.source = o.bundle;
  o.received.to = o.to;
  o.received.job = o.job;
  return receive_bundle(o.received);
}

}  // namespace
}  // namespace heddle::ship

int main(int argc, char** argv) {
  return heddle::run_main("fs-ship", [&] { return heddle::ship::run(argc, argv); });
}
