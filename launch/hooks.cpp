// SPDX-License-Identifier: MIT
#include "launch/hooks.hpp"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "base/child.hpp"
#include "base/content_hash.hpp"
#include "base/rank_mark.hpp"
#include "base/run_directory.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "launch/launcher_line.hpp"
#include "launch/step_check.hpp"
#include "resolver/elf/cached_facts.hpp"

namespace heddle::launch {
namespace {

constexpr const char* kAuditFile = "/libheddle-audit.so";
constexpr std::string_view kOurHook = "/usr/bin/env LD_AUDIT=";

bool is_ours(const std::string& hook) {
  return hook.starts_with(kOurHook) &&
         hook.find(std::string(" ") + kLaunchVariable + "=") != hook.npos;
}

/// The installation: of a path that launchers would split or change, a link in a directory of the
/// user's alone, below the cache, which nodes usually share. Where that has such a path too the
/// link is this node's: a loss of `line`.
Result<std::string> plain_prefix(LauncherLine& line) {
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
    TRY(line.lose(prefix,
                  parent.empty() ? "launchers take no such path, and there is no cache"
                                 : "launchers take no such path, nor the cache's",
                  kRemoteRanks, "XDG_CACHE_HOME=DIR"));
  if (::symlink(prefix.c_str(), link.c_str()) != 0 && errno != EEXIST)
    return fail_errno(link, "cannot make a link");
  return link;
}

}  // namespace

Result<Hooks> hooks_for(const LaunchSettings& settings, const std::string& program,
                        const std::vector<std::string>& command) {
  TRY(audit_library_path());
  Hooks out;
  LauncherLine line(program, command, !settings.image.empty());
  const std::string audit = TRY(line.examine());
  const std::string prefix = TRY(plain_prefix(line));
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
  for (const auto& agent : kAgentHooks) {
    const auto theirs = environment.get(agent.variable);
    bool is_free = theirs && is_ours(*theirs);
    if (!is_free) is_free = TRY(line.is_free(agent));
    if (is_free) out.variables.emplace_back(agent.variable, hook);
  }
  if (!settings.step_check.empty())
    out.variables.emplace_back(kPrologVariable, step_check_program(prefix));
  out.notes = std::move(line.notes);
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
  remove_step_check();
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
