// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "base/coder.hpp"
#include "base/container_decision.hpp"

namespace heddle {

// Messages between the hook's processes: without what only the cache needs, which may be long.

template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, FileBind>
void fields(Coder& coder, R& r) { coder(r.source, r.target); }
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, DirectoryBind>
void fields(Coder& coder, R& r) { coder(r.source, r.target, r.exists); }
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, MpiSide>
void fields(Coder& coder, R& r) { coder(r.family, r.version); }
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, SonameChoice>
void fields(Coder& coder, R& r) { coder(r.soname, r.taken, r.why); }
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, ContainerDecision>
void fields(Coder& coder, R& r) {
  std::vector<std::pair<std::string, std::string>> environment(r.environment.begin(),
                                                               r.environment.end());
  coder(r.outcome, r.reason, r.hint, r.mount_point, r.programs, r.interpreter, r.mpi, r.loads_mpi,
        r.binds, r.directories, environment, r.choices, r.warnings, r.map_id);
  if constexpr (!std::is_const_v<R>) r.environment = {environment.begin(), environment.end()};
}

}  // namespace heddle

namespace heddle::hook {

using Decision = ContainerDecision;

/// As parse_container_decision(); refuses bind targets that are relative or have `..` too.
Result<Decision> parse_decision(const std::string& text, const std::string& name);

/// Paths of the image, absent ones too, whose contents the decision depends on. A trailing slash:
/// the names in that directory.
std::vector<std::string> image_files(const Decision& decision);

/// "MPICH 4.0.2"; empty: none is taken.
std::string host_mpi(const Decision& decision);

}  // namespace heddle::hook
