// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "resolver/policy/decide.hpp"
#include "resolver/policy/mpi_gate.hpp"
#include "resolver/policy/placement.hpp"

namespace heddle {

/// One run of decide(): which MPI (decider_mpi.cpp), then whose files and where (decide.cpp).
class Decider {
 public:
  Decider(OsWorld& host, OsWorld& inside, const DecideOptions& options)
      : options_(options), inside_(inside), inside_symbols_(inside), host_(host) {
    search_.ld_library_path = options.library_path;
    search_.ld_library_path_set = !options.library_path.empty();
  }

  Result<Decision> run();

 private:
  /// Both end the work; the result says so.
  bool refuse(std::string reason, std::string hint = "") {
    out_.outcome = Outcome::incompatible;
    out_.reason = std::move(reason);
    out_.hint = std::move(hint);
    ended_ = true;
    return false;
  }
  bool nothing(std::string reason) {
    out_.outcome = Outcome::nothing;
    out_.reason = std::move(reason);
    ended_ = true;
    return false;
  }

  Result<void> read_programs();
  bool choose_mpi();
  bool pass_gate();
  std::string lacks_of(const StackPart& part, const MpiInstall& install);
  void judge_copies(const MpiInstall& install);
  Result<void> take_host_libraries();
  bool take_bindings(const MpiInstall& install, SideChoice& sides);
  void decide_sides();
  void finish(const SideChoice& sides, const GlibcChoice& glibc, const Placement& placement);
  /// The host's binding that stands for the container's; null: none.
  const MpiFile* host_binding(const StackPart& part) const;
  std::optional<ContainerFile> container_file(const std::vector<std::string>& names);

  const DecideOptions& options_;
  Decision out_;
  bool ended_ = false;
  ContainerSide inside_;
  SymbolReader inside_symbols_;
  HostSide host_;
  SearchOptions search_;
  GlibcFamily glibc_;
  ContainerStack stack_;
  MpiMatch match_;
  std::vector<PluginFolder> folders_;
};

}  // namespace heddle
