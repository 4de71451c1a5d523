// SPDX-License-Identifier: MIT
#include "launch/launcher_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/find_program.hpp"
#include "base/open_regular.hpp"
#include "base/paths.hpp"
#include "base/rank_mark.hpp"
#include "base/try.hpp"

namespace heddle::launch {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kRanks = "ranks";
constexpr const char* kLeaveOut = "leave it out";
constexpr const char* kExtends = "set LD_AUDIT before fs-launch: it is extended";
constexpr const char* kReplaces = "replaces heddle's audit library";
constexpr std::string_view kAudit = "LD_AUDIT";
constexpr std::string_view kSetAudit = "LD_AUDIT=";
constexpr std::size_t kLargestFile = std::size_t{1} << 20;

/// Programs that may be before srun on its line.
constexpr std::string_view kStarters[] = {"env", "nice", "time", "timeout"};
/// srun's options that take no value, or only one after '='; of the others the next word is the
/// value (srun(1), Slurm 22.05).
constexpr std::string_view kFlagsOfSrun[] = {
    "--contiguous", "--disable-status",    "--exact",        "--exclusive",   "--help",
    "--hold",       "--ignore-pbs",        "--immediate",    "--interactive", "--kill-on-bad-exit",
    "--label",      "--multi-prog",        "--no-allocate",  "--no-kill",     "--overcommit",
    "--overlap",    "--oversubscribe",     "--preserve-env", "--propagate",   "--pty",
    "--quiet",      "--quit-on-interrupt", "--reboot",       "--resv-ports",  "--send-libs",
    "--spread-job", "--test-only",         "--unbuffered",   "--usage",       "--use-min-nodes",
    "--verbose",    "--version",           "--whole"};
constexpr std::string_view kValuesOfSrun = "ABcCdDeFGiJLmMnNopqrStTwWx";

/// Options of mpirun and hydra whose next words are values, and may be names of programs.
constexpr std::pair<std::string_view, int> kValues[] = {
    {"map-by", 1},        {"rank-by", 1},        {"bind-to", 1}, {"launcher", 1}, {"bootstrap", 1},
    {"launcher-exec", 1}, {"bootstrap-exec", 1}, {"rmk", 1},     {"mca", 2},      {"gmca", 2},
    {"path", 1},          {"prtemca", 2},        {"pmixmca", 2}, {"env", 2},      {"genv", 2}};
constexpr std::string_view kHostOptions[] = {"host", "hosts"};
constexpr std::string_view kHostFileOptions[] = {"hostfile", "machinefile", "default-hostfile"};
constexpr std::string_view kShellOptions[] = {"launcher-exec", "bootstrap-exec"};
constexpr std::string_view kShellParameters[] = {"plm_rsh_agent", "plm_ssh_agent"};
constexpr std::string_view kHostFileParameters[] = {"orte_default_hostfile",
                                                    "prte_default_hostfile"};

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::ranges::find(list, word) != std::end(list);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

Words split(const std::string& list) {
  Words out;
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) out.push_back(item);
  return out;
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

/// Whether the launcher of this real name may read the parameter of `hook`.
bool reads(const std::string& launcher, const AgentHook& hook) {
  return std::ranges::any_of(hook.launchers,
                             [&](const char* each) { return each && launcher == each; });
}

/// Without its one or two dashes, as hydra and PRRTE take them; empty: no option.
std::string option_name(const std::string& word) {
  if (!word.starts_with('-')) return "";
  return lower(word.substr(word.starts_with("--") ? 2 : 1));
}

/// Whether a line of the file sets `parameter`: `NAME = VALUE`, or in a file of --tune also
/// `--mca NAME VALUE`. A file that cannot be read sets nothing.
bool sets(const std::string& path, std::string_view parameter) {
  const auto file = open_regular(path);
  std::istringstream lines(file ? read_all(file->get(), path, kLargestFile).value_or("") : "");
  for (std::string line; std::getline(lines, line);) {
    std::replace(line.begin(), line.end(), '=', ' ');
    std::istringstream words(line);
    bool is_name = true;
    for (std::string word; words >> word; is_name = word.ends_with("mca"))
      if (is_name && word == parameter) return true;
  }
  return false;
}

/// The file that sets the parameter of `hook` for the launcher at `program`; empty: none is found.
std::string file_with(const AgentHook& hook, const std::string& program) {
  const auto named = split(variable(hook.list));
  Words places = {"/etc", "/etc/openmpi"};
  std::error_code error;
  const auto real = std::filesystem::canonical(program, error);
  for (const auto& prefix : {variable("OPAL_PREFIX"), real.parent_path().parent_path().string()})
    if (!prefix.empty()) places.push_back(prefix + "/etc");
  Words files;
  for (const auto& place : places) files.push_back(place + hook.overrides);
  files.insert(files.end(), named.begin(), named.end());
  if (named.empty()) {
    files.push_back(variable("HOME") + hook.user);
    for (const auto& place : places) files.push_back(place + hook.system);
  }
  const auto found =
      std::ranges::find_if(files, [&](const auto& path) { return sets(path, hook.parameter); });
  return found == files.end() ? "" : *found;
}

/// What the options of srun's line, from its word `at` on, export: of each program of the line, of
/// which ':' separates several.
std::vector<Words> srun_exports(const Words& line, std::size_t at) {
  const char* given = std::getenv("SLURM_EXPORT_ENV");
  std::vector<Words> out;
  while (at < line.size()) {
    std::string list = given ? given : "ALL";
    for (++at; at < line.size() && line[at].starts_with('-') && line[at] != "--"; ++at) {
      const auto equals = line[at].find('=');
      const auto name = line[at].substr(0, equals);
      const bool has_value = equals != line[at].npos;
      const bool is_long = name.starts_with("--");
      const bool is_export = name.size() > 4 && std::string_view("--export").starts_with(name);
      const bool is_flag = std::ranges::any_of(
          kFlagsOfSrun, [&](std::string_view flag) { return flag.starts_with(name); });
      if (is_export && has_value) list = line[at].substr(equals + 1);
      if (is_long ? has_value || is_flag
                  : name.size() != 2 || kValuesOfSrun.find(name[1]) == kValuesOfSrun.npos)
        continue;
      ++at;
      if (is_export && at < line.size()) list = line[at];
    }
    out.push_back(split(list));
    while (at < line.size() && line[at] != ":") ++at;
  }
  return out;
}

}  // namespace

LauncherLine::LauncherLine(const std::string& program, const Words& command, bool has_image)
    : command_(command), has_image_(has_image), path_(program) {
  std::error_code error;
  name_ = std::filesystem::canonical(program, error).filename().string();
  const auto srun = std::ranges::find(command, "srun", base_name);
  if (srun != command.end() &&
      (srun == command.begin() ||
       std::ranges::find(kStarters, base_name(command[0])) != std::end(kStarters))) {
    kind_ = Kind::srun;
    srun_ = static_cast<std::size_t>(srun - command.begin());
  } else if (name_.find("hydra") != name_.npos) {
    kind_ = Kind::hydra;
  } else if (std::ranges::any_of(kAgentHooks,
                                 [&](const auto& hook) { return reads(name_, hook); })) {
    kind_ = Kind::open_mpi;
  }
}

Result<void> LauncherLine::lose(const std::string& subject, const std::string& what,
                                const std::string& ranks, const std::string& hint) {
  if (has_image_) return fail(subject, what, ranks + " would run outside of the image", hint);
  notes.push_back(fmt::format("{}: {}: {} run unguided{}{}", subject, what, ranks,
                              hint.empty() ? "" : "; ", hint));
  return {};
}

Result<std::string> LauncherLine::examine_srun() {
  for (const auto& items : srun_exports(command_, srun_)) {
    bool all = false, audit = false, launch = false;
    std::string better = "--export=ALL";
    for (const auto& item : items) {
      if (lower(item) == "none") break;
      better += "," + item;
      all |= lower(item) == "all";
      audit |= item == kAudit;
      launch |= item == kLaunchVariable;
      if (item.starts_with(kSetAudit))
        TRY(lose("srun --export=LD_AUDIT", kReplaces, kRanks, kExtends));
    }
    if (!all && !(audit && launch))
      TRY(lose(fmt::format("srun --export={}", fmt::join(items, ",")),
               "keeps heddle's variables from the ranks", "they", better));
  }
  return std::string();
}

Result<void> LauncherLine::examine_hydra(const std::string& option, const std::string& next) {
  const bool lists = option == "genvlist" || option == "envlist";
  if ((option == "env" || option == "genv") && (next == kAudit || next.starts_with(kSetAudit)))
    return lose("-" + option + " LD_AUDIT", kReplaces, kRanks, kExtends);
  if (option == "genvnone" || option == "envnone" ||
      (lists && !(contains(split(next), kAudit) && contains(split(next), kLaunchVariable))))
    return lose("-" + option, "keeps heddle's variables from other nodes", kRemoteRanks, kLeaveOut);
  return {};
}

Result<void> LauncherLine::examine_open_mpi(const std::string& option, const std::string& next) {
  const auto replaces = [&](const std::string& what) {
    return lose(what, "replaces heddle's fork agent", kRemoteRanks, kLeaveOut);
  };
  if ((option == "runtime-options" || option == "rtos") &&
      lower(next).find("exec-agent") != next.npos)
    return replaces(next);
  if (option == "path") {
    searches_elsewhere_ = true;
    return lose("mpirun --path", "searches where heddle's fork agent does not", kRemoteRanks,
                "the program's path");
  }
  for (const auto& hook : kAgentHooks) {
    if (option.ends_with("mca") && next == hook.parameter) return replaces(next);
    if (option == "tune" &&
        std::ranges::any_of(split(next), [&](const auto& f) { return sets(f, hook.parameter); }))
      return replaces(next);
  }
  return {};
}

Result<std::string> LauncherLine::examine() {
  if (kind_ == Kind::srun) return examine_srun();
  // An option of the same name after the program is the program's: it is taken for the launcher's,
  // since several programs may follow, each with options.
  std::string audit;
  for (std::size_t i = 1; i < command_.size(); ++i) {
    const auto next = i + 1 < command_.size() ? command_[i + 1] : std::string();
    const auto option = option_name(command_[i]);
    if (command_[i] == "-x" && next.starts_with(kSetAudit)) audit = next.substr(kSetAudit.size());
    if (option.empty()) continue;
    if (kind_ != Kind::open_mpi) TRY(examine_hydra(option, next));
    if (kind_ != Kind::hydra) TRY(examine_open_mpi(option, next));
  }
  const auto passed = variable("HYDRA_ENV");
  if (kind_ == Kind::hydra && !passed.empty() && passed != "all")
    TRY(lose("HYDRA_ENV=" + passed, "keeps heddle's variables from other nodes", kRemoteRanks,
             "unset HYDRA_ENV"));
  return audit;
}

LineNodes LauncherLine::nodes() const {
  LineNodes out;
  // Older ones copy their program's words to a place for 1,023.
  out.may_be_srun = (kind_ == Kind::srun && command_.size() < 1000) || kind_ == Kind::other;
  if (kind_ != Kind::hydra && kind_ != Kind::open_mpi) return out;
  const auto word_at = [&](std::size_t i) { return i < command_.size() ? command_[i] : ""; };
  bool is_options = true, may_be_value = false;
  for (std::size_t i = 1; i < command_.size(); ++i) {
    if (command_[i] == ":") {
      is_options = true;
      continue;
    }
    if (!is_options) continue;
    const auto equals = std::min(command_[i].find('='), command_[i].size());
    const auto option = option_name(command_[i].substr(0, equals));
    if (option.empty()) {
      is_options = may_be_value && !find_program(command_[i]);
      may_be_value = false;
      continue;
    }
    const bool has_value = equals < command_[i].size();
    const auto value = has_value ? command_[i].substr(equals + 1) : word_at(i + 1);
    int values = 1;
    if (contains(kHostOptions, option) || command_[i] == "-H") {
      for (auto& name : split(value)) out.names.push_back(name.substr(0, name.find(':')));
    } else if (contains(kHostFileOptions, option) ||
               (kind_ == Kind::hydra && command_[i] == "-f")) {
      out.files.push_back(value);
    } else {
      const auto second = word_at(i + 2);
      if (contains(kShellOptions, option)) out.shell = value;
      if (option.ends_with("mca") && contains(kShellParameters, value)) out.shell = second;
      if (option.ends_with("mca") && contains(kHostFileParameters, value))
        out.files.push_back(second);
      const auto* known =
          std::ranges::find(kValues, option, &std::pair<std::string_view, int>::first);
      values = known == std::end(kValues) ? 0 : known->second;
    }
    may_be_value = !has_value && values == 0;
    if (!has_value) i += static_cast<std::size_t>(values);
  }
  return out;
}

Result<bool> LauncherLine::is_free(const AgentHook& hook) {
  if (searches_elsewhere_) return false;
  const bool is_set = !variable(hook.variable).empty();
  const auto file = is_set ? std::string() : file_with(hook, path_);
  if (!is_set && file.empty()) return true;
  if (kind_ == Kind::srun || kind_ == Kind::hydra) return false;
  if (kind_ == Kind::open_mpi && !reads(name_, hook)) return false;
  const auto subject = is_set ? hook.variable : file;
  const auto what =
      is_set ? "is set already and stays" : fmt::format("sets {}, which stays", hook.parameter);
  if (kind_ == Kind::open_mpi)
    TRY(lose(subject, what, kRemoteRanks,
             is_set ? fmt::format("unset {}", hook.variable)
                    : fmt::format("{}=FILE: other files", hook.list)));
  else
    notes.push_back(subject + ": " + what + ": " + kRemoteRanks + " of Open MPI's mpirun run " +
                    (has_image_ ? "outside of the image" : "unguided"));
  return false;
}

}  // namespace heddle::launch
