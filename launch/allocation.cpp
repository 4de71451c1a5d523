// SPDX-License-Identifier: MIT
#include "launch/allocation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/run_program.hpp"
#include "base/task_pool.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "launch/step_check.hpp"
#include "resolver/map/map_reader.hpp"
#include "ship/engine.hpp"

namespace heddle::launch {
namespace {

using Words = std::vector<std::string>;
constexpr std::string_view kHere = "heddle-node ";
constexpr const char* kMostSeconds = "60";
constexpr std::size_t kMostNamed = 20;
/// Should srun not end then.
constexpr std::chrono::seconds kCheckTime{90};
constexpr std::chrono::seconds kNamesTime{10};
/// What names the nodes of a job outside of Slurm: files of PBS, LSF, Grid Engine, OAR and Cobalt,
/// and the launchers' own.
constexpr const char* kNodeFiles[] = {"PBS_NODEFILE",
                                      "LSB_DJOB_HOSTFILE",
                                      "PE_HOSTFILE",
                                      "OAR_NODEFILE",
                                      "COBALT_NODEFILE",
                                      "HYDRA_HOST_FILE",
                                      "I_MPI_HYDRA_HOST_FILE",
                                      "OMPI_MCA_orte_default_hostfile",
                                      "PRTE_MCA_prte_default_hostfile"};
constexpr std::size_t kLargestNodeFile = std::size_t{16} << 20;
/// The launchers' remote shells.
constexpr const char* kShells[] = {"HYDRA_LAUNCHER_EXEC", "OMPI_MCA_plm_rsh_agent",
                                   "PRTE_MCA_plm_ssh_agent"};
/// For one node, and for all: what has not answered then is not known.
constexpr std::chrono::seconds kShellTime{6};
constexpr std::chrono::seconds kShellsTime{10};
/// So many nodes that do not answer, when none has answered: the shell reaches none.
constexpr int kMostSilent = 4;

Result<std::string> own_program() {
  std::string bin = TRY(own_program_dir());
  return bin + "/fs-launch";
}

std::string first_of(const Words& names) {
  for (const auto& name : names)
    if (const char* value = std::getenv(name.c_str())) return value;
  return "";
}

std::string nodes_of_component(long i) {
  return first_of({fmt::format("SLURM_JOB_NODELIST_HET_GROUP_{}", i),
                   fmt::format("SLURM_JOB_NODELIST_PACK_GROUP_{}", i)});
}

std::string nodes_list() {
  std::string out;
  for (long i = 0; i < het_components(); ++i) out += (i == 0 ? "" : ",") + nodes_of_component(i);
  return out.empty() ? first_of({"SLURM_JOB_NODELIST", "SLURM_NODELIST"}) : out;
}

/// Of all components, if there are several, which may share nodes: each step of ours is on all.
long asked_nodes(long count) {
  if (het_components() < 2) return count;
  const auto names = slurm_nodes(nodes_list());
  return static_cast<long>(std::set(names.begin(), names.end()).size());
}

/// If the job's own shell, or batch script, runs this: not a task, which may start no step. Else 0.
long nodes_of_job() {
  const char* count = std::getenv("SLURM_JOB_NUM_NODES");
  const char* step = std::getenv("SLURM_STEP_ID");
  // salloc's interactive step: slurm.h, SLURM_INTERACTIVE_STEP.
  const bool is_task = step && std::string_view(step) != "4294967290";
  if (!std::getenv("SLURM_JOB_ID") || is_task) return 0;
  return asked_nodes(count ? std::strtol(count, nullptr, 10) : 0);
}

struct CheckAnswer {
  std::string node;
  std::string why;  ///< it cannot guide; empty: it can
};

/// Of a line of check_node().
CheckAnswer answer_in(const std::string& line) {
  CheckAnswer out;
  std::istringstream parts(line.substr(kHere.size()));
  parts >> out.node;
  std::getline(parts >> std::ws, out.why);
  out.why = escape_for_terminal(out.why);
  return out;
}

/// The nodes of a job outside of Slurm, but this one.
struct NamedNodes {
  std::string source;  ///< what names them
  Words names;
};

/// Adds the first word of each line, until a colon. False: the file cannot be read.
bool add_names(const std::string& path, std::set<std::string>& names) {
  const auto file = open_regular(path);
  const auto text = file ? read_all(file->get(), path, kLargestNodeFile)
                         : Result<std::string>(fail(file.error()));
  if (!text) return false;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find_first_of(":#")));
    if (std::string name; words >> name) names.insert(name);
  }
  return true;
}

/// Those of the launcher's line, else of the first of kNodeFiles that can be read. A name that a
/// remote shell could take for an option is left out.
NamedNodes named_nodes(const LineNodes& line) {
  std::set<std::string> names(line.names.begin(), line.names.end());
  for (const auto& path : line.files) add_names(path, names);
  std::string source = names.empty() ? "" : "the launcher's line";
  for (const char* variable : kNodeFiles)
    if (const char* path = std::getenv(variable); path && names.empty() && add_names(path, names))
      source = variable;
  const auto own = host_name();
  const auto is_other = [&](const std::string& name) {
    return ship::is_plain_name(name) && name != own && name != own.substr(0, own.find('.')) &&
           name != "localhost";
  };
  NamedNodes out{source, {}};
  std::ranges::copy_if(names, std::back_inserter(out.names), is_other);
  return out;
}

/// The launcher's: `given` on its line, or in the environment.
Words remote_shell(const std::string& given) {
  Words out = {"ssh"};
  Words lists = {given};
  for (const char* variable : kShells)
    if (const char* value = std::getenv(variable)) lists.emplace_back(value);
  for (const auto& list : lists) {
    // Open MPI's is a list: "ssh : rsh".
    if (auto words = ship::split_words(list.substr(0, list.find(':'))); !words.empty()) {
      out = std::move(words);
      break;
    }
  }
  // It must not ask for a password.
  if (out[0].substr(out[0].rfind('/') + 1) == "ssh")
    for (const char* word : {"-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"})
      out.emplace_back(word);
  return out;
}

/// Asks the nodes of a job by a remote shell.
class NodeQuestions {
 public:
  NodeQuestions(Words shell, std::string shells_path, std::string program)
      : shell_(std::move(shell)), path_(std::move(shells_path)), program_(std::move(program)) {}

  /// Why the node cannot guide; empty: it can, or is not known. A node that the shell does not
  /// reach is left to the launcher, which may have another way.
  std::string ask(const std::string& node) {
    const auto out = run(node, {quote_if_needed(program_), kCheckOption});
    if (!out) return "";
    std::istringstream lines(out->out);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(kHere)) return answer_in(line).why;
    // Of a shell that cannot execute the program, if there is one.
    const bool has_none = out->status == 126 || out->status == 127;
    if (!has_none) return "";
    const auto probe = run(node, {"echo", "heddle"});
    return probe && probe->out.find("heddle") != std::string::npos ? "has no " + program_ : "";
  }

 private:
  static std::string quote_if_needed(const std::string& text) {
    return is_plain(text) ? text : quote_for_shell(text);
  }
  std::optional<Output> run(const std::string& node, const Words& command) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
    if (left.count() <= 0 || (silent_ >= kMostSilent && answered_ == 0)) return {};
    Words words = shell_;
    words.push_back(node);
    words.insert(words.end(), command.begin(), command.end());
    auto done = run_and_read(path_, words,
                             {.limit = std::min<std::chrono::milliseconds>(left, kShellTime),
                              .messages = Messages::dropped});
    const bool answers = done && done->status != 255;  // 255: ssh cannot connect
    ++(answers ? answered_ : silent_);
    if (!answers) return {};
    return std::move(*done);
  }

  const Words shell_;
  const std::string path_, program_;
  const std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + kShellsTime;
  std::atomic<int> silent_ = 0, answered_ = 0;
};

/// Failure: nodes that cannot guide.
Result<void> check_named_nodes(const std::string& program, const LineNodes& line) {
  const auto nodes = named_nodes(line);
  if (nodes.names.empty()) return {};
  const auto shell = remote_shell(line.shell);
  const auto path = find_program(shell[0]);
  if (!path) return {};
  NodeQuestions questions(shell, *path, program);
  Words wrong(nodes.names.size());
  {
    TaskPool pool;
    for (std::size_t i = 0; i < wrong.size(); ++i)
      pool.add([&, i] { wrong[i] = questions.ask(nodes.names[i]); });
    pool.wait();
  }
  std::string all;
  std::size_t named = 0;
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    if (wrong[i].empty()) continue;
    if (++named > kMostNamed) {
      all += "; ...";
      break;
    }
    all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", nodes.names[i], wrong[i]);
  }
  if (all.empty()) return {};
  return fail(nodes.source, "not all of these nodes can guide", all,
              "install heddle at one path of all nodes");
}

}  // namespace

long het_components() {
  const char* size = std::getenv("SLURM_HET_SIZE");
  return size ? std::strtol(size, nullptr, 10) : 0;
}

std::vector<std::string> slurm_nodes(const std::string& list) {
  const auto scontrol = find_program("scontrol");
  const auto names = scontrol ? run_and_read(*scontrol, {"scontrol", "show", "hostnames", list},
                                             {.limit = kNamesTime, .messages = Messages::dropped})
                              : tl::unexpected(scontrol.error());
  std::istringstream words(names ? names->out : "");
  return {std::istream_iterator<std::string>(words), {}};
}

Result<std::string> run_on_slurm_nodes(long count, const Words& words) {
  const std::string program = TRY(own_program());
  Words all = {"timeout", kMostSeconds};
  const auto srun = ship::own_slurm("srun");
  all.insert(all.end(), srun.begin(), srun.end());
  const auto add = [&](std::size_t nodes, const Words& group) {
    const auto number = std::to_string(nodes);
    // As fs-ship's step: beside running steps, without a share of what they hold.
    all.insert(all.end(), {"--overlap", "--mem=0", "--mpi=none", "--prolog=none", "--epilog=none",
                           "--quiet", "--no-kill", "--kill-on-bad-exit=0", "--ntasks-per-node=1",
                           "-N", number, "-n", number});
    all.insert(all.end(), group.begin(), group.end());
    all.push_back(program);
    all.insert(all.end(), words.begin(), words.end());
  };
  const long components = het_components();
  if (components < 2) add(static_cast<std::size_t>(count), {});
  for (long i = 0; components > 1 && i < components; ++i) {
    if (i > 0) all.emplace_back(":");
    add(slurm_nodes(nodes_of_component(i)).size(), {fmt::format("--het-group={}", i)});
  }
  const auto timeout = TRY(find_program(all[0]));
  return TRY(run_and_read(timeout, all, {.limit = kCheckTime, .messages = Messages::dropped})).out;
}

Result<void> check_slurm_nodes(long count) {
  const std::string program = TRY(own_program());
  const auto text = TRY(run_on_slurm_nodes(count, {kCheckOption}));
  count = asked_nodes(count);
  std::set<std::string> here;
  std::string wrong;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(kHere)) continue;
    const auto [node, why] = answer_in(line);
    if (here.insert(node).second && !why.empty())
      wrong += fmt::format("{}{}: {}", wrong.empty() ? "" : "; ", node, why);
  }
  if (!wrong.empty()) return fail("", wrong);
  if (static_cast<long>(here.size()) == count) return {};
  std::vector<std::string> missing;
  for (auto& name : slurm_nodes(nodes_list()))
    if (!here.contains(name.substr(0, name.find('.')))) missing.push_back(std::move(name));
  return fail(program, "cannot be executed on all nodes",
              fmt::format("{} of {} do not answer{}{}", count - static_cast<long>(here.size()),
                          count, missing.empty() ? "" : ": ", fmt::join(missing, ",")),
              "install heddle at one path of all nodes");
}

Result<std::string> ship_bundle(const std::string& map, const std::string& engine) {
  const std::string bin = TRY(own_program_dir());
  const auto program = bin + "/fs-ship";
  auto path =
      TRY(run_and_read(program, {program, "-q", "--via", engine, "--", map}, {.limit = kNoLimit}))
          .out;
  while (path.ends_with('\n')) path.pop_back();
  if (path.empty()) return fail(map, "cannot be copied to the nodes");
  return path;
}

Result<void> prepare_nodes(LaunchSettings& settings, const LineNodes& line,
                           const NodeOptions& options) {
  std::string id;
  if (!settings.map.empty())
    if (const auto bundle = TRY(MapReader::open(settings.map)).bundle()) id = bundle->id.hex();
  if (id.empty() && !options.ship.empty() && options.ship != "no")
    warn(Error(settings.map, "--ship: is no bundle", "the nodes read it where it is",
               "fs-resolve pack MAP -o BUNDLE"));
  const bool is_copied = !id.empty() && options.ship != "no";
  const auto engine = is_copied ? (options.ship.empty() ? "sbcast" : options.ship) : "";
  const long count = nodes_of_job();
  // A rank's nodes are those of the launcher that started it, which were checked then.
  const bool is_first = count == 0 && !rank_from_environment();
  if (is_first && line.may_be_srun && find_program("srun"))
    plan_step_check(settings, engine, is_copied ? id : "");
  // sbcast does not copy to several jobs.
  const bool copies = count > 1 && is_copied && het_components() < 2;
  if (options.dry_run) {
    std::string text;
    if (count > 1) text = fmt::format("# srun asks the {} nodes whether they have heddle\n", count);
    if (copies) text += fmt::format("# fs-ship copies the bundle to them: {}\n", engine);
    return write_all(STDOUT_FILENO, text, "stdout");
  }
  const std::string program = TRY(own_program());
  if (is_first) TRY(check_named_nodes(program, line));
  if (count < 2) return {};
  TRY(check_slurm_nodes(count));
  if (!copies) return {};
  auto path = ship_bundle(settings.map, engine);
  if (path)
    settings.map = std::move(*path);
  else
    warn(path.error());
  return {};
}

int check_node() {
  const auto library = audit_library_path();
  const auto node = host_name();
  const auto line =
      fmt::format("{}{}{}\n", kHere, node.substr(0, node.find('.')),
                  library ? "" : " " + escape_for_terminal(library.error().message()));
  value_or_throw(write_all(STDOUT_FILENO, line, "stdout"));
  return exit_done;
}

}  // namespace heddle::launch
