// SPDX-License-Identifier: MIT
#pragma once

// How the audit library recognises a rank of fs-launch's launcher. Shared with that library, which
// has no libc.

#include <cstdint>

namespace heddle {

/// `AGENT,MARK[,OPTION]...`: the program that a rank executes once, the rank_mark() of fs-launch
/// itself in 16 hexadecimal digits, and options of fs-gen, all but AGENT percent-encoded. Ranks do
/// not see it. The worst: who can set a process's environment can have it run any program, as by
/// LD_PRELOAD; ld.so ignores both in setuid programs.
inline constexpr char kLaunchVariable[] = "HEDDLE_LAUNCH";
/// The first argument of AGENT, before the path and the arguments of the rank.
inline constexpr char kRankOption[] = "--rank";
inline constexpr char kSeparator = ',';
inline constexpr unsigned kMarkDigits = 16;

/// Slurm's is last, since a launcher within a batch job sets the ranks' own.
inline constexpr const char kSlurmRank[] = "SLURM_PROCID";
/// A batch script has a SLURM_PROCID, too, but no step.
inline constexpr const char kSlurmStep[] = "SLURM_STEP_ID";
inline constexpr const char* kRankVariables[] = {
    "OMPI_COMM_WORLD_RANK", "PMIX_RANK",          "PMI_RANK",    "PALS_RANKID", "FLUX_TASK_RANK",
    "MV2_COMM_WORLD_RANK",  "JSM_NAMESPACE_RANK", "ALPS_APP_PE", kSlurmRank};
/// How many ranks there are.
inline constexpr const char* kSizeVariables[] = {"OMPI_COMM_WORLD_SIZE",
                                                 "PMI_SIZE",
                                                 "PALS_SIZE",
                                                 "FLUX_JOB_SIZE",
                                                 "MV2_COMM_WORLD_SIZE",
                                                 "JSM_NAMESPACE_SIZE",
                                                 "SLURM_STEP_NUM_TASKS",
                                                 "SLURM_NTASKS"};
/// What tells a rank from the rank that its launcher was started by.
inline constexpr const char* kStepVariables[] = {
    "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_PORT", "PMI_FD", kSlurmStep, "FLUX_JOB_ID",
    "ALPS_APP_ID"};

/// Differs between a rank and the process that its launcher was started by. 0: no rank.
/// `value_of(name)` is the variable's value, or nullptr.
template <class ValueOf>
constexpr std::uint64_t rank_mark(const ValueOf& value_of) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  bool is_rank = false;
  const auto add = [&](const char* name) {
    const char* value = value_of(name);
    for (const char* c = value ? value : ""; *c; ++c)
      hash = (hash ^ static_cast<unsigned char>(*c)) * 1099511628211U;
    hash = (hash ^ (value ? 1U : 2U)) * 1099511628211U;
    return value != nullptr;
  };
  for (const char* name : kRankVariables)
    is_rank |= add(name) && (name != kSlurmRank || value_of(kSlurmStep));
  for (const char* name : kStepVariables) (void)add(name);
  return is_rank ? hash : 0;
}

}  // namespace heddle
