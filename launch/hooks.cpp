// SPDX-License-Identifier: MIT
#include "launch/hooks.hpp"

#include <fmt/ranges.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/child.hpp"
#include "base/content_hash.hpp"
#include "base/find_program.hpp"
#include "base/open_regular.hpp"
#include "base/rank_mark.hpp"
#include "base/run_directory.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "resolver/elf/cached_facts.hpp"

namespace heddle::launch {
namespace {

constexpr const char* kAuditFile = "/libheddle-audit.so";

/// A parameter of a launcher that puts words before each rank's. Variables come before the
/// launcher's files (mca_base_var.c), which a hook of a site's is in, so ours would hide it.
struct AgentHook {
  const char* variable;
  const char* parameter;
  const char* list;    ///< the variable that names the files, separated by commas
  const char* user;    ///< else below HOME
  const char* system;  ///< and in the installation's etc
};
constexpr AgentHook kAgentHooks[] = {
    {"OMPI_MCA_orte_fork_agent", "orte_fork_agent", "OMPI_MCA_mca_base_param_files",
     "/.openmpi/mca-params.conf", "/openmpi-mca-params.conf"},
    {"PRTE_MCA_odls_base_exec_agent", "odls_base_exec_agent", "PRTE_MCA_mca_base_param_files",
     "/.prte/mca-params.conf", "/prte-mca-params.conf"}};
constexpr std::size_t kLargestFile = std::size_t{1} << 20;
constexpr const char* kRemote = "ranks on other nodes";
constexpr const char* kExtends = "set LD_AUDIT before fs-launch: it is extended";
constexpr std::string_view kOurHook = "/usr/bin/env LD_AUDIT=";

bool is_ours(const std::string& hook) {
  return hook.starts_with(kOurHook) &&
         hook.find(std::string(" ") + kLaunchVariable + "=") != hook.npos;
}

/// What keeps ranks from heddle: a note, but a failure where they would run outside of their image.
class Losses {
 public:
  Losses(bool has_image, std::vector<std::string>& notes) : has_image_(has_image), notes_(notes) {}
  /// `ranks`: whose loss it is; `what` of `subject` causes it.
  Result<void> add(const std::string& subject, const std::string& what, const std::string& ranks,
                   const std::string& hint) {
    if (has_image_) return fail(subject, what, ranks + " would run outside of the image", hint);
    notes_.push_back(fmt::format("{}: {}: {} run unguided{}{}", subject, what, ranks,
                                 hint.empty() ? "" : "; ", hint));
    return {};
  }

 private:
  bool has_image_;
  std::vector<std::string>& notes_;
};

/// The file that sets the parameter of `hook` for the launcher at `program`; empty: none is found.
std::string file_with(const AgentHook& hook, const std::string& program) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  std::vector<std::string> files;
  std::istringstream list(variable(hook.list));
  for (std::string file; std::getline(list, file, ',');) files.push_back(file);
  if (files.empty()) {
    files = {variable("HOME") + hook.user, std::string("/etc") + hook.system,
             std::string("/etc/openmpi") + hook.system};
    std::error_code error;
    const auto real = std::filesystem::canonical(program, error);
    for (const auto& prefix : {variable("OPAL_PREFIX"), real.parent_path().parent_path().string()})
      if (!prefix.empty()) files.push_back(prefix + "/etc" + hook.system);
  }
  for (const auto& path : files) {
    const auto file = open_regular(path);
    std::istringstream lines(file ? read_all(file->get(), path, kLargestFile).value_or("") : "");
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line.substr(0, line.find('=')));
      std::string name;
      if (line.find('=') != line.npos && words >> name && name == hook.parameter) return path;
    }
  }
  return "";
}

/// The installation: of a path that launchers would split or change, a link in a directory of the
/// user's alone, below the cache, which nodes usually share. Where that has such a path too the
/// link is this node's, a loss.
Result<std::string> plain_prefix(Losses& losses) {
  const std::string bin = TRY(own_program_dir());
  const auto prefix = bin.substr(0, bin.rfind('/'));
  if (is_plain(prefix)) return prefix;
  const auto parent = default_cache_dir();
  const auto cache = parent + "/launch";
  const bool is_usable = !parent.empty() && is_plain(cache);
  const auto directory = TRY(is_usable ? RunDirectory::open_at(cache) : RunDirectory::open());
  const auto link = directory.path() + "/" + hash_bytes(prefix).hex().substr(0, 16);
  if (!is_plain(link))
    return fail(prefix, "cannot be given to a launcher", "its path has odd characters",
                "install heddle at a path of letters, digits, '-', '_' and '.'");
  if (!is_usable)
    TRY(losses.add(prefix,
                   parent.empty() ? "launchers take no such path, and there is no cache"
                                  : "launchers take no such path, nor the cache's",
                   kRemote, "XDG_CACHE_HOME=DIR"));
  if (::symlink(prefix.c_str(), link.c_str()) != 0 && errno != EEXIST)
    return fail_errno(link, "cannot make a link");
  return link;
}

bool is_srun(const std::vector<std::string>& command) {
  return command[0].substr(command[0].rfind('/') + 1) == "srun";
}

bool is_hydra(const std::string& program) {
  std::error_code error;
  return std::filesystem::canonical(program, error).filename().string().find("hydra") !=
         std::string::npos;
}

/// The LD_AUDIT that `command` sets for ranks by -x of mpirun, whose ranks then get the hook's, so
/// that it has to be in that; empty: none. hydra's options come after the hooks: a loss. An option
/// of the same name after the program is the program's: it is taken for the launcher's.
Result<std::string> audit_of(const std::vector<std::string>& command, Losses& losses) {
  constexpr std::string_view kSet = "LD_AUDIT=";
  std::string out;
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string &word = command[i], next = i + 1 < command.size() ? command[i + 1] : "";
    if (word == "-x" && next.starts_with(kSet)) out = next.substr(kSet.size());
    if ((word == "-env" || word == "-genv") && next == "LD_AUDIT")
      TRY(losses.add(word + " LD_AUDIT", "replaces heddle's audit library", "ranks", kExtends));
    if (word == "-genvnone" || word == "-envnone")
      TRY(losses.add(word, "keeps heddle's variables from other nodes", kRemote, "leave it out"));
    for (const auto& agent : kAgentHooks)
      if (word == agent.parameter)
        TRY(losses.add(word, "replaces heddle's", kRemote, "leave it out"));
  }
  return out;
}

/// What srun passes on of the environment: its --export, SLURM_EXPORT_ENV or ALL. Words from the
/// first that is a program on are not srun's.
std::vector<std::string> srun_exports(const std::vector<std::string>& command) {
  const char* exported = std::getenv("SLURM_EXPORT_ENV");
  std::string list = exported ? exported : "ALL";
  constexpr std::string_view kOption = "--export";
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (!word.starts_with('-') && find_program(word)) break;
    if (word.starts_with(std::string(kOption) + "=")) list = word.substr(kOption.size() + 1);
    if (word == kOption && i + 1 < command.size()) list = command[++i];
  }
  std::vector<std::string> out;
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) out.push_back(item);
  return out;
}

Result<void> check_exports(const std::vector<std::string>& items, Losses& losses) {
  bool has_ours = false;
  for (const auto& item : items) {
    if (::strcasecmp(item.c_str(), "NONE") == 0) break;
    has_ours |= ::strcasecmp(item.c_str(), "ALL") == 0 || item == kLaunchVariable;
    if (item.starts_with("LD_AUDIT="))
      TRY(losses.add("srun --export=LD_AUDIT", "replaces heddle's audit library", "ranks",
                     kExtends));
  }
  if (has_ours) return {};
  return losses.add(fmt::format("srun --export={}", fmt::join(items, ",")),
                    "keeps heddle's variables from the ranks", "they", "--export=ALL,...");
}

}  // namespace

Result<Hooks> hooks_for(const LaunchSettings& settings, const std::string& program,
                        const std::vector<std::string>& command) {
  TRY(audit_library_path());
  Hooks out;
  Losses losses(!settings.image.empty(), out.notes);
  std::string audit;
  if (is_srun(command))
    TRY(check_exports(srun_exports(command), losses));
  else
    audit = TRY(audit_of(command, losses));
  const std::string prefix = TRY(plain_prefix(losses));
  const auto library = prefix + "/lib/heddle" + kAuditFile;
  Environment environment;
  if (!audit.empty()) environment.set("LD_AUDIT", audit);
  environment.prepend("LD_AUDIT", library);
  const auto list = *environment.get("LD_AUDIT");
  const auto launch = encode(prefix + "/bin/fs-launch", settings);
  out.variables = {{"LD_AUDIT", list}, {kLaunchVariable, launch}};
  // With a user's own LD_AUDIT of odd characters other nodes run without it, as before.
  const auto hook =
      std::string(kOurHook) + (list.find_first_of(" \t\n\"'$`\\") == list.npos ? list : library) +
      " " + kLaunchVariable + "=" + launch + " " + fmt::format("{}", fmt::join(kHookWords, " "));
  const bool takes_agents = !is_srun(command) && !is_hydra(program);
  for (const auto& agent : kAgentHooks) {
    const auto theirs = environment.get(agent.variable);
    const bool is_set = theirs && !theirs->empty();
    const auto file = is_set ? "" : file_with(agent, program);
    if ((!is_set || is_ours(*theirs)) && file.empty())
      out.variables.emplace_back(agent.variable, hook);
    else if (takes_agents)
      TRY(losses.add(is_set ? std::string(agent.variable) : file,
                     is_set ? "is set already and stays"
                            : fmt::format("sets {}, which stays", agent.parameter),
                     kRemote, ""));
  }
  return out;
}

Result<std::string> cache_directory() {
  auto out = default_cache_dir();
  if (out.empty())
    return fail("", "no cache directory",
                "XDG_CACHE_HOME and HOME name none that this user alone can change",
                "XDG_CACHE_HOME=DIR, a directory that is there, of mode 0700");
  return out;
}

void remove_hooks() {
  Environment environment;
  for (const auto& agent : kAgentHooks)
    if (const auto value = environment.get(agent.variable); value && is_ours(*value))
      ::unsetenv(agent.variable);
  ::unsetenv(kLaunchVariable);
  const auto list = environment.get("LD_AUDIT");
  if (!list) return;
  std::string left;
  for (std::size_t at = 0; at <= list->size();) {
    const auto end = std::min(list->find(':', at), list->size());
    const auto word = list->substr(at, end - at);
    if (!word.ends_with(kAuditFile)) left += (left.empty() ? "" : ":") + word;
    at = end + 1;
  }
  if (left.empty())
    ::unsetenv("LD_AUDIT");
  else
    ::setenv("LD_AUDIT", left.c_str(), 1);
}

}  // namespace heddle::launch
