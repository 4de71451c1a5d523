// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "resolver/policy/container_side.hpp"
#include "resolver/policy/decision.hpp"
#include "resolver/policy/host_side.hpp"

namespace heddle {

/// Whose glibc all programs of the container run with.
struct GlibcChoice {
  Side taken = Side::container;
  std::string container_version;
  std::string why;
  std::string conflict;  ///< neither will do: why
  std::vector<Verdict> verdicts;
  std::vector<std::string> warnings;
};

/// The container's, unless a file of the host wants a version that it does not define; then the
/// host's, all of it. glibc's files share GLIBC_PRIVATE, so that a mixture does not even start
/// (dl-call-libc-early-init.c).
GlibcChoice choose_glibc(const GlibcFamily& host, ContainerSide& inside,
                         const std::vector<const HostFile*>& host_files);

}  // namespace heddle
