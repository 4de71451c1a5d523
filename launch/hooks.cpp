// SPDX-License-Identifier: MIT
#include "launch/hooks.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "base/child.hpp"
#include "base/content_hash.hpp"
#include "base/rank_mark.hpp"
#include "base/run_directory.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "resolver/elf/cached_facts.hpp"

namespace heddle::launch {
namespace {

constexpr const char* kAuditFile = "/libheddle-audit.so";
constexpr const char* kAgentHooks[] = {"OMPI_MCA_orte_fork_agent", "PRTE_MCA_odls_base_exec_agent"};
constexpr std::string_view kOurHook = "/usr/bin/env LD_AUDIT=";

bool is_ours(const std::string& hook) {
  return hook.starts_with(kOurHook) &&
         hook.find(std::string(" ") + kLaunchVariable + "=") != hook.npos;
}

/// The installation: of a path that launchers would split or change, a link in a directory of the
/// user's alone, below the cache, which nodes usually share. Where that has such a path too the
/// link is this node's, and `notes` says so.
Result<std::string> plain_prefix(std::vector<std::string>& notes) {
  const std::string bin = TRY(own_program_dir());
  const auto prefix = bin.substr(0, bin.rfind('/'));
  if (is_plain(prefix)) return prefix;
  const auto cache = default_cache_dir() + "/launch";
  const auto directory = TRY(is_plain(cache) ? RunDirectory::open_at(cache) : RunDirectory::open());
  const auto link = directory.path() + "/" + hash_bytes(prefix).hex().substr(0, 16);
  if (!is_plain(link))
    return fail(prefix, "cannot be given to a launcher", "its path has odd characters",
                "install heddle at a path of letters, digits, '-', '_' and '.'");
  if (!is_plain(cache))
    notes.push_back(prefix +
                    ", and the cache: launchers take no such path: ranks on other nodes "
                    "run unguided");
  if (::symlink(prefix.c_str(), link.c_str()) != 0 && errno != EEXIST)
    return fail_errno(link, "cannot make a link");
  return link;
}

}  // namespace

Result<Hooks> hooks_for(const LaunchSettings& settings) {
  TRY(audit_library_path());
  Hooks out;
  const std::string prefix = TRY(plain_prefix(out.notes));
  const auto library = prefix + "/lib/heddle" + kAuditFile;
  Environment environment;
  environment.prepend("LD_AUDIT", library);
  const auto list = *environment.get("LD_AUDIT");
  const auto launch = encode(prefix + "/bin/fs-launch", settings);
  out.variables = {{"LD_AUDIT", list}, {kLaunchVariable, launch}};
  // With a user's own LD_AUDIT of odd characters other nodes run without it, as before.
  const auto hook = std::string(kOurHook) +
                    (list.find_first_of(" \t\n\"'$`\\") == list.npos ? list : library) + " " +
                    kLaunchVariable + "=" + launch;
  for (const char* name : kAgentHooks) {
    const auto theirs = environment.get(name);
    if (theirs && !theirs->empty() && !is_ours(*theirs))
      out.notes.push_back(std::string(name) +
                          " is set already and stays: ranks on other nodes may run unguided");
    else
      out.variables.emplace_back(name, hook);
  }
  return out;
}

void remove_hooks() {
  Environment environment;
  for (const char* name : kAgentHooks)
    if (const auto value = environment.get(name); value && is_ours(*value)) ::unsetenv(name);
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
