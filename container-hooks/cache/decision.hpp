// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/coder.hpp"
#include "base/result.hpp"

namespace heddle::hook {

enum class Outcome : std::uint8_t { swap, nothing, incompatible };

/// A file or directory of the mount that is bound over one of the container.
struct Bind {
  std::string source;  ///< relative to the mount's root
  std::string target;  ///< absolute, in the container
};

struct Verdict {
  std::string soname;
  bool from_host = false;
  std::string why;
};

/// What fs-resolve decided for one image (docs/formats/container.md).
struct Decision {
  Outcome outcome = Outcome::nothing;
  std::string reason;
  std::string hint;
  std::string mount_point;
  std::vector<std::string> programs;
  std::string interpreter;  ///< their PT_INTERP
  std::string host_mpi;     ///< "MPICH 4.0.2"
  bool loads_mpi = true;    ///< one of the programs does; else those that they start may
  std::vector<Bind> binds;
  std::vector<Bind> directories;         ///< those that exist in the image
  std::vector<std::string> unreachable;  ///< targets of those that do not
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<Verdict> verdicts;
  std::vector<std::string> warnings;
  /// Paths of the image, absent ones too, whose contents the decision depends on. A trailing slash:
  /// the names in that directory.
  std::vector<std::string> image_files;
  // Added by the cache:
  std::string contents;  ///< hash of what `image_files` held (ImageContents)
  std::string map_id;    ///< hash of the map's bytes; empty without a swap
};

template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Bind>
void fields(Coder& coder, R& r) { coder(r.source, r.target); }
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Verdict>
void fields(Coder& coder, R& r) { coder(r.soname, r.from_host, r.why); }
/// Without the fields that only the cache needs.
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Decision>
void fields(Coder& coder, R& r) {
  coder(r.outcome, r.reason, r.hint, r.mount_point, r.programs, r.interpreter, r.host_mpi,
        r.loads_mpi, r.binds, r.directories, r.unreachable, r.environment, r.verdicts, r.warnings,
        r.map_id);
}

/// `name` is for messages. Refuses another version, and bind targets that are relative or have
/// `..`.
Result<Decision> parse_decision(const std::string& text, const std::string& name);

}  // namespace heddle::hook
