// SPDX-License-Identifier: MIT
#pragma once

// The launcher's own line: which nodes it names, and what keeps ranks from the variables of
// hooks_for(), there, in the environment and in the launchers' files. What else may do so is not
// seen: scripts, files of options that the line names, a launcher below another program than
// kStarters.

#include <array>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace heddle::launch {

/// A parameter of a launcher that puts words before each rank's. Variables come before the
/// launcher's files (mca_base_var.c), which a hook of a site's is in, so ours would hide it.
struct AgentHook {
  const char* variable;
  const char* parameter;
  const char* list;                      ///< the variable that names the files, separated by commas
  const char* user;                      ///< else below HOME
  const char* system;                    ///< and in the installation's etc
  const char* overrides;                 ///< a file there that comes before variables
  std::array<const char*, 6> launchers;  ///< real names of the programs that may read it
};
inline constexpr AgentHook kAgentHooks[] = {
    {"OMPI_MCA_orte_fork_agent",
     "orte_fork_agent",
     "OMPI_MCA_mca_base_param_files",
     "/.openmpi/mca-params.conf",
     "/openmpi-mca-params.conf",
     "/openmpi-mca-params-override.conf",
     {"orterun", "mpirun", "mpiexec"}},
    {"PRTE_MCA_odls_base_exec_agent",
     "odls_base_exec_agent",
     "PRTE_MCA_mca_base_param_files",
     "/.prte/mca-params.conf",
     "/prte-mca-params.conf",
     "/prte-mca-params-override.conf",
     {"prterun", "prte", "mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi"}}};

/// What mpirun's and hydra's options say of nodes.
struct LineNodes {
  std::vector<std::string> names;
  std::vector<std::string> files;  ///< of names, a line each
  std::string shell;               ///< a command line; empty: it names none
  bool may_be_srun = false;        ///< it is srun's, or that of a program that may start srun
};

inline constexpr const char* kRemoteRanks = "any ranks on other nodes";

class LauncherLine {
 public:
  /// `program`: the launcher's file; `command`: its line, which outlives this. With `has_image` a
  /// loss is a failure, since ranks would run outside of their image; else a note.
  LauncherLine(const std::string& program, const std::vector<std::string>& command, bool has_image);

  /// `subject` does `what`, so that `ranks` are lost.
  Result<void> lose(const std::string& subject, const std::string& what, const std::string& ranks,
                    const std::string& hint);
  /// The losses of the line's options. Result: the LD_AUDIT that mpirun's -x sets, which ranks get
  /// if the hook has it; empty: none.
  Result<std::string> examine();
  /// Only options before a program count. One that kValues lacks, and whose value is the name of a
  /// program, hides what follows.
  LineNodes nodes() const;
  /// Whether `hook` may be set; else the user's own stays, which is a loss if the launcher reads
  /// it, and a note if it may start one that does.
  Result<bool> is_free(const AgentHook& hook);

  std::vector<std::string> notes;

 private:
  enum class Kind { srun, hydra, open_mpi, other };
  Result<std::string> examine_srun();
  Result<void> examine_hydra(const std::string& option, const std::string& next);
  Result<void> examine_open_mpi(const std::string& option, const std::string& next);

  const std::vector<std::string>& command_;
  bool has_image_;
  std::string path_, name_;  ///< the launcher's, and its real name
  std::size_t srun_ = 0;     ///< the index of the word srun
  Kind kind_ = Kind::other;
  bool searches_elsewhere_ = false;  ///< not in PATH: a fork agent would start another program
};

}  // namespace heddle::launch
